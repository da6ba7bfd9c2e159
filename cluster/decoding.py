"""Decodes files on Ray Data: the library in actors, a file at a time.

A file is decoded whole or not at all. Decoded again, because an actor has died or the work was begun anew, it is the
same. So the files that are there are the only record of what has been done.
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

from attendant.library import Generation, InvalidArgument, load
from attendant.runtime.bundle.bundle import read_manifest
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_file, translate_os_errors, write_json

RECORD = "decoding.json"
"""In the output folder: what its files were decoded by."""

SOURCES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be decoded how.

    Attributes:
        output: the folder that gets a file for each input, of the same name.
        precision: None: the bundle's own.
        options: of `attendant.Model.generate`.
    """

    bundle: Path
    output: Path
    precision: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class FileDecoder:
    """An actor: a model that decodes files."""

    def __init__(self, work: Work, threads: int) -> None:
        self._work = work
        self._model = load(work.bundle, precision=work.precision, threads=threads)

    def __call__(self, row: dict[str, str]) -> dict[str, Any]:
        """Decodes a file into another one, which is there when it is whole."""
        source, num_lines, num_errors = Path(row["source"]), 0, 0
        # Of its own: an actor that is taken for dead may still be writing.
        aside = self._work.output / f".{source.name}.{uuid.uuid4().hex}"
        with source.open(encoding="utf-8", newline="\n") as lines, new_file(aside) as answers:
            while texts := [line.rstrip("\r\n") for line in itertools.islice(lines, SOURCES_AT_ONCE)]:
                num_lines += len(texts)
                for answer in self._model.generate(texts, return_errors=True, **self._work.options):
                    num_errors += isinstance(answer, InvalidArgument)
                    answers.write(json.dumps(_told(answer), ensure_ascii=False) + "\n")
        aside.replace(self._work.output / source.name)
        return {"name": source.name, "lines": num_lines, "errors": num_errors}


def _told(answer: Generation | InvalidArgument) -> dict[str, Any]:
    if isinstance(answer, InvalidArgument):
        return {"error": answer.message}
    return {"text": answer.best.text, "score": answer.best.score}


def decode(work: Work, inputs: Sequence[Path], *, actors: int, threads: int) -> None:
    """Decodes the inputs that have no output yet, and says each as it is done.

    Args:
        actors: decode at once.
        threads: of a CPU, for each actor.

    Raises:
        UserError: two inputs of one name; an input that is not there; an output folder of other work.
    """
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


def claim(work: Work) -> None:
    """Makes the output folder that of this work.

    Raises:
        UserError: it is another one's, which would be mixed with this.
    """
    record = work.output / RECORD
    wanted = {
        "model": read_manifest(work.bundle).name,
        "version": read_manifest(work.bundle).version,
        "precision": work.precision,
        "options": dict(work.options),
    }
    with translate_os_errors(record):
        work.output.mkdir(parents=True, exist_ok=True)
    if record.exists():
        found = json.loads(record.read_text(encoding="utf-8"))
        if found != wanted:
            raise UserError(f"{work.output} has answers of {found}, not of {wanted}; name another folder by --output")
        return
    write_json(record, wanted)


def _decoded(work: Work, inputs: Sequence[Path], actors: int, threads: int) -> Iterator[dict[str, Any]]:
    """Says of each file that it is decoded, in the order in which they are done."""
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
