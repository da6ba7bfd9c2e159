"""Tokenized pairs as flat arrays, in memory or memory-mapped from disk, with the soft targets of teachers.

    <folder>/<key>/source_ids.bin, target_ids.bin            int32, sequences end to end
                   source_offsets.bin, target_offsets.bin    int64, the start of each sequence, and the end
                   corpus.json                               counts, and the survey of the files
    <folder>/<key>/symbols.bin                               int32 [P, K]: the teachers' most probable symbols
                   probabilities.bin                         float16 [P, K], each row's sum 1

A key is the digest of all that decides the content. A directory appears whole or not at all.

Shapes: P target positions of a corpus, EOS included; N positions of some of its pairs; K symbols of each position.
"""

import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.options import LENGTH_MARGIN
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder, reading_error, unless_there, write_json
from attendant.training.data.config import DataConfig, Split
from attendant.training.data.pairs import Pair, in_chunks, num_words, num_words_and_end
from attendant.training.data.tokenization import encode_source
from attendant.training.kernels.loss import SoftTargets
from attendant.training.table import Count, Table

SIDES: Final = ("source", "target")
RECORD_NAME: Final = "corpus.json"
SYMBOLS_FILE, PROBABILITIES_FILE = "symbols.bin", "probabilities.bin"


class DistillationConfig(Table):
    """`[distillation]`: learning from the distributions of other runs, symbol by symbol (Hinton et al. 2015; Kim and
    Rush 2016). Learning from their outputs needs no table: `attendant label` writes them as pairs.

    Attributes:
        teachers: run directories, whose best weights predict the distributions. With several, the mean of their
            probabilities is used. Their tokenizers are used, so `[source]` and `[target]` must be equal. They are
            evaluated once, before the training; --resume no longer needs them.
        weight: weight of the teachers' distribution in the target of the loss; the true symbols have the rest.
        top_k: number of a teacher's most probable symbols to store for each position, 6 bytes each. The others count as
            impossible.
    """

    teachers: tuple[str, ...] = ()
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    top_k: Count = 8

    @model_validator(mode="after")
    def nothing_without_teachers(self) -> Self:
        for name in ("weight", "top_k"):
            value = getattr(self, name)
            if not self.teachers and value != type(self).model_fields[name].default:
                raise ValueError(f"distillation.{name} = {value} means nothing without distillation.teachers")
        return self


@dataclass(frozen=True, slots=True)
class CorpusSoftTargets:
    """The teachers' distributions at every target position of a corpus.

    Attributes:
        symbols: [P, K] int32; probabilities: [P, K] float16.
        offsets: the start of each pair's targets, without EOS.
    """

    symbols: NDArray[np.int32]
    probabilities: NDArray[np.float16]
    offsets: NDArray[np.int64]
    weight: float

    def of(self, indices: NDArray[np.int64] | Sequence[int]) -> SoftTargets:
        """Returns the distributions at the N positions of these pairs, pair after pair, times the weight."""
        places = positions_of(self.offsets, indices)
        probabilities = torch.from_numpy(self.probabilities[places].astype(np.float32))
        return SoftTargets(torch.from_numpy(self.symbols[places].astype(np.int64)), probabilities * self.weight)


