"""What trains: the toolkits' own commands, and the corpus that they train on."""

import random
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attendant_client.version import VERSION
from benchmarks.harness.environment import ENVIRONMENTS
from benchmarks.job import NUM_SPECIAL_SYMBOLS, word_of
from benchmarks.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A toolkit's training command: an entry of toolkits.toml.

    Attributes:
        differences: how its model and its work differ from the others'.
        template: the file of its configuration, beside this one; names after a dollar sign are filled in (speed.py).
        arguments: of its Python; `$config` is the configuration, `$folder` the training's folder.
        environment: which of environments.toml; empty: this Python's.
        progress: the file in the training's folder that gets the lines of progress; empty: the command's output.
        step_line: what a line of progress looks like, the step in its group; one comes every `window_steps`.
        parameters_line: where it says how many parameters there are.
    """

    name: str
    differences: str
    template: str
    arguments: Sequence[str]
    environment: str = ""
    progress: str = ""
    step_line: str
    parameters_line: str
    precisions: Sequence[str] = ("fp32",)

    @property
    def version(self) -> str:
        return ENVIRONMENTS[self.environment].version if self.environment else VERSION

    def python(self, cache: Path) -> str:
        """Its interpreter, from the environments in this folder. Raises Unavailable."""
        return str(ENVIRONMENTS[self.environment].install(cache)) if self.environment else sys.executable

    def last_step(self, progress: str) -> int:
        """The step of the last whole line of progress; -1: none yet."""
        steps = re.findall(self.step_line, progress.rpartition("\n")[0])
        return int(steps[-1]) if steps else -1

    def num_parameters(self, said: str) -> float:
        (number,) = re.findall(self.parameters_line, said)[:1]
        return float(number.replace(",", ""))


TOOLKITS = {
    name: Toolkit(**entry)
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""Attendant is the last one."""


def write_corpus(workload: Workload, folder: Path) -> Path:
    """Writes train.src, train.tgt, dev.src, dev.tgt, and words.txt, a word a line; returns the folder.

    Every sentence is equally long, so that no batch has padding. The same bytes for the same workload.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = [word_of(number) for number in range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size)]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    generator = random.Random(1)
    for part, num_batches in (("train", workload.num_batches), ("dev", 1)):
        # The target's end symbol is its last position.
        for ending, length in (("src", workload.num_tokens), ("tgt", workload.num_tokens - 1)):
            num_sentences = workload.batch_sentences * num_batches
            lines = (" ".join(generator.choices(words, k=length)) + "\n" for _ in range(num_sentences))
            (folder / f"{part}.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder
