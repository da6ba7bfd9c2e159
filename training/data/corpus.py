"""Tokenized pairs, as flat arrays: two per side, whatever the number of pairs."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer
from attendant.runtime.decoding.options import LENGTH_MARGIN
from attendant.runtime.errors import UserError
from attendant.training.data.config import DataConfig
from attendant.training.data.distillation import CorpusSoftTargets
from attendant.training.data.pairs import Pair, num_words
from attendant.training.data.tokenization import encode_source
from attendant.training.perplexity import num_words_and_end

Item = TypeVar("Item")

CHUNK_PAIRS = 10_000
COVERED_SHARE: Final = 0.999
MOST_COUNTED: Final = 10_000_000


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
        """From one list or array [length] of ids per sequence."""
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
    """The pairs of one split as ids. Sources are as the encoder reads them, EOS included where it is appended;
    targets are without BOS and EOS.

    Attributes:
        num_too_long: pairs left out because a side was longer than the recipe allows, or had no token.
        num_unequal: pairs left out because one side was too many times as long as the other.
        soft_targets: the teachers', at every target position; None: there are no teachers.
    """

    sources: TokenSequences
    targets: TokenSequences
    num_too_long: int
    num_unequal: int = 0
    soft_targets: CorpusSoftTargets | None = None

    def __len__(self) -> int:
        return len(self.sources)


class PairEncoder:
    """Tokenizes pairs and leaves out those that are too long, or of too unequal lengths.

    Attributes:
        num_too_long, num_unequal: left out so far.
        num_target_words: of what stayed, as perplexity counts them.
    """

    def __init__(
        self, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, config: DataConfig, *, append_eos: bool
    ) -> None:
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._config = config
        self._append_eos = append_eos
        self._most_characters = (
            source_tokenizer.max_characters(config.max_source_tokens),
            target_tokenizer.max_characters(config.max_target_tokens),
        )
        self.num_too_long = self.num_unequal = self.num_target_words = 0

    def encode(self, pairs: Iterable[Pair]) -> Iterator[tuple[list[int], list[int]]]:
        """The ids of source and target, pair by pair; no more than a chunk of them is in memory. Raises UserError: at
        the end, if nothing was left.
        """
        num_pairs = num_kept = 0
        for read in in_chunks(pairs):
            num_pairs += len(read)
            # A text of megabytes takes seconds to tokenize: its characters alone say that it is too long.
            chunk = [pair for pair in read if self._may_fit(pair)]
            self.num_too_long += len(read) - len(chunk)
            source_ids = encode_source(
                self._source_tokenizer, [pair.source for pair in chunk], append_eos=self._append_eos
            )
            target_ids = self._target_tokenizer.encode_batch([pair.target for pair in chunk])
            for pair, source, target in zip(chunk, source_ids, target_ids, strict=True):
                if self._stays(pair.source, len(source) - self._append_eos, len(target)):
                    num_kept += 1
                    self.num_target_words += num_words_and_end(pair.target)
                    yield source, target
        if not num_kept:
            config = self._config
            raise UserError(
                f"none of the {num_pairs} pairs has at most {config.max_source_tokens} source and "
                f"{config.max_target_tokens} target tokens"
                + (f" in at most {config.max_source_words} source words" if config.max_source_words else "")
                + (f" in a ratio of at most {config.max_length_ratio:g}" if config.max_length_ratio else "")
                + ": raise data.max_source_tokens or data.max_target_tokens"
                + (" or data.max_source_words" if config.max_source_words else "")
                + (" or data.max_length_ratio" if config.max_length_ratio else "")
            )

    def _may_fit(self, pair: Pair) -> bool:
        return len(pair.source) <= self._most_characters[0] and len(pair.target) <= self._most_characters[1]

    def _stays(self, source: str, source_length: int, target_length: int) -> bool:
        config = self._config
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
    """A corpus in memory. Raises UserError where the encoder leaves nothing."""
    both = list(encoder.encode(pairs))
    sources, targets = (TokenSequences.of(pair[side] for pair in both) for side in (0, 1))
    return Corpus(sources, targets, encoder.num_too_long, encoder.num_unequal)


def unknown_share(sequences: TokenSequences, ignored: Collection[int] = ()) -> float:
    """Returns the share of tokens that are UNK, in [0, 1]; of a large corpus, that of its beginning.

    Args:
        ignored: ids that don't count among the tokens.
    """
    ids = sequences.ids[:MOST_COUNTED]
    num_tokens = len(ids) - int(np.isin(ids, list(ignored)).sum())
    return int((ids == UNK_ID).sum()) / num_tokens if num_tokens else 0.0


def in_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Lists of CHUNK_PAIRS items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK_PAIRS)):
        yield chunk


def max_length_ratio(corpus: Corpus, *, append_eos: bool) -> float:
    """The ratio r of the bound `target tokens <= r * source tokens + LENGTH_MARGIN`, rounded up to two decimals.

    It is the smallest one that holds for 99.9 % of the pairs, but never below the mean ratio of all tokens: sources
    that are longer than any of the training split must not be cut below what is usual. The margin is any target's own:
    ratios of short texts scatter too widely to bound anything.

    Args:
        corpus: the training split, N > 0 pairs.
        append_eos: whether its sources end with EOS, which does not count.
    """
    sources = corpus.sources.lengths - append_eos
    targets = corpus.targets.lengths
    ratios = (targets - LENGTH_MARGIN) / sources
    covering = float(np.quantile(ratios, COVERED_SHARE, method="inverted_cdf"))
    mean = int(targets.sum()) / int(sources.sum())
    return math.ceil(100 * max(covering, mean)) / 100
