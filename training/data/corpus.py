"""Tokenized pairs, as flat arrays: two per side, whatever the number of pairs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from runtime.errors import UserError
from runtime.tokenizer import EOS_ID, UNK_ID, Tokenizer
from training.data.config import DataConfig
from training.data.pairs import Pair

CHUNK_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class TokenSequences:
    """Sequences of ids laid end to end.

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
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The pairs of one part as ids. Sources are as the encoder reads them, EOS included where it is appended;
    targets are without BOS and EOS.

    Attributes:
        num_too_long: pairs left out because a side was longer than the recipe allows.
    """

    sources: TokenSequences
    targets: TokenSequences
    num_too_long: int

    def __len__(self) -> int:
        return len(self.sources)


def encode_source(tokenizer: Tokenizer, texts: Sequence[str], *, append_eos: bool) -> list[list[int]]:
    """Source ids as the encoder reads them."""
    end = [EOS_ID] if append_eos else []
    return [ids + end for ids in tokenizer.encode_batch(texts)]


def encode_pairs(
    pairs: Iterable[Pair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: DataConfig,
    *,
    append_eos: bool,
) -> Corpus:
    """Tokenizes pairs and leaves out those that are too long.

    Raises:
        UserError: nothing is left.
    """
    sources: list[NDArray[np.int32]] = []
    targets: list[NDArray[np.int32]] = []
    num_pairs = 0
    for chunk in _chunks(pairs):
        num_pairs += len(chunk)
        source_ids = encode_source(source_tokenizer, [pair.source for pair in chunk], append_eos=append_eos)
        target_ids = target_tokenizer.encode_batch([pair.target for pair in chunk])
        for source, target in zip(source_ids, target_ids, strict=True):
            fits = len(source) - append_eos <= config.max_source_tokens and len(target) <= config.max_target_tokens
            # A text that a normalizer empties has nothing to attend to.
            if fits and source and target:
                sources.append(np.asarray(source, np.int32))
                targets.append(np.asarray(target, np.int32))
    if not sources:
        raise UserError(
            f"none of the {num_pairs} pairs has at most {config.max_source_tokens} source and "
            f"{config.max_target_tokens} target tokens: raise data.max_source_tokens or data.max_target_tokens"
        )
    return Corpus(TokenSequences.of(sources), TokenSequences.of(targets), num_pairs - len(sources))


def unknown_share(sequences: TokenSequences) -> float:
    """Which part of the tokens the vocabulary does not have."""
    return float(np.mean(sequences.ids == UNK_ID)) if len(sequences.ids) else 0.0


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK_PAIRS)):
        yield chunk
