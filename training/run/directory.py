"""A run directory: everything that a training leaves, and enough to repeat it.

recipe.toml                  the recipe as resolved: every field, --set applied
versions.json                Python, torch, the project, its git commit, the processor, the library of float32 products
data.json                    files and their sha256, counts of pairs and examples, shares of unknown symbols, the ratio
                             of lengths (training/data/corpus.py)
left_out.json                sources that validation and test lost to data.shared_sources, if any
start.json                   the origin of the first weights, if the recipe names one: {run, checkpoint, step} of
                             another run, {source_vectors: {file, sha256, num_symbols}, ...} of word vectors
teachers.json                the same of the runs whose distributions it learns from, if any: {runs: [...]}
corpus/                      the tokenized training split and the teachers' soft targets (training/data/corpus.py); may
                             be removed, and is made again
pairs/                       the splits that were given as pairs in memory, if any, as JSONL
source_tokenizer.json, target_tokenizer.json
metrics.jsonl                a JSON object per line: {"event": "train" | "validation", "step", "epoch", ...}
tensorboard/                 the same, for TensorBoard
checkpoints/step-N/          model.safetensors, optimizer.safetensors, state.json (training/run/checkpoint.py)
checkpoints/best, last       links to two of them; copies may lack them
evaluation.json              a list of {metric, value, protocol, num_examples, decoding, checkpoint}
report.html                  the page of `attendant report`, if it was made
"""

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.commit import commit
from attendant.runtime.errors import UserError
from attendant.runtime.files import reading_error, taking_turns, translate_os_errors, write_json, write_text
from attendant.runtime.process import processor
from attendant.training.data.pairs import InMemoryPairs, pairs_in_memory
from attendant.training.kernels.hardware import onednn_is_exact
from attendant.training.recipe import Recipe, load_recipe
from attendant_client.version import VERSION

Content = TypeVar("Content", dict[str, Any], list[Any])


class Run:
    """The paths in a run directory, and the content of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_path = path / "recipe.toml"
        self.checkpoints = path / "checkpoints"
        self.metrics_path = path / "metrics.jsonl"
        self.data_path = path / "data.json"
        self.versions_path = path / "versions.json"
        self.evaluation_path = path / "evaluation.json"
        self.left_out_path = path / "left_out.json"
        self.start_path = path / "start.json"
        self.teachers_path = path / "teachers.json"
        self.pairs_path = path / "pairs"

    def left_out(self, split: str) -> frozenset[str]:
        """Returns the sources that a split lost to data.shared_sources; only held-out splits lose any."""
        if split == "train" or not self.left_out_path.exists():
            return frozenset()
        return frozenset(read_json(self.left_out_path, dict, split)[split])

    def keep_pairs(self, split: str, pairs: InMemoryPairs) -> dict[str, Any]:
        """Stores the pairs of a split as JSONL; returns the files as `CorpusFiles` takes them.

        Raises:
            UserError: an item is no pair of texts.
            CantWrite: the disk is full.
        """
        rows = pairs_in_memory(f"data.{split}", pairs)
        text = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in rows)
        # With its digest, no other file can have the name, wherever the run is read.
        path = self.pairs_path / f"{split}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        with translate_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        return {"pairs": [str(path)], "columns": ["source", "target"]}

    def recipe(self) -> Recipe:
        """Returns the run's recipe. Raises UserError: the directory is not a run."""
        if not self.recipe_path.is_file():
            if not self.path.exists():
                raise UserError(f"{self.path} is not there: give a run's folder")
            raise UserError(f"{self.path} is not a run: it has no {self.recipe_path.name}")
        return load_recipe(self.recipe_path)

    def tokenizer_path(self, side: str) -> Path:
        return self.path / f"{side}_tokenizer.json"

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Returns the tokenizers of source and target. Raises UserError: a tokenizer can't be read."""
        return self._tokenizer("source"), self._tokenizer("target")

    def _tokenizer(self, side: str) -> Tokenizer:
        path = self.tokenizer_path(side)
        try:
            return Tokenizer.from_file(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: can't be read: {reading_error(error)}") from None

    def evaluations(self, checkpoint: str | None = None) -> list[dict[str, Any]]:
        """Returns the recorded measurements, which may be none. Raises UserError: the file can't be read.

        Args:
            checkpoint: digest of weights, whose measurements are returned. If None, all are. Earlier versions did not
                record it.
        """
        if not self.evaluation_path.exists():
            return []
        entries = read_json(self.evaluation_path, list, "metric", "value", "protocol", "num_examples")
        return [entry for entry in entries if checkpoint in (None, entry.get("checkpoint", checkpoint))]

    def record_evaluations(self, measurements: Sequence[dict[str, Any]], checkpoint: str) -> None:
        """Adds measurements of weights; each takes the place of an older one of the same metric and protocol.

        Raises:
            CantWrite: the disk is full, or the directory is read-only.
            UserError: the recorded measurements can't be read.
        """
        new = [entry | {"checkpoint": checkpoint} for entry in measurements]
        # Several evaluations of a run may end at once. Not the folder: a training that records has locked it.
        with taking_turns(self.recipe_path):
            entries = {(entry["metric"], entry["protocol"]): entry for entry in (*self.evaluations(), *new)}
            write_json(self.evaluation_path, list(entries.values()))


def read_json(path: Path, kind: type[Content], *keys: str) -> Content:
    """Returns the content of a run's JSON file: an object that has these keys, or an array of such objects.

    Raises:
        UserError: it can't be read, is of another kind, or lacks a key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read: {reading_error(error)}") from None
    if not isinstance(content, kind):
        raise UserError(f"{path}: can't be read: it is no JSON {'object' if kind is dict else 'array'}")
    for entry in [content] if isinstance(content, dict) else content:
        for key in keys:
            if not isinstance(entry, dict) or key not in entry:
                raise UserError(f"{path}: can't be read: it lacks {key!r}")
    return content


def versions() -> dict[str, str]:
    """Returns the versions of the software and the hardware that this process runs on."""
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
