"""A run directory: everything that a training leaves, and enough to repeat it.

Its files:

recipe.toml                  the recipe as resolved: every field, --set applied
versions.json                Python, torch, the project, its git commit, the processor, what multiplies float32
data.json                    files and their sha256, counts of pairs and examples, shares of unknown symbols,
                             how long targets are for their sources (training/data/corpus.py)
left_out.json                sources that validation and test lost to data.shared_sources, where there are any
start.json                   what it began with, where the recipe says so: {run, checkpoint, step} of another's weights,
                             {source_vectors: {file, sha256, num_symbols}, ...} of word vectors
teachers.json                the same of those whose distributions it learns from, where there are any: {runs: [...]}
corpus/                      the tokenized training split (training/data/corpus.py), and what its teachers say of it
                             (training/data/corpus.py); may be removed, and is made again
source_tokenizer.json, target_tokenizer.json
metrics.jsonl                a JSON object per line: {"event": "train" | "validation", "step", "epoch", ...}
tensorboard/                 the same, for TensorBoard
checkpoints/step-N/          model.safetensors, optimizer.safetensors, state.json (training/run/checkpoint.py)
checkpoints/best, last       links to two of them
evaluation.json              a list of {metric, value, protocol, num_examples, decoding}
report.html                  what `attendant report` shows of all this, where it was asked for
"""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.commit import commit
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json
from attendant.runtime.process import processor
from attendant.training.kernels.hardware import onednn_is_exact
from attendant.training.recipe import Recipe, load_recipe
from attendant_client.version import VERSION

Content = TypeVar("Content", dict[str, Any], list[Any])

FORMER_KEYS: Final = (("training", "r_drop"),)
"""What the recipes of earlier runs may say, of an option that is gone: table and key."""


@dataclass(frozen=True, slots=True)
class Run:
    """The paths in a run directory, and what its files hold."""

    path: Path

    @property
    def recipe_path(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def data_path(self) -> Path:
        return self.path / "data.json"

    @property
    def versions_path(self) -> Path:
        return self.path / "versions.json"

    @property
    def evaluation_path(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def left_out_path(self) -> Path:
        return self.path / "left_out.json"

    @property
    def start_path(self) -> Path:
        return self.path / "start.json"

    @property
    def teachers_path(self) -> Path:
        return self.path / "teachers.json"

    def left_out(self, split: str) -> frozenset[str]:
        """The sources that a held-out split lost to data.shared_sources."""
        if not self.left_out_path.exists():
            return frozenset()
        return frozenset(read_json(self.left_out_path, dict, split)[split])

    def tokenizer_path(self, side: str) -> Path:
        return self.path / f"{side}_tokenizer.json"

    def recipe(self) -> Recipe:
        """Raises UserError where the directory is no run."""
        if not self.recipe_path.is_file():
            raise UserError(f"{self.path} is not a run: it has no {self.recipe_path.name}")
        return load_recipe(self.recipe_path, ignored=FORMER_KEYS)

    def tokenizer(self, side: str) -> Tokenizer:
        """The tokenizer of "source" or "target". Raises UserError where it can't be read."""
        path = self.tokenizer_path(side)
        try:
            return Tokenizer.from_file(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: can't be read: {error}") from None

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Of source and target. Raises UserError where one can't be read."""
        return self.tokenizer("source"), self.tokenizer("target")

    def evaluations(self) -> list[dict[str, Any]]:
        """What was measured so far; empty where nothing was. Raises UserError where it can't be read."""
        if not self.evaluation_path.exists():
            return []
        return read_json(self.evaluation_path, list, "metric", "value", "protocol", "num_examples")

    def record_evaluations(self, measurements: Sequence[dict[str, Any]]) -> None:
        """Adds measurements; one of the same metric and protocol takes the older one's place.

        Raises:
            CantWrite: the disk is full, the place is read-only.
            UserError: what was measured so far can't be read.
        """
        new = {(entry["metric"], entry["protocol"]): entry for entry in measurements}
        kept = [entry for entry in self.evaluations() if (entry["metric"], entry["protocol"]) not in new]
        write_json(self.evaluation_path, [*kept, *new.values()])


def read_json(path: Path, kind: type[Content], *keys: str) -> Content:
    """The content of a run's JSON file: an object that has these keys, or an array of such.

    Raises:
        UserError: it can't be read, is of another kind, or lacks a key.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None
    if not isinstance(found, kind):
        raise UserError(f"{path}: can't be read: it is no JSON {'object' if kind is dict else 'array'}")
    for one in [found] if isinstance(found, dict) else found:
        for key in keys:
            if not isinstance(one, dict) or key not in one:
                raise UserError(f"{path}: can't be read: it lacks {key!r}")
    return found


def versions() -> dict[str, str]:
    """What this process runs on."""
    return {
        "attendant": VERSION,
        "commit": commit(),
        # Which library multiplies on a CPU depends on the hardware, and the last bits of all weights on the library.
        "float32_products": "onednn" if onednn_is_exact() else "torch",
        "platform": platform.platform(),
        "processor": processor(),
        "python": sys.version.split()[0],
        "tokenizers": version("tokenizers"),
        "torch": torch.__version__,
    }
