"""Decodes files on Ray Data: the library in actors, a file at a time.

A file is decoded completely or not at all. A second decoding, because an actor has died or the work was started again,
gives the same file. So the existing files are the only record of the progress.
"""

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from attendant.runtime.bundle.bundle import read_manifest
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_file, translate_os_errors, write_json
from attendant.server.library import Generation, InvalidArgument, load

RECORD = "decoding.json"
"""The file in the output folder that records the model and options of its files."""

SOURCES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The model, options and output of a decoding.

    Attributes:
        output: the folder for a file per input, of the same name.
        precision: if None, the bundle's default.
        options: of `attendant.Model.generate`.
    """

    bundle: Path
    output: Path
    precision: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class FileDecoder:
    """A Ray actor with a model that decodes files."""

    def __init__(self, work: Work, threads: int) -> None:
        self._work = work
        self._model = load(work.bundle, precision=work.precision, threads=threads)

    def __call__(self, row: dict[str, str]) -> dict[str, Any]:
        """Decodes a file into another one, which appears when it is complete."""
        source, num_lines, num_errors = Path(row["source"]), 0, 0
        # A unique name: an actor that Ray takes for dead may still be writing.
        aside = self._work.output / f".{source.name}.{uuid.uuid4().hex}"
        # What is not UTF-8 is no valid text, and becomes an error of its line.
        with source.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines, new_file(aside) as answers:
            while texts := [line.rstrip("\r\n") for line in itertools.islice(lines, SOURCES_AT_ONCE)]:
                num_lines += len(texts)
                for answer in self._model.generate(texts, return_errors=True, **self._work.options):
                    num_errors += isinstance(answer, InvalidArgument)
                    answers.write(json.dumps(_fields(answer), ensure_ascii=False) + "\n")
        aside.replace(self._work.output / source.name)
        return {"name": source.name, "lines": num_lines, "errors": num_errors}


def _fields(answer: Generation | InvalidArgument) -> dict[str, Any]:
    if isinstance(answer, InvalidArgument):
        return {"error": answer.message}
    return {"text": answer.best.text, "score": answer.best.score}


def decode(work: Work, inputs: Sequence[Path], *, actors: int, threads: int) -> None:
    """Decodes the inputs that have no output yet, and prints a line for each.

    Args:
        actors: number of actors that decode at once.
        threads: of a CPU, for each actor.

    Raises:
        UserError: two inputs of one name; a missing input; options that the bundle excludes; an output folder of other
            work.
    """
    check_options(work)
    names = Counter([RECORD, *(path.name for path in inputs)])
    for path in inputs:
        if names[path.name] > 1:
            raise UserError(f"{path}: the output folder has room for one file named {path.name}")
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
    claim(work)
    missing = [path for path in inputs if not (work.output / path.name).exists()]
    print(f"{len(inputs) - len(missing)} of {len(inputs)} files are there", flush=True)
    for row in _decoded(work, missing, actors, threads):
        print(f"{row['name']}: {row['lines']} lines, {row['errors']} errors", flush=True)
    for begun in work.output.glob("..*.writing"):  # by actors that died
        begun.unlink()


def check_options(work: Work) -> None:
    """Raises UserError if the bundle lacks the precision, or an option is above its limit."""
    manifest = read_manifest(work.bundle)
    if work.precision not in (None, *manifest.graphs):
        choices = " or ".join(sorted(manifest.graphs))
        raise UserError(f"--precision is {work.precision}, must be {choices} with this bundle")
    limits = {"beam_size": manifest.limits.max_beam_size, "max_length": manifest.limits.max_target_tokens}
    for name, value in work.options.items():
        if name in limits and value > limits[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is {value}, must be 1 to {limits[name]} with this bundle")


def claim(work: Work) -> None:
    """Makes the output folder and records the work in it.

    Raises:
        UserError: the folder has files of other work.
    """
    record, manifest = work.output / RECORD, read_manifest(work.bundle)
    wanted = {
        "model": manifest.name,
        "version": manifest.version,
        "precision": work.precision,
        "options": dict(work.options),
    }
    with translate_os_errors(record):
        work.output.mkdir(parents=True, exist_ok=True)
    if record.exists():
        recorded = json.loads(record.read_text(encoding="utf-8"))
        if recorded != wanted:
            raise UserError(
                f"{work.output} has answers of {recorded}, not of {wanted}; name another folder by --output"
            )
        return
    write_json(record, wanted)


def _decoded(work: Work, inputs: Sequence[Path], actors: int, threads: int) -> Iterator[dict[str, Any]]:
    """Decodes files and yields the numbers of each, in the order of completion."""
    if not inputs:
        return
    rows = ray.data.from_items([{"source": str(path)} for path in inputs], override_num_blocks=len(inputs))
    decoded = rows.map(
        FileDecoder,
        fn_constructor_kwargs={"work": work, "threads": threads},
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(inputs))),
        num_cpus=threads,
    )
    yield from decoded.iter_rows()
