"""The interface between a model and all code that decodes with it.

Shapes: B sources (requests), R rows (live hypotheses of all requests), S source positions, M rows of one source,
K candidates, L layers, H hidden size.

Decoding never looks inside the state. State tensors have a scope: `row` (one entry per live hypothesis: cell states)
or `source` (one per request: memory, keys, mask). The rows of a beam share their source's tensors: `row_sources` maps
rows to sources, and the step graph receives this as two small index arrays (see `attention_layout`).
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
"""Sources are padded to a multiple of this number of positions: the sums over padded positions then have the same bits
for any length of the padding, so that an answer does not depend on the neighbours' lengths (tests/parity)."""

SOURCE_MASK = "source_mask"
"""The source tensor of our models that is True at the positions which attention may look at, [B, S]."""

NO_ID = -1  # No id: no symbol is forced, or banned.
MIN_QUERIES_PER_SOURCE = 2
"""A matrix product with one column takes another kernel, with other rounding, than one with several: a source with a
single row therefore queries its memory twice (tests/parity)."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The state of R rows over B sources. Only the stepper that made it reads its tensors.

    Attributes:
        row_tensors: name -> [R, ...], the stepper's own array type.
        source_tensors: name -> [B, S, ...]; empty for a model without attention.
        source_lengths: [B] valid positions of each source.
        row_sources: [R] the source that each row decodes. A source without rows has left: its place is free, and its
            content has no meaning.
        min_queries: the least number of queries per source; see `attention_layout`.
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
        """S, the width that every source is padded to."""
        return common_width(self.source_lengths)


class Taken(NamedTuple):
    """A state that its owner hands over to a stepper, which may then write to its arrays.

    Neither the state nor one that shares its arrays (from which `step` or `select` made it) is used again. A state that
    is not handed over is a value: nothing ever changes it.
    """

    state: DecoderState


class StepOutput(NamedTuple):
    """The results of a step on the host: never [R, V].

    If the step's state was handed over, the arrays are valid until the returned state is handed over, too.

    Attributes:
        candidate_ids: [R, K] the K most probable next symbols, most probable first; ties by the lower id.
        candidate_log_probs: [R, K] their log-probabilities, normalized over the vocabulary after the bans.
        forced_log_probs: [R] log-probability of `forced_ids`, after the bans; 0 for rows without one.
        attention: [R, S] attention weights over the padded source, zero on padding; None unless requested.
    """

    candidate_ids: Ids
    candidate_log_probs: Floats
    forced_log_probs: Floats
    attention: Floats | None


class Stepper(Protocol):
    """A model that can be decoded step by step. States are values, except those that are handed over: see `Taken`."""

    @property
    def vocabulary_size(self) -> int:
        """V, the target vocabulary, special symbols included."""

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        """Encodes B non-empty sources of ids; one row each, in order.

        Args:
            masked: places of each source that attention must not look at; the encoder reads them. If None, there are
                none. Only for models with the source tensor SOURCE_MASK.
        """

    def step(
        self,
        before: DecoderState | Taken,
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
            forced_ids: [R] symbols whose log-probability to return; -1 for none.
            banned_ids: [R, N] symbols removed from the distribution before it is normalized; -1 is padding.
            attention: return the attention weights, if the model has attention.
        """

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        """Returns the state of `rows` [R'] in that order: reorders, repeats, drops. A source without rows leaves."""

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        """Joins the rows of all states, in order; sources are padded to the widest.

        New sources are written into the buffers of the first state if it is handed over, where sources have left.
        """


def state_of(state: DecoderState | Taken) -> DecoderState:
    return state.state if isinstance(state, Taken) else state


def mask_positions(source_mask: Any, masked: Sequence[Sequence[int]]) -> None:
    """Sets these places of each source to False in a mask [B, S], an array or tensor."""
    for row, positions in zip(source_mask, masked, strict=False):
        if positions:
            row[list(positions)] = False


def same_ids(a: Ids, b: Ids) -> bool:
    """Returns whether two arrays [R] are equal. For few ids, comparing bytes takes a tenth of `np.array_equal`."""
    return a is b or a.tobytes() == b.tobytes()


def common_width(lengths: Ids) -> int:
    """Returns the width that sources of these lengths [B] are padded to."""
    return padded_width(int(lengths.max(initial=0)))


def padded_width(max_length: int, multiple: int = SOURCE_WIDTH_MULTIPLE) -> int:
    """Returns the width that sources of at most `max_length` positions are padded to."""
    return -(-max_length // multiple) * multiple


def pad_sources(
    sources: Sequence[Sequence[int]], pad_id: int, multiple: int = SOURCE_WIDTH_MULTIPLE
) -> tuple[Ids, Ids]:
    """Writes B sources into one array.

    Returns:
        source_ids [B, S] and source_lengths [B]; S is the longest, rounded up to a multiple of `multiple`.

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
    """Returns the layout of attention's queries, in which the rows of a source query their shared memory together.

    Attention is computed for M queries per source at once, [B, M, ...], so that memory is read once per source and
    never copied per row. A source with fewer rows repeats one of them; one without rows repeats any row.

    Args:
        row_sources: [R] the source of each row.
        num_sources: B.
        min_queries: the least M.

    Returns:
        source_rows [B, M]: the row that queries in each place; row_slots [R]: each row's place in the flattened
        [B * M].
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


class AttentionLayouts:
    """The layout of the last step, which stays the same until a request joins or leaves."""

    def __init__(self) -> None:
        nothing = np.empty(0, np.int64)
        # Replaced as a whole, because threads may share a stepper.
        self._last: tuple[tuple[Ids, int], tuple[Ids, Ids]] = (nothing, 0), (nothing, nothing)

    def of(self, state: DecoderState) -> tuple[Ids, Ids]:
        """Returns `attention_layout` of a state's rows; all states have the same `min_queries`."""
        (row_sources, num_sources), layout = self._last
        if num_sources != state.num_sources or not same_ids(row_sources, state.row_sources):
            layout = attention_layout(state.row_sources, state.num_sources, state.min_queries)
        self._last = (state.row_sources, state.num_sources), layout
        return layout


def sources_with_rows(row_sources: Ids, num_sources: int) -> NDArray[np.bool_]:
    """Returns which sources have rows [B]."""
    live = np.zeros(num_sources, bool)
    live[row_sources] = True
    return live


def select_sources(row_sources: Ids, num_sources: int, rows: Ids) -> tuple[Ids | None, Ids]:
    """Returns the sources that stay when only `rows` stay.

    Args:
        row_sources: [R] the source of each row before.
        rows: [R'] the rows that stay.

    Returns:
        kept [B']: the old indices of the sources that still have rows, ascending, or None if all stay; and the new
        row_sources [R'].
    """
    selected = row_sources[rows]
    alive = sources_with_rows(selected, num_sources)
    if alive.all():
        return None, selected
    renumbered = np.cumsum(alive) - 1
    return np.flatnonzero(alive), renumbered[selected]


def attention_cells(state: DecoderState) -> tuple[int, int]:
    """Returns the useful and the computed cells of a step's attention: row x source position, and the padded grid."""
    useful = int(state.source_lengths[state.row_sources].sum())
    widest = int(np.bincount(state.row_sources).max())
    queries = max(widest, state.min_queries)
    return useful, state.num_sources * queries * state.source_width