@dataclass(frozen=True, slots=True)
class TokenSequences:
    """Sequences of token ids, concatenated.

    Attributes:
        ids: [total] int32.
        offsets: [number of sequences + 1] int64; sequence i is ids[offsets[i]:offsets[i + 1]].
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | NDArray[np.int32]]) -> "TokenSequences":
        parts = [np.asarray(sequence, np.int32) for sequence in sequences]
        offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *parts]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[number of sequences] int64."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The pairs of one split as ids. Sources are as the encoder reads them, EOS included if it is appended; targets are
    without BOS and EOS.

    Attributes:
        num_too_long: pairs left out because a side was longer than the recipe allows, or had no token.
        num_unequal: pairs left out because one side was too many times as long as the other.
        soft_targets: the teachers', at every target position. If None, there are no teachers.
    """

    sources: TokenSequences
    targets: TokenSequences
    num_too_long: int
    num_unequal: int = 0
    soft_targets: CorpusSoftTargets | None = None

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(slots=True)
class PairEncoder:
    """Tokenizes pairs and leaves out those that are too long, or of too unequal lengths.

    Attributes:
        num_too_long, num_unequal: pairs left out so far.
        num_target_words: words of the targets that were kept, as perplexity counts them.
    """

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    config: DataConfig
    _: KW_ONLY
    append_eos: bool
    split: Split = "train"
    num_too_long: int = 0
    num_unequal: int = 0
    num_target_words: int = 0

    def encode(self, pairs: Iterable[Pair]) -> Iterator[tuple[list[int], list[int]]]:
        """Yields the ids of source and target, pair by pair; at most a chunk of them is in memory.

        Raises:
            UserError: no pair is left at the end.
        """
        config, num_pairs, num_kept = self.config, 0, 0
        max_source_characters = self.source_tokenizer.max_characters(config.max_source_tokens)
        max_target_characters = self.target_tokenizer.max_characters(config.max_target_tokens)
        for read in in_chunks(pairs):
            num_pairs += len(read)
            # A text of megabytes takes seconds to tokenize: its number of characters shows that it is too long.
            chunk = [
                pair
                for pair in read
                if len(pair.source) <= max_source_characters and len(pair.target) <= max_target_characters
            ]
            self.num_too_long += len(read) - len(chunk)
            sources = [pair.source for pair in chunk]
            source_ids = encode_source(self.source_tokenizer, sources, append_eos=self.append_eos)
            target_ids = self.target_tokenizer.encode_batch([pair.target for pair in chunk])
            for pair, source, target in zip(chunk, source_ids, target_ids, strict=True):
                if self._keeps(pair.source, len(source) - self.append_eos, len(target)):
                    num_kept += 1
                    self.num_target_words += num_words_and_end(pair.target)
                    yield source, target
        if not num_kept:
            limits = [f"1 to {config.max_source_tokens} source and 1 to {config.max_target_tokens} target tokens"]
            remedies = ["data.max_source_tokens", "data.max_target_tokens"]
            if config.max_source_words:
                limits.append(f"in at most {config.max_source_words} source words")
                remedies.append("data.max_source_words")
            if config.max_length_ratio:
                limits.append(f"in a ratio of at most {config.max_length_ratio:g}")
                remedies.append("data.max_length_ratio")
            raise UserError(
                f"none of the {num_pairs} pairs of data.{self.split} has {' '.join(limits)}: raise "
                f"{' or '.join(remedies)}"
            )

    def _keeps(self, source: str, source_length: int, target_length: int) -> bool:
        config = self.config
        shorter, longer = sorted((source_length, target_length))
        # A text that a normalizer empties has nothing to attend to.
        if (
            not shorter
            or source_length > config.max_source_tokens
            or target_length > config.max_target_tokens
            or (config.max_source_words is not None and num_words(source) > config.max_source_words)
        ):
            self.num_too_long += 1
            return False
        if config.max_length_ratio is not None and longer > config.max_length_ratio * shorter:
            self.num_unequal += 1
            return False
        return True


def encode_pairs(pairs: Iterable[Pair], encoder: PairEncoder) -> Corpus:
    """Returns a corpus in memory. Raises UserError: the encoder keeps no pair."""
    both = list(encoder.encode(pairs))
    sources, targets = (TokenSequences.of(pair[side] for pair in both) for side in (0, 1))
    return Corpus(sources, targets, encoder.num_too_long, encoder.num_unequal)


def max_length_ratio(corpus: Corpus, *, append_eos: bool) -> float:
    """Returns r of the bound `target tokens <= r * source tokens + LENGTH_MARGIN`, rounded up to two decimals.

    It is the smallest one that holds for every pair, so that no trained answer is cut, but never below the mean ratio
    of all tokens: sources that are longer than any of the training split must not be cut below the usual length. The
    margin is added to every target: ratios of short texts scatter too widely to bound anything.

    Args:
        corpus: the training split, N > 0 pairs.
        append_eos: its sources end with EOS, which does not count.
    """
    sources = corpus.sources.lengths - append_eos
    targets = corpus.targets.lengths
    largest = float(((targets - LENGTH_MARGIN) / sources).max())
    mean = int(targets.sum()) / int(sources.sum())
    return math.ceil(100 * max(largest, mean)) / 100


def open_stored(directory: Path) -> tuple[Corpus, dict[str, Any]] | None:
    """Returns the corpus of a directory and its survey; None if there is no such directory.

    Raises:
        UserError: files are missing or have another size than recorded.
    """
    if not directory.exists():
        return None
    try:
        record: dict[str, Any] = json.loads((directory / RECORD_NAME).read_text(encoding="utf-8"))
        sources, targets = (_mapped(directory, side, record["num_pairs"], record["num_tokens"][side]) for side in SIDES)
    except PermissionError as error:
        raise UserError(f"{error.filename}: can't be read: {reading_error(error)}") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{directory} is damaged ({error}): remove it, and it will be made again") from None
    return Corpus(sources, targets, record["num_too_long"], record["num_unequal"]), record["said"]


