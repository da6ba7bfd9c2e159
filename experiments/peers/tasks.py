"""Other toolkits' models beside ours: the same pairs, cut into the same symbols, and as much processor time."""

import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any, Final

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.config import Split
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import Example, Pair, group_references, read_pairs, sample_evenly
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.recipe import Recipe, load_recipe
from attendant.training.table import Count, Table
from benchmarks import ROOT
from benchmarks.harness import ENVIRONMENTS, Unavailable
from experiments.plan import RUNS

FOLDER: Final = Path(__file__).parent
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")
OUR_DECODING: Final = """\
import sys, attendant
model = attendant.load(sys.argv[1], threads=1)
texts, size = sys.stdin.read().splitlines(), int(sys.argv[2])
for first in range(0, len(texts), size):
    for answer in model.generate(texts[first : first + size]):
        print(" ".join(answer.best.tokens))
"""


class Peer(Table):
    """`[peers.NAME]`, beside NAME.yaml, its configuration. In commands, names after a dollar sign are filled in.

    Attributes:
        what: it is, in a table.
        environment: which of the benchmarks' environments.
        train: arguments of its Python.
        translate: the same; it reads sources, a line of symbols each, and prints answers or writes them to $answers.
        checkpoints: a pattern of the files that it can go on from; it is judged by the last.
    """

    what: str
    environment: str
    train: tuple[str, ...]
    translate: tuple[str, ...]
    checkpoints: str

    def python(self) -> str:
        """Its interpreter. Raises UserError: its environment can't be made."""
        try:
            return str(ENVIRONMENTS[self.environment].install(ROOT / ".benchmarks"))
        except Unavailable as reason:
            raise UserError(f"{self.what} can't be installed: {reason}") from None


class Task(Table):
    """`[tasks.NAME]`.

    Attributes:
        question: what is learned, in a table.
        recipe: of our training, in recipes/; its pairs and its search are everybody's.
        bundle: our model, exported; its tokenizers are everybody's.
        metric: of the table.
        peers: who learn the same.
        tested: of how many examples of the test split, evenly chosen, a peer decodes that is too slow for all of them.
        processor_seconds: what our training took, validation included, and what a peer's may take.
        values: what the peers' configurations name beside the rest.
    """

    question: str
    recipe: Path
    bundle: Path
    metric: TextMetricName
    peers: tuple[str, ...]
    tested: Mapping[str, Count] = {}
    processor_seconds: Count
    values: Mapping[str, str | int]


class Peers(Table):
    """`peers.toml`."""

    tasks: Mapping[str, Task]
    peers: Mapping[str, Peer]


def load_peers() -> Peers:
    return Peers.model_validate(tomllib.loads((FOLDER / "peers.toml").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Contest:
    """A task, with its data as the peers read them: files of symbols in a folder of its own."""

    name: str
    task: Task

    @property
    def folder(self) -> Path:
        return ROOT / RUNS / "peers" / self.name

    @cached_property
    def recipe(self) -> Recipe:
        """Its data is here. Raises UserError: it can't be fetched."""
        recipe = load_recipe(ROOT / self.task.recipe)
        fetch(recipe.data, announce=print)
        return recipe

    @cached_property
    def bundle(self) -> Bundle:
        return open_bundle(ROOT / self.task.bundle)

    def tests(self) -> list[Example]:
        return group_references(_pairs(self.recipe, "test"))

    def write_data(self) -> None:
        """Training and validation pairs, and the vocabulary, where they are not there yet."""
        data, recipe = self.folder / "data", self.recipe
        if (data / "words.txt").exists():
            return
        data.mkdir(parents=True, exist_ok=True)
        sides = self.bundle.source_tokenizer, self.bundle.target_tokenizer
        bounds = (recipe.data.max_source_tokens, recipe.data.max_target_tokens)
        for split in SPLITS:
            lines = [(symbols(sides[0], one.source), symbols(sides[1], one.target)) for one in _learned(recipe, split)]
            kept = [
                line for line in lines if all(0 < len(side) <= bound for side, bound in zip(line, bounds, strict=True))
            ]
            for side, ending in enumerate(("src", "tgt")):
                (data / f"{split}.{ending}").write_text(
                    "".join(f"{' '.join(line[side])}\n" for line in kept), encoding="utf-8"
                )
        # One list for both sides: of what a side does not have, it learns nothing.
        words = dict.fromkeys(token for side in sides for token in side.tokens_of(range(4, side.vocabulary_size)))
        (data / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")

    def filled(self, texts: Sequence[str], peer: str, **more: object) -> list[str]:
        """The texts with the names after dollar signs filled in."""
        recipe = self.recipe
        values: dict[str, Any] = {
            **self.task.values,
            "task": self.name,
            "data": self.folder / "data",
            "config": self.folder / peer / "config.yaml",
            "start": ROOT / "benchmarks" / "start_opennmt.py",
            "max_source": recipe.data.max_source_tokens,
            "max_target": recipe.data.max_target_tokens,
            "beam_size": recipe.evaluation.beam_size,
            "length_penalty": recipe.evaluation.length_penalty,
            **more,
        }
        return [Template(text).substitute(values) for text in texts]

    def configure(self, peer: str, **more: object) -> None:
        """Writes the peer's configuration."""
        config = self.folder / peer / "config.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        (text,) = self.filled([(FOLDER / f"{peer}.yaml").read_text(encoding="utf-8")], peer, **more)
        config.write_text(text, encoding="utf-8")


def contests() -> list[Contest]:
    return [Contest(name, task) for name, task in load_peers().tasks.items()]


def _pairs(recipe: Recipe, split: Split) -> Iterable[Pair]:
    files = recipe.data.files(split)
    assert files is not None
    return read_pairs(files)


def _learned(recipe: Recipe, split: Split) -> Iterable[Pair]:
    """All pairs to be learned; for validation as many sources as we take, with their first references."""
    pairs = _pairs(recipe, split)
    if split == "train":
        return pairs
    chosen = sample_evenly(group_references(pairs), recipe.validation.max_examples)
    return [Pair(one.source, one.references[0]) for one in chosen]


def symbols(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens_of(tokenizer.encode(text))


def answers_of(command: Sequence[str], lines: Sequence[str]) -> tuple[list[str], float]:
    """A program's lines for lines, on one thread, and the processor time in seconds. Raises UserError: it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise UserError(f"{' '.join(command[:5])}: it failed: {done.stderr[-500:]}")
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout.splitlines(), taken
