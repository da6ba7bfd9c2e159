"""Other toolkits' models and ours: the same pairs, in the same symbols, for the same processor time."""

import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from string import Template
from typing import Any, Final

import psutil

from attendant.recipes.papers.harness import RUNS, write_table
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json
from attendant.training.data.config import Split
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import Example, Pair, group_references, read_pairs, sample_evenly
from attendant.training.evaluation.bootstrap import confidence_interval, interval_text
from attendant.training.evaluation.metrics import take_statistics
from attendant.training.recipe import Recipe, load_recipe
from benchmarks import ROOT
from benchmarks.harness import ENVIRONMENTS, cpu_seconds, tree

FOLDER: Final = Path(__file__).parent / "toolkits"
POLL_SECONDS: Final = 2.0
SAVING_SECONDS: Final = 120.0
BATCH_SIZE: Final = 32
"""Examples that are decoded together."""

NUM_ALONE: Final = 100
ALONE_DIVISOR: Final = 10
"""At most a tenth of the examples is also decoded one by one."""

HEADINGS: Final = ("task", "model", "parameters", "metric", "value", "95 % interval", "one answer, ms")
OUR_DECODING: Final = """\
import sys, attendant
model = attendant.load(sys.argv[1], threads=1)
texts, size = sys.stdin.read().splitlines(), int(sys.argv[2])
for first in range(0, len(texts), size):
    for answer in model.generate(texts[first : first + size]):
        print(" ".join(answer.best.tokens))
"""
COUNT_PARAMETERS: Final = """\
import sys, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
parts = [state["model_state"]] if "model_state" in state else [state["model"], state["generator"]]
# Shared weights once; a table of positions is not learned.
learned = {value.data_ptr(): value for part in parts for name, value in part.items() if not name.endswith(".pe")}
print(sum(value.numel() for value in learned.values()))
"""


@dataclass(frozen=True)
class Entry:
    """A toolkit's model of a task, in a folder of its own.

    Attributes:
        task, peer: their tables in peers.toml, which describes the fields.
        name: the peer's name.
    """

    task_name: str
    task: dict[str, Any]
    name: str
    peer: dict[str, Any]

    @property
    def folder(self) -> Path:
        return ROOT / RUNS / "peers" / self.task_name / self.name

    @property
    def data(self) -> Path:
        """The task's data as all peers read them: files of symbols."""
        return self.folder.parent / "data"

    @cached_property
    def recipe(self) -> Recipe:
        return load_recipe(Path(self.task["recipe"]))

    @cached_property
    def bundle(self) -> Bundle:
        return open_bundle(ROOT / self.task["bundle"])

    @property
    def is_trained(self) -> bool:
        return (self.folder / "trained.json").exists()

    def python(self) -> str:
        """Returns the peer's interpreter. Raises UserError: its environment can't be made."""
        return str(ENVIRONMENTS[self.peer["environment"]].install(ROOT / ".benchmarks"))

    def last_checkpoint(self) -> Path:
        """Returns the newest checkpoint. Raises UserError: there is none."""
        paths = [path for path in self.folder.glob(f"model/{self.peer['checkpoints']}") if not path.is_symlink()]
        if not paths:
            raise UserError(f"{self.folder} has no checkpoint: remove the folder, and train it again")
        return max(paths, key=lambda path: path.stat().st_mtime)

    def command(self, step: str, **values: object) -> list[str]:
        """Writes the peer's configuration, and returns its command for `train` or `translate`."""
        data, evaluation, config = self.recipe.data, self.recipe.evaluation, self.folder / "config.yaml"
        values = self.task["values"] | values | {"task": self.task_name, "data": self.data, "config": config}
        values |= {"model": self.folder / "model", "start": ROOT / "benchmarks" / "start_opennmt.py"}
        values |= {"max_source": data.max_source_tokens, "max_target": data.max_target_tokens}
        values |= {"beam_size": evaluation.beam_size, "length_penalty": evaluation.length_penalty}
        template = (FOLDER / f"{self.name}.yaml").read_text(encoding="utf-8")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(Template(template).substitute(values), encoding="utf-8")
        return [self.python(), *(Template(argument).substitute(values) for argument in self.peer[step])]


Decode = Callable[[Entry, Sequence[Example], int], tuple[list[str], float]]
"""Decodes examples in batches of a size: returns a line of symbols per example, and processor seconds."""


def load_entries() -> list[Entry]:
    known = tomllib.loads((FOLDER / "peers.toml").read_text(encoding="utf-8"))
    return [
        Entry(task_name, task, name, known["peers"][name])
        for task_name, task in known["tasks"].items()
        for name in task["peers"]
    ]


def train_peers() -> None:
    """Trains each peer for each task that it has not learned yet.

    Raises:
        UserError: no data, no environment, or a training that failed.
        KeyboardInterrupt: Ctrl-C; the peer's training begins again the next time.
    """
    for entry in load_entries():
        if not entry.is_trained:
            fetch(entry.recipe.data, announce=print)
            write_data(entry)
            train_peer(entry)


