"""The seam between a model and everything that decodes with it.

Shapes: B sources (requests), R rows (live hypotheses of all requests), S source positions, M rows of one source,
K candidates, L layers, H hidden size.

Decoding never looks inside the state. State tensors have a scope: `row` (one entry per live hypothesis: cell states)
or `source` (one per request: memory, keys, mask). The rows of a beam share their source's tensors: what ties them is
`row_sources`, and the step graph receives that tie as two small index arrays (see `attention_layout`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

SOURCE_WIDTH_MULTIPLE = 8
"""Sources are padded to a multiple of this many positions: the sums over padded positions then have the same bits
whatever the padding's length, so that an answer does not depend on the neighbours' lengths (tests/parity)."""

NO_ID = -1
"""In the place of an id: none is forced, none is banned."""

MIN_QUERIES_PER_SOURCE = 2
"""A matrix product with one column takes another kernel, with other rounding, than one with several: a source with a
single row therefore queries its memory twice (tests/parity)."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The state of R rows over B sources. Opaque to everything but the stepper that made it.

    Attributes:
        row_tensors: name -> [R, ...], the stepper's own array type.
        source_tensors: name -> [B, S, ...]; empty for a model without attention.
        source_lengths: [B] valid positions of each source.
        row_sources: [R] the source that each row decodes. A source without rows has left: its place is free, and what
            stands there means nothing.
        min_queries: with which each source queries its memory at least; see `attention_layout`.
    """

    row_tensors: Mapping[str, Any]
    source_tensors: Mapping[str, Any]
    source_lengths: Ids
    row_sources: Ids
    min_queries: int = MIN_QUERIES_PER_SOURCE

    @property
    def num_rows(self) -> int:
        return len(self.row_sources)

    @property
    def num_sources(self) -> int:
        return len(self.source_lengths)

    @property
    def source_width(self) -> int:
        """S, the positions that every source is padded to."""
        return common_width(self.source_lengths)


class Taken(NamedTuple):
    """A state that its holder gives away to a stepper, which may write to its arrays from then on.

    Neither the state nor any that shares its arrays (what it was made from by `step` and `select`) is used again. A
    state that is not given away is a value: nothing ever changes it.
    """

    state: DecoderState


class StepOutput(NamedTuple):
    """What a step leaves on the host: never [R, V].

    The arrays of a step whose state was given away hold until the state that the step returned is given away too.

    Attributes:
        candidate_ids: [R, K] the K most probable next symbols, most probable first; ties by the lower id.
        candidate_log_probs: [R, K] their log-probabilities, normalized over the vocabulary after the bans.
        forced_log_probs: [R] log-probability of `forced_ids`, after the bans; 0 where none was forced.
        attention: [R, S] attention weights over the padded source, zero on padding; None unless asked for.
    """

    candidate_ids: Ids
    candidate_log_probs: Floats
    forced_log_probs: Floats
    attention: Floats | None


class Stepper(Protocol):
    """A model that can be decoded step by step. States are values, but for those that are given away: see `Taken`."""

    @property
    def vocabulary_size(self) -> int:
        """V, the target vocabulary, special symbols included."""

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        """Encodes B non-empty sources of ids; one row each, in order."""

    def step(
        self,
        given: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        """Feeds each row its previous symbol and returns candidates for the next.

        Args:
            previous_ids: [R] the start symbol on a row's first step.
            num_candidates: K; clipped to V.
            forced_ids: [R] symbols whose log-probability is wanted; -1: none.
            banned_ids: [R, N] symbols taken out of the distribution before it is normalized; -1: padding.
            attention: the attention weights are wanted; a model without attention has none all the same.
        """

    def select(self, given: DecoderState | Taken, rows: Ids) -> DecoderState:
        """The state of `rows` [R'] in that order: reorders, repeats, drops. A source without rows leaves."""

    def concat(self, given: Sequence[DecoderState | Taken]) -> DecoderState:
        """The rows of all states, in order; sources are padded to the widest.

        Newcomers are written into the buffers of a first state that is given away, over sources that have left.
        """


def state_of(given: DecoderState | Taken) -> DecoderState:
    """The state, whether it was given away or not."""
    return given.state if isinstance(given, Taken) else given


def same_ids(one: Ids, other: Ids) -> bool:
    """Whether two arrays [R] are equal. Of few ids, comparing bytes takes a tenth of what `np.array_equal` does."""
    return one is other or one.tobytes() == other.tobytes()


def common_width(lengths: Ids) -> int:
    """What sources of these lengths [B] are padded to together."""
    return padded_width(int(lengths.max(initial=0)))


def padded_width(max_length: int, multiple: int = SOURCE_WIDTH_MULTIPLE) -> int:
    """The width that sources of at most `max_length` positions are padded to."""
    return -(-max_length // multiple) * multiple


def pad_sources(
    sources: Sequence[Sequence[int]], pad_id: int, multiple: int = SOURCE_WIDTH_MULTIPLE
) -> tuple[Ids, Ids]:
    """Lays B sources into one array.

    Returns:
        source_ids [B, S] and source_lengths [B]; S is the longest, or more, to be a multiple of this.

    Raises:
        ValueError: a source is empty: attention over nothing is undefined.
    """
    lengths = np.array([len(source) for source in sources], np.int64)
    if not len(lengths) or lengths.min() == 0:
        raise ValueError("every source needs at least one symbol")
    width = padded_width(int(lengths.max()), multiple)
    ids = np.full((len(sources), width), pad_id, np.int64)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids, lengths


def attention_layout(row_sources: Ids, num_sources: int, min_queries: int = MIN_QUERIES_PER_SOURCE) -> tuple[Ids, Ids]:
    """Where each row stands when the rows of a source query their shared memory together.

    Attention is computed for M queries per source at once, [B, M, ...], so that memory is read once per source and
    never copied per row. Sources with fewer rows than M repeat one of theirs; free places query with any row.

    Args:
        row_sources: [R] the source of each row.
        num_sources: B.
        min_queries: M, where no source has more rows.

    Returns:
        source_rows [B, M]: the row whose query stands in each place; row_slots [R]: each row's place in the
        flattened [B * M].
    """
    num_rows = len(row_sources)
    counts = np.bincount(row_sources, minlength=num_sources)
    width = max(int(counts.max(initial=0)), min_queries)
    if num_rows == np.count_nonzero(counts):
        source_rows = np.zeros((num_sources, width), np.int64)
        source_rows[row_sources] = np.arange(num_rows)[:, None]
        return source_rows, row_sources * width
    order = np.argsort(row_sources, kind="stable")
    starts = np.cumsum(counts) - counts
    places = np.empty(num_rows, np.int64)
    places[order] = np.arange(num_rows) - np.repeat(starts, counts)
    firsts = order[np.minimum(starts, num_rows - 1)]
    source_rows = firsts.repeat(width).reshape(num_sources, width)
    source_rows[row_sources, places] = np.arange(num_rows)
    return source_rows, row_sources * width + places


def sources_with_rows(row_sources: Ids, num_sources: int) -> NDArray[np.bool_]:
    """[B] which sources have rows."""
    live = np.zeros(num_sources, bool)
    live[row_sources] = True
    return live


def select_sources(row_sources: Ids, num_sources: int, rows: Ids) -> tuple[Ids | None, Ids]:
    """Which sources stay when only `rows` stay.

    Args:
        row_sources: [R] the source of each row before.
        rows: [R'] the rows that stay.

    Returns:
        kept [B'] the old indices of the sources that still have rows, ascending, or None where all stay;
        and the new row_sources [R'].
    """
    selected = row_sources[rows]
    alive = sources_with_rows(selected, num_sources)
    if alive.all():
        return None, selected
    renumbered = np.cumsum(alive) - 1
    return np.flatnonzero(alive), renumbered[selected]


def attention_cells(state: DecoderState) -> tuple[int, int]:
    """(useful, computed) cells of one step's attention: row x source position, against the padded grid."""
    useful = int(state.source_lengths[state.row_sources].sum())
    widest = int(np.bincount(state.row_sources).max())
    queries = max(widest, state.min_queries)
    return useful, state.num_sources * queries * state.source_width