def _mapped(directory: Path, side: str, num_pairs: int, num_tokens: int) -> TokenSequences:
    ids, offsets = directory / f"{side}_ids.bin", directory / f"{side}_offsets.bin"
    for path, size in ((ids, 4 * num_tokens), (offsets, 8 * (num_pairs + 1))):
        if path.stat().st_size != size:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, expected {size}")
    # As plain arrays over the mapping: slices of an np.memmap cost several times as much.
    return TokenSequences(np.asarray(np.memmap(ids, np.int32, "r")), np.asarray(np.memmap(offsets, np.int64, "r")))


def store(directory: Path, pairs: Iterable[Pair], encoder: PairEncoder, survey: dict[str, Any]) -> None:
    """Tokenizes pairs into a directory, which appears whole or not at all.

    Args:
        survey: JSON values, which `open_stored` returns.

    Raises:
        UserError: the encoder keeps no pair; the disk is full.
    """
    lengths = {side: array("i") for side in SIDES}
    with new_folder(directory, put=unless_there) as folder:
        with (folder / "source_ids.bin").open("wb") as sources, (folder / "target_ids.bin").open("wb") as targets:
            for chunk in in_chunks(encoder.encode(pairs)):
                for place, (side, file) in enumerate(zip(SIDES, (sources, targets), strict=True)):
                    sequences: Sequence[list[int]] = [pair[place] for pair in chunk]
                    file.write(np.fromiter(chain.from_iterable(sequences), np.int32).data)
                    lengths[side].extend(map(len, sequences))
        counts = {side: np.frombuffer(lengths[side], np.int32) for side in SIDES}
        for side in SIDES:
            offsets = np.concatenate([[0], np.cumsum(counts[side], dtype=np.int64)]).astype(np.int64)
            (folder / f"{side}_offsets.bin").write_bytes(offsets.data)
        record = {
            "num_pairs": len(counts["source"]),
            "num_tokens": {side: int(counts[side].sum(dtype=np.int64)) for side in SIDES},
            "num_too_long": encoder.num_too_long,
            "num_unequal": encoder.num_unequal,
            "said": survey,
        }
        write_json(folder / RECORD_NAME, record)


def positions_of(offsets: NDArray[np.int64], indices: NDArray[np.int64] | Sequence[int]) -> NDArray[np.int64]:
    """Returns the places [N] int64 of pairs' positions among the P of their corpus; targets begin at `offsets`."""
    # Each earlier pair has one more position than symbols.
    return np.concatenate([np.arange(offsets[index], offsets[index + 1] + 1) + index for index in indices])


def open_soft_targets(folder: Path, offsets: NDArray[np.int64], config: DistillationConfig) -> CorpusSoftTargets | None:
    """Returns the soft targets in a folder; None if there is no such folder.

    Args:
        offsets: [number of pairs + 1] int64, the start of each pair's targets, without EOS.

    Raises:
        UserError: the folder's files don't fit this corpus.
    """
    if not folder.exists():
        return None
    shape = (int(offsets[-1]) + len(offsets) - 1, -1)
    try:
        symbols = np.asarray(np.memmap(folder / SYMBOLS_FILE, np.int32, "r")).reshape(shape)
        probabilities = np.asarray(np.memmap(folder / PROBABILITIES_FILE, np.float16, "r")).reshape(symbols.shape)
    except PermissionError as error:
        raise UserError(f"{error.filename}: can't be read: {reading_error(error)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}): remove it, and it will be made again") from None
    return CorpusSoftTargets(symbols, probabilities, offsets, config.weight)


def store_soft_targets(
    folder: Path,
    num_positions: int,
    num_symbols: int,
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]],
) -> None:
    """Writes soft targets into a folder, which appears whole or not at all.

    Args:
        num_positions: P; num_symbols: K.
        parts: positions [n], their symbols [n, K] and probabilities [n, K]; together every position once.

    Raises:
        CantWrite: the disk has too little room, before the first part is taken.
    """
    shape = (num_positions, num_symbols)
    with new_folder(folder, put=unless_there) as fresh:
        for name, num_bytes in ((SYMBOLS_FILE, 4), (PROBABILITIES_FILE, 2)):
            with (fresh / name).open("xb") as file:
                # A process that writes to a mapped file without room on the disk is killed.
                os.posix_fallocate(file.fileno(), 0, num_bytes * num_positions * num_symbols)
        symbols = np.memmap(fresh / SYMBOLS_FILE, np.int32, "r+", shape=shape)
        probabilities = np.memmap(fresh / PROBABILITIES_FILE, np.float16, "r+", shape=shape)
        for places, ids, values in parts:
            symbols[places], probabilities[places] = ids, values
        symbols.flush()
        probabilities.flush()