def write_data(entry: Entry) -> None:
    """Writes training and validation pairs, and the vocabulary, if they do not exist yet."""
    if (entry.data / "words.txt").exists():
        return
    entry.data.mkdir(parents=True, exist_ok=True)
    recipe, sides = entry.recipe, (entry.bundle.source_tokenizer, entry.bundle.target_tokenizer)
    bounds = (recipe.data.max_source_tokens, recipe.data.max_target_tokens)
    validation = sample_evenly(group_references(_pairs(recipe, "validation")), recipe.validation.max_examples)
    for split, pairs in (
        ("train", _pairs(recipe, "train")),
        ("validation", [Pair(example.source, example.references[0]) for example in validation]),
    ):
        lines = [(symbols(sides[0], pair.source), symbols(sides[1], pair.target)) for pair in pairs]
        kept = [line for line in lines if all(0 < len(side) <= bound for side, bound in zip(line, bounds, strict=True))]
        for side, ending in enumerate(("src", "tgt")):
            text = "".join(f"{' '.join(line[side])}\n" for line in kept)
            (entry.data / f"{split}.{ending}").write_text(text, encoding="utf-8")
    # One list for both sides. The symbols that a side lacks stay untrained.
    words = dict.fromkeys(token for side in sides for token in side.tokens_of(range(4, side.vocabulary_size)))
    (entry.data / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def _pairs(recipe: Recipe, split: Split) -> Iterable[Pair]:
    files = recipe.data.files(split)
    assert files is not None
    return read_pairs(files)


def symbols(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens_of(tokenizer.encode(text))


def train_peer(entry: Entry) -> None:
    """Trains a peer from the beginning, and interrupts it when its processor time is over.

    Raises:
        UserError: the training ended before.
    """
    limit, spent = entry.task["processor_seconds"], 0.0
    print(f"{entry.folder}: {limit:,} processor seconds", flush=True)
    command = entry.command("train", load="null", decoding_batch=64)
    with (entry.folder / "training.log").open("wb") as log:
        # A session of its own: Ctrl-C reaches it from here alone.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            # SIGINT ends a peer, and background jobs and their children ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (there is one thread)
        )
        try:
            while process.poll() is None and spent < limit:
                time.sleep(POLL_SECONDS)
                with suppress(psutil.Error):
                    spent = cpu_seconds(tree(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAVING_SECONDS)
            process.kill()
            process.wait()
    if spent < limit:
        raise UserError(f"{entry.folder}: its training ended by itself; training.log says why")
    write_json(entry.folder / "trained.json", {"processor_seconds": spent})


def show_peers() -> None:
    """Decodes the test split, or a part of it, with every trained model, and writes the table. Raises UserError."""
    rows: list[list[str]] = []
    for entry in load_entries():
        fetch(entry.recipe.data, announce=print)
        tests = group_references(_pairs(entry.recipe, "test"))
        if entry.name == entry.task["peers"][0]:
            size = entry.bundle.manifest.model["num_parameters"]
            rows.append(_row(entry, "Attendant", size, tests, _decode_by_us))
        if entry.is_trained:
            num_tested, what = entry.task.get("tested", {}).get(entry.name), entry.peer["what"]
            if num_tested is not None:
                tests, what = sample_evenly(tests, num_tested), f"{what}; {num_tested:,} examples"
            (size,), _ = answers_of([entry.python(), "-c", COUNT_PARAMETERS, str(entry.last_checkpoint())], [])
            rows.append(_row(entry, what, int(size), tests, _decode_by_peer))
    write_table("peers", "table", HEADINGS, rows)


def _row(entry: Entry, what: str, num_parameters: int, examples: Sequence[Example], decode: Decode) -> list[str]:
    lines, _ = decode(entry, examples, BATCH_SIZE)
    texts = [entry.bundle.target_tokenizer.decode_tokens(line.split()) for line in lines]
    metric = entry.task["metric"]
    statistics = take_statistics(metric, texts, [example.references for example in examples])
    interval = interval_text(confidence_interval(statistics))
    # The difference of two decodings does not contain the time to start.
    num_alone = min(NUM_ALONE, len(examples) // ALONE_DIVISOR)
    alone = sample_evenly(examples, num_alone + 1)
    milliseconds = 1000 * (decode(entry, alone, 1)[1] - decode(entry, alone[:1], 1)[1]) / num_alone
    measured = metric, f"{statistics.value:.2f}", interval, f"{milliseconds:.1f}"
    return [entry.task["question"], what, f"{num_parameters:,}", *measured]


def _decode_by_us(entry: Entry, examples: Sequence[Example], batch_size: int) -> tuple[list[str], float]:
    command = [sys.executable, "-c", OUR_DECODING, str(ROOT / entry.task["bundle"]), str(batch_size)]
    return answers_of(command, [example.source for example in examples])


def _decode_by_peer(entry: Entry, examples: Sequence[Example], batch_size: int) -> tuple[list[str], float]:
    written = entry.folder / "answers.txt"
    written.unlink(missing_ok=True)
    values = {"load": entry.last_checkpoint(), "decoding_batch": batch_size, "answers": written}
    sources = [" ".join(symbols(entry.bundle.source_tokenizer, example.source)) for example in examples]
    printed, seconds = answers_of(entry.command("translate", **values), sources)
    lines = written.read_text(encoding="utf-8").split("\n")[:-1] if written.exists() else printed
    # Some peers print other lines before their answers.
    return lines[-len(examples) :], seconds


def answers_of(command: Sequence[str], lines: Sequence[str]) -> tuple[list[str], float]:
    """Returns the lines that a program prints for lines, and its processor seconds on one thread.

    Raises:
        UserError: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise UserError(f"{' '.join(command[:5])}: it failed: {process.stderr[-500:]}")
    return process.stdout.splitlines(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
