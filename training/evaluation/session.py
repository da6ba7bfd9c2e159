"""The models and the data of an evaluation: opens bundles, and reads examples.

A bundle is evaluated without PyTorch, with the loader and the graphs that serve. training/run/loading.py opens runs.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, Precision, Provider, search_of
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.errors import UserError
from attendant.runtime.files import path_of
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import (
    MOST_CHARACTERS,
    Example,
    InMemoryPairs,
    Pair,
    PairReader,
    group_references,
    in_chunks,
    is_measurable,
    no_pairs,
    pairs_in_memory,
    read_pairs,
)
from attendant.training.evaluation.evaluating import EvaluationConfig, TextModel
from attendant.training.evaluation.metrics import MetricName

RECIPE_NAME: Final = "recipe.toml"  # Every run directory has it.

PathName = str | os.PathLike[str]
Data = CorpusFiles | PathName | InMemoryPairs
"""Data to measure on: files, as the option --data names them (`CorpusFiles.named`), or pairs in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A run or a bundle, ready to decode.

    Attributes:
        config: the metrics and the search that apply unless the user chooses others.
        variant: further words for the protocol, e.g. "int8 on cpu" or "last checkpoint"; may be empty.
        max_beam_size: the widest beam. If None, there is no limit.
        checkpoint: "sha256:" and the digest of a run's weights, if they are measured alone; else empty.
    """

    path: Path
    model: TextModel
    config: EvaluationConfig
    variant: str
    max_beam_size: int | None
    checkpoint: str = ""

    @property
    def name(self) -> str:
        """The name in comparisons."""
        return ", ".join(filter(None, (str(self.path), self.variant)))


def is_bundle(path: Path) -> bool:
    """Returns True for a bundle and False for a run. Raises UserError: the directory is neither."""
    if (path / MANIFEST_NAME).is_file():
        return True
    if not (path / RECIPE_NAME).is_file():
        fault = "is neither a run (no recipe.toml) nor a bundle (no manifest.json)" if path.exists() else "is not there"
        raise UserError(f"{path} {fault}: give the directory that training or export has written")
    return False


def open_bundle_model(path: Path, precision: Precision | None = None, provider: Provider = "cpu") -> OpenedModel:
    """Opens a bundle as the server does; it is measured by the metrics and the search of its manifest.

    Args:
        precision: if None, the manifest's default on that provider.

    Raises:
        UserError: the bundle is refused, or lacks the precision; this host lacks the provider.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    precision = precision or default_precision(bundle, provider)
    measured = {entry.metric for entry in manifest.evaluation}
    metrics = tuple(metric for metric in get_args(MetricName) if metric in measured)
    config = search_of(manifest.decoding) | ({"metrics": metrics} if metrics else {})
    return OpenedModel(
        path=path,
        model=TextModel.of_bundle(
            bundle,
            OnnxStepper(bundle, precision, provider),
            manifest.decoding.max_length or manifest.limits.max_target_tokens,
        ),
        config=EvaluationConfig.model_validate(config),
        variant=f"{precision} on {provider}",
        max_beam_size=manifest.limits.max_beam_size,
    )


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """Examples, their name in protocols, and their files; none for pairs in memory."""

    name: str
    examples: list[Example]
    files: tuple[Path, ...] = ()


def read_data(data: Data, left_out: frozenset[str] = frozenset()) -> EvaluationData:
    """Reads the examples of files or of pairs in memory, one per source, with all its targets as references.

    Args:
        left_out: sources that are not measured; the name has their number.

    Raises:
        UserError: bad or no data.
    """
    if isinstance(data, str | os.PathLike):
        path_of("data", data)
        data = CorpusFiles.named(os.fspath(data))
    read = PairReader(data) if isinstance(data, CorpusFiles) else _whole_pairs(data)
    num_huge = 0

    def measurable() -> Iterator[Pair]:
        nonlocal num_huge
        for pair in read:
            if not is_measurable(pair):
                num_huge += 1
            elif pair.source not in left_out:
                yield pair

    examples = group_references(measurable())
    if not examples:
        raise no_pairs(data) if isinstance(data, CorpusFiles) else UserError("data: has no pairs that can be measured")
    if isinstance(read, PairReader):
        name = str(data)
    else:
        digest = hashlib.sha256(repr(examples).encode()).hexdigest()
        name = f"{len(read):,} pairs in memory ({digest[:8]})"
    without = f", without {len(left_out)} sources that the training split has too" if left_out else ""
    if num_huge:
        without += f", without {num_huge} pairs with a text of more than {MOST_CHARACTERS:,} characters"
    return EvaluationData(f"{name}{without}", examples, data.paths if isinstance(data, CorpusFiles) else ())


def _whole_pairs(data: InMemoryPairs) -> list[Pair]:
    """Returns pairs in memory. Raises UserError: an item is no pair, or has an empty side."""
    pairs = pairs_in_memory("data", data)
    for place, pair in enumerate(pairs):
        if not (pair.source and pair.target):
            raise UserError(f"data[{place}]: the {'target' if pair.source else 'source'} is empty: drop the pair")
    return pairs


def read_source_ids(files: CorpusFiles, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yields the ids of the files' sources, without EOS. Raises UserError: bad data."""
    for chunk in in_chunks(read_pairs(files)):
        yield from tokenizer.encode_batch([pair.source for pair in chunk])
