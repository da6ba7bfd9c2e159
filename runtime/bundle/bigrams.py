"""The pairs of neighbouring symbols in a model's training sources, as a Bloom filter (Bloom 1970): a set that takes a
few bits per member.

A member is always found. Another pair is taken for a member with a small probability, below 1 % as built here. The
bigrams of a source "a b" are those of BOS a b EOS, so the symbols that begin and end sources count.

The key of the bigram x y is x m + y modulo 2^64, with m = MULTIPLIER. It is mixed: k ^= k >> 32, k *= MIXER modulo
2^64, k ^= k >> 29. With its lower half a and its upper half b, probe i is the bit (a + i b) modulo the number of bits
(Kirsch and Mitzenmacher 2006). Bit j is bit j mod 8, from the lowest, of byte j div 8.

Shapes: N bigrams, P probes of each.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID

NUM_PROBES: Final = 5
BITS_PER_BIGRAM: Final = 10  # With five probes, 0.9 % of other bigrams are taken for members.
MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
MIXER: Final = np.uint64(0xBF58476D1CE4E5B9)
LOWER_HALF: Final = np.uint64(0xFFFFFFFF)
PROBES: Final = np.arange(NUM_PROBES, dtype=np.uint64)

SOURCES_AT_ONCE: Final = 50_000  # Bounds the memory of building a filter.
MAX_KEPT: Final = 16_384
"""Bigrams whose membership is kept, in 3 MB. Looking up a word's takes a tenth of computing it."""

Keys = NDArray[np.uint64]


class SeenBigrams:
    """The bigrams of training sources."""

    def __init__(self, content: bytes) -> None:
        """Takes the filter's bytes. Raises ValueError: there are none."""
        if not content:
            raise ValueError("the filter of bigrams is empty")
        self.content = content
        self._bits = np.frombuffer(content, np.uint8)
        self._is_member: dict[tuple[int, int], bool] = {}

    @classmethod
    def of_sources(cls, sources: Iterable[Sequence[int]]) -> "SeenBigrams":
        """Builds the filter of the bigrams of these sources, which are ids without EOS."""
        keys, remaining = np.empty(0, np.uint64), iter(sources)
        while some := list(islice(remaining, SOURCES_AT_ONCE)):
            joined = np.array([symbol for source in some for symbol in (BOS_ID, *source, EOS_ID)], np.uint64)
            # EOS BOS belongs to two sources.
            keys = np.union1d(keys, _keys(joined)[joined[1:] != BOS_ID])
        num_bytes = max(1, -(-BITS_PER_BIGRAM * len(keys) // 8))
        is_set = np.zeros(8 * num_bytes, np.bool_)
        is_set[_probes(keys, num_bytes).ravel()] = True
        return cls(np.packbits(is_set, bitorder="little").tobytes())

    def unseen_share(self, source_ids: Sequence[int]) -> float:
        """Returns the share of bigrams that no training source has, of ids without EOS. Threads may share a filter."""
        symbols = (BOS_ID, *source_ids, EOS_ID)
        bigrams = list(pairwise(symbols))
        try:
            are_members = list(map(self._is_member.__getitem__, bigrams))
        except KeyError:
            are_members = self._are_members(symbols)
            if len(self._is_member) > MAX_KEPT:
                self._is_member = {}  # not cleared: another thread may be reading it
            self._is_member.update(zip(bigrams, are_members, strict=True))
        return 1.0 - sum(are_members) / len(bigrams)

    def _are_members(self, symbols: Sequence[int]) -> list[bool]:
        """Returns whether each bigram of N + 1 symbols is a member [N]."""
        probes = _probes(_keys(np.array(symbols, np.uint64)), len(self._bits))
        is_set = self._bits[probes >> np.uint64(3)] >> (probes & np.uint64(7)).astype(np.uint8) & 1
        are_members: list[bool] = is_set.all(axis=1).tolist()
        return are_members


def _keys(symbols: Keys) -> Keys:
    """Returns [N] the mixed keys of the bigrams of N + 1 symbols."""
    keys = symbols[:-1] * MULTIPLIER + symbols[1:]
    keys = (keys ^ (keys >> np.uint64(32))) * MIXER
    return keys ^ (keys >> np.uint64(29))


def _probes(keys: Keys, num_bytes: int) -> Keys:
    """Returns [N, P] the bits of each key."""
    first, step = keys & LOWER_HALF, keys >> np.uint64(32)
    return (first[:, None] + PROBES * step[:, None]) % np.uint64(8 * num_bytes)
