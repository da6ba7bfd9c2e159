"""Vocabulary selection: each source has a list of target symbols, and a step looks at no others.

Shapes: B sources, R rows, L symbols of a list, U symbols of a batch's lists together, F frequent symbols,
N candidates of a source symbol, C bans of a row, V target vocabulary.

Every list has exactly L symbols, and what is computed of a source's list is computed over those L in their order: who
else is in the batch does not matter. The output layer is multiplied once, with the union of the batch's lists, and each
row takes its own out of it. What symbols a source is given is a matter of its symbols alone (Jean et al. 2015,
https://aclanthology.org/P15-1001; L'Hostis et al. 2016, https://arxiv.org/abs/1610.00072).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime import graph_io
from runtime.manifest import ShortlistSpec
from runtime.stepper import Ids, sources_with_rows
from runtime.tokenizer import PAD_ID

NOWHERE: Final = -1

UNION_MULTIPLE: Final = 64
MIN_UNION: Final = 128
"""Unions are filled up to these: few shapes, and none so small that the product takes another kernel."""

MIN_LIVE: Final = 0.75
"""Of the sources that a union was made of: with fewer left, making it anew costs less than what it has too much."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """What lists are made of.

    Attributes:
        frequent: [L] int32 distinct target ids: EOS, UNK, and then the most frequent ones.
        num_leading: F, how many of them come before what a source's own symbols suggest; the rest fill up.
        candidates: [source vocabulary, N] int32 target ids, the likeliest first; -1 behind the last.
        vocabulary_size: V.
    """

    frequent: NDArray[np.int32]
    num_leading: int
    candidates: NDArray[np.int32]
    vocabulary_size: int

    @property
    def size(self) -> int:
        """L."""
        return len(self.frequent)

    def lists(self, sources: Sequence[Sequence[int]]) -> Ids:
        """The target symbols [B, L] of each source of ids, ascending.

        In order of priority: the F frequent ones, the first candidates of all of its symbols, the second ones, and so
        on; then more frequent ones.
        """
        found = np.empty((len(sources), self.size), np.int64)
        places = np.empty(self.vocabulary_size, np.int64)
        leading = self.frequent[: self.num_leading]
        for row, source in zip(found, sources, strict=True):
            own = self.candidates[np.asarray(source, np.int64)].T.ravel()
            ids = np.concatenate([leading, own[own >= 0], self.frequent])
            # Written from behind, so that what stays of each symbol is the first of its places.
            order = np.arange(len(ids))
            places[ids[::-1]] = order[::-1]
            row[:] = np.sort(ids[places[ids] == order][: self.size])
        return found

    def to_bytes(self) -> bytes:
        """Little-endian int32: the frequent symbols, then the candidates row by row."""
        return self.frequent.astype("<i4").tobytes() + self.candidates.astype("<i4").tobytes()

    @classmethod
    def from_bytes(
        cls, content: bytes, spec: ShortlistSpec, source_vocabulary_size: int, target_vocabulary_size: int
    ) -> "Shortlist":
        """What `to_bytes` wrote. Raises ValueError where that is not what the manifest says."""
        values = np.frombuffer(content, "<i4").astype(np.int32) if len(content) % 4 == 0 else np.empty(0, np.int32)
        expected = spec.size + source_vocabulary_size * spec.num_candidates
        if len(values) != expected:
            raise ValueError(f"{len(content)} bytes, its sizes in the manifest make {4 * expected}")
        frequent, candidates = values[: spec.size], values[spec.size :]
        in_vocabulary = candidates.max(initial=-1) < target_vocabulary_size and candidates.min(initial=0) >= NOWHERE
        are_symbols = frequent.min() >= 0 and frequent.max() < target_vocabulary_size
        if not (in_vocabulary and are_symbols and len(np.unique(frequent)) == spec.size):
            raise ValueError(f"not {spec.size} distinct symbols and candidates of {target_vocabulary_size}")
        shape = source_vocabulary_size, spec.num_candidates
        return cls(frequent, spec.num_leading, candidates.reshape(shape), target_vocabulary_size)


class ShortlistLayout:
    """What a step graph is told of the lists of a batch's sources: the same from step to step, while they stay."""

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._lists: Ids = np.empty((0, 0), np.int64)
        self._row_sources: Ids = np.empty(0, np.int64)
        # [B] the sources that the union was made of.
        self._joined: NDArray[np.bool_] = np.empty(0, bool)
        self._symbols: Ids = np.empty(0, np.int64)
        self._union: Ids = self._symbols
        self._places: NDArray[np.int32] = np.empty((0, 0), np.int32)
        self._keys: Ids | None = None
        self._place_of = np.zeros(vocabulary_size, np.int32)

    def inputs(
        self, lists: Ids, row_sources: Ids, forced_ids: Ids | None, banned_ids: Ids | None
    ) -> Mapping[str, NDArray[Any]]:
        """A step's inputs in the place of forced and banned ids.

        Args:
            lists: [B, L] of the sources; the same array as before, if they are the same.
            row_sources: [R].
            forced_ids: [R] symbols whose log-probability is wanted, in the list or not; -1, or no array: none.
            banned_ids: [R, C] symbols that are taken out of the list; likewise.
        """
        self._update(lists, row_sources)
        num_rows, union = len(row_sources), self._union
        forced = outside = _nowhere(num_rows)
        banned = _nowhere((num_rows, 1))
        if banned_ids is not None:
            banned = self._places_in_lists(row_sources, banned_ids)
        if forced_ids is not None:
            forced = self._places_in_lists(row_sources, forced_ids[:, None])[:, 0]
            missing = (forced_ids >= 0) & (forced < 0)
            if missing.any():
                symbols = forced_ids[missing]
                if banned_ids is not None:
                    # The output layer makes PAD as impossible as a ban does.
                    symbols = np.where((banned_ids[missing] == symbols[:, None]).any(1), PAD_ID, symbols)
                outside = outside.copy()
                outside[missing] = len(self._symbols) + np.arange(len(symbols))
                union = _filled_up(np.concatenate([self._symbols, symbols]))
        return {
            graph_io.SHORTLIST_UNION: union,
            graph_io.SHORTLIST_PLACES: self._places,
            graph_io.FORCED_PLACES: forced,
            graph_io.OUTSIDE_PLACES: outside,
            graph_io.BANNED_PLACES: banned,
        }

    def _update(self, lists: Ids, row_sources: Ids) -> None:
        if lists is self._lists and row_sources is self._row_sources:
            return
        self._row_sources = row_sources
        live = sources_with_rows(row_sources, len(lists))
        if lists is self._lists and self._suits(live):
            return
        self._lists, self._joined, self._keys = lists, live, None
        chosen = np.zeros(self._vocabulary_size, bool)
        chosen[lists[live]] = True
        self._symbols = np.flatnonzero(chosen)
        self._union = _filled_up(self._symbols)
        # Of free places, too, which nothing reads: there the places of other unions may still stand.
        self._place_of[self._symbols] = np.arange(len(self._symbols), dtype=np.int32)
        self._places = self._place_of[lists]

    def _suits(self, live: NDArray[np.bool_]) -> bool:
        """Whether the union has the lists of these sources, and not too many others."""
        return bool(live.sum() >= MIN_LIVE * self._joined.sum()) and not (live & ~self._joined).any()

    def _places_in_lists(self, row_sources: Ids, ids: Ids) -> Ids:
        """[R, C] where symbols stand in the list of their row's source; -1: not there."""
        lists, size = self._lists, self._vocabulary_size
        if self._keys is None:
            # Lists are ascending, and so are these, from the first source's to the last's.
            self._keys = (lists + np.arange(len(lists))[:, None] * size).ravel()
        wanted = row_sources[:, None] * size + ids
        places = np.searchsorted(self._keys, wanted)
        found = (ids >= 0) & (self._keys[np.minimum(places, len(self._keys) - 1)] == wanted)
        return np.where(found, places - row_sources[:, None] * lists.shape[1], NOWHERE)


def _filled_up(symbols: Ids) -> Ids:
    """The symbols with any others behind them, up to a size that a product is made for."""
    size = max(MIN_UNION, -(-len(symbols) // UNION_MULTIPLE) * UNION_MULTIPLE)
    return np.pad(symbols, (0, size - len(symbols)))


def _nowhere(shape: int | tuple[int, int]) -> Ids:
    return np.full(shape, NOWHERE, np.int64)
