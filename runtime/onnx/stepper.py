"""The Stepper that serves: the bundle's two graphs on ONNX Runtime.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py); of
buffers, N slots. State tensors are numpy arrays. Nothing here depends on the architecture: the manifest lists the
tensors, and the outputs that replace them. A beam reorders its rows at every step: into the same arrays each time, so
that bindings stay valid.

Memory and keys are most of a decoder's state, and never change. Each source has a slot. A source that leaves frees its
slot, and a new one is written into a free slot or into the spare room after the last. Computation over free slots is
wasted: when they, and positions beyond every source's length, exceed a part of all cells, the remaining sources are
moved together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.bundle import Bundle, BundleRefused
from attendant.runtime.bundle.graph_content import wide_factors
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.bundle.reading import Unfit
from attendant.runtime.errors import UserError
from attendant.runtime.files import reading_error
from attendant.runtime.onnx.session import ArrayPool, OnnxSession, Shape, step_inputs
from attendant.runtime.process import available_cpus
from attendant.runtime.stepper import (
    SOURCE_MASK,
    SOURCE_WIDTH_MULTIPLE,
    Array,
    AttentionLayouts,
    DecoderState,
    Ids,
    StepOutput,
    Taken,
    common_width,
    mask_positions,
    pad_sources,
    padded_width,
    same_ids,
    sources_with_rows,
    state_of,
)


def refuse_inexact(bundle: Bundle, precision: Precision) -> None:
    """Raises UserError if the int8 graphs of a bundle can't be read, or are not exact on every processor."""
    graphs = bundle.manifest.graphs
    if precision != "int8" or precision not in graphs:
        return
    try:
        factors = wide_factors(bundle.path, graphs[precision])
    except OSError as error:
        raise UserError(f"{error.filename}: can't be read: {reading_error(error)}") from error
    except Unfit as error:
        factors = [str(error)]
    if factors:
        remedy = "choose precision fp32, or export it again" if "fp32" in graphs else "export its run again"
        raise UserError(
            f"the int8 of the bundle {bundle.manifest.name} can't be computed exactly on every processor: it has codes "
            f"of 8 bits, whose products overflow in onnxruntime's kernels without VNNI; {remedy}"
        )


CALL_CELLS: Final = 64
"""Cost of another group, in cells (sources x positions). The encoder's call alone, which reads its weights again, takes
as long as some 25 cells; joining the groups takes time, too. Of 16, 32 and 64 this was fastest under load."""


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Divides B sources into groups of similar length, for the least total cost of encoding.

    Returns:
        A list per group, with the places of its sources. Sources of equal length share a group, and groups of shorter
        sources come first.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ends = [0, *(end for end in range(1, len(order)) if lengths[order[end - 1]] < lengths[order[end]]), len(order)]
    # Number of shortest sources -> the least cost of encoding them, and the beginning of the last group.
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for number, end in enumerate(ends[1:], 1):
        longest = lengths[order[end - 1]]
        best[end] = min((best[begin][0] + (end - begin) * longest + CALL_CELLS, begin) for begin in ends[:number])
    groups: list[list[int]] = []
    end = len(order)
    while end:
        begin = best[end][1]
        groups.insert(0, sorted(order[begin:end]))
        end = begin
    return groups


def width_multiple(lengths: Sequence[int]) -> int:
    """Returns the multiple to which the width of sources of these lengths is rounded up for encoding.

    An encoder's results at the valid positions have the same bits at any width (tests/parity). Widening them to
    SOURCE_WIDTH_MULTIPLE, which the steps need, takes time, so a narrower width has to save many cells.
    """
    longest = max(lengths)
    saved = len(lengths) * (padded_width(longest) - longest)
    return 1 if saved >= CALL_CELLS else SOURCE_WIDTH_MULTIPLE


CHANGING = (graph_io.PREVIOUS_IDS, graph_io.FORCED_IDS, graph_io.BANNED_IDS)  # Small inputs that are new at every step.


MAX_KEPT = 4
"""Sets of reordered rows: one for each of the batches that are stepped in turns, and some while their rows change in
number."""

MIN_USED = 0.75
"""Share of the cells (slots x positions): with less in use, moving together costs less than a few steps over the
waste."""

GROWTH = 1.5  # Slots of new arrays per source: room that was never written takes no memory.


class ReorderedRows(ArrayPool):
    """Sets of row tensors, each in use from a reordering until it is released."""

    def take(self, tensors: Mapping[str, Array], rows: Ids) -> Mapping[str, Array]:
        """Copies the rows [R'] of tensors [R, ...], none of which is in a released set, in that order."""
        shapes = [(len(rows), *tensor.shape[1:]) for tensor in tensors.values()]
        taken: Mapping[str, Array] | None = self._take(shapes)
        if taken is None:
            taken = {name: tensor.take(rows, axis=0) for name, tensor in tensors.items()}
            self._add(shapes, taken.values(), taken)
            return taken
        for name, tensor in tensors.items():
            # In any mode except "clip", numpy would write to another array first. All rows are in range.
            tensor.take(rows, axis=0, out=taken[name], mode="clip")
        return taken


class SourceBuffers:
    """Arrays [capacity, S, ...] of which the first `num_slots` are in use or free again.

    Attributes:
        lengths: [capacity] valid positions of each slot; a free slot keeps its last value.
        width: S.
    """

    def __init__(self, like: Mapping[str, Array], axes: Mapping[str, int | None], num_sources: int, width: int) -> None:
        """Allocates arrays with room for `num_sources` and more.

        Args:
            like: tensors of the same names, types and other sizes.
            axes: name -> the axis that runs over positions; None if there is none.
        """
        self._axes = axes
        self.width = width
        self.num_slots = 0
        self._num_shown, self._shown = -1, dict[str, Array]()
        capacity = int(num_sources * GROWTH)
        self.lengths: Ids = np.zeros(capacity, np.int64)
        self._buffers: dict[str, Array] = {}
        for name, tensor in like.items():
            shape = [capacity, *tensor.shape[1:]]
            if (axis := axes[name]) is not None:
                shape[axis] = width
            self._buffers[name] = np.empty(shape, tensor.dtype)

    def tensors(self) -> dict[str, Array]:
        """Returns the tensors by name [N, S, ...], not copied; the same arrays as before while N stays the same."""
        if self._num_shown != self.num_slots:
            self._num_shown = self.num_slots
            self._shown = {name: buffer[: self.num_slots] for name, buffer in self._buffers.items()}
        return self._shown

    def takes(self, num_free: int, lengths: Ids) -> bool:
        """Returns whether sources of these lengths [number of sources] fit if `num_free` slots are free."""
        num_needed = self.num_slots + len(lengths) - num_free
        return num_needed <= len(self.lengths) and int(lengths.max()) <= self.width

    def write(self, tensors: Mapping[str, Array], lengths: Ids, free: Ids) -> Ids:
        """Copies sources into free slots and after the last; returns their slots [number of sources].

        Positions that the tensors lack are set to zero, which for a mask is invalid.
        """
        num_new = max(0, len(lengths) - len(free))
        slots = np.concatenate([free[: len(lengths)], np.arange(self.num_slots, self.num_slots + num_new)])
        self.num_slots += num_new
        for name, tensor in tensors.items():
            buffer, axis = self._buffers[name], self._axes[name]
            if axis is None:
                buffer[slots] = tensor
                continue
            width = min(self.width, tensor.shape[axis])
            before: tuple[Any, ...] = (slots, *(slice(None),) * (axis - 1))
            buffer[(*before, slice(width))] = narrowed(tensor, axis, width)
            if width < self.width:
                buffer[(*before, slice(width, None))] = 0
        self.lengths[slots] = lengths
        return slots


def narrowed(tensor: Array, axis: int | None, width: int) -> Array:
    """Returns the first `width` positions of a tensor [N, ...], not copied; the whole tensor without such an axis."""
    return tensor if axis is None else tensor[(slice(None),) * axis + (slice(width),)]


def joined(tensors: Sequence[Array], axis: int | None, width: int) -> Array:
    """Joins the rows of all tensors [N, ...], at `width` source positions; new ones are zero, invalid for a mask."""
    if axis is None:
        return np.concatenate(tensors)
    ends = np.cumsum([len(tensor) for tensor in tensors]).tolist()
    return in_places(
        tensors, [slice(end - len(tensor), end) for tensor, end in zip(tensors, ends, strict=True)], axis, width
    )


def in_places(tensors: Sequence[Array], places: Sequence[slice | Sequence[int]], axis: int | None, width: int) -> Array:
    """Returns one tensor, in which the rows of each tensor [N, ...] have these places; pads as `joined` does.

    Args:
        places: each row of the result once; those of a single tensor are in order.
    """
    first, num_rows = tensors[0], sum(map(len, tensors))
    if len(tensors) == 1 and (axis is None or first.shape[axis] == width):
        return first
    shape = [num_rows, *first.shape[1:]]
    if axis is not None:
        shape[axis] = width
    rows = np.zeros(shape, first.dtype)
    for tensor, where in zip(tensors, places, strict=True):
        if axis is None:
            rows[where] = tensor
            continue
        kept = narrowed(tensor, axis, width)
        rows[(where, *(slice(None),) * (axis - 1), slice(kept.shape[axis]))] = kept
    return rows


@dataclass(frozen=True, slots=True)
class _BufferedState(DecoderState):
    """A state whose source tensors are the first slots of buffers; slots of sources without rows are free."""

    buffers: SourceBuffers = field(kw_only=True)

    @property
    def source_width(self) -> int:
        return self.buffers.width


class OnnxStepper:
    """Decodes a bundle. Threads may share it, each for states of its own."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision = "fp32",
        provider: Provider = "cpu",
        num_threads: int | None = None,
        open_session: Callable[..., OnnxSession] = OnnxSession,
    ) -> None:
        """Loads the two graphs.

        Args:
            num_threads: of each operator; if None, all CPUs that the container's quota grants. The two graphs run in
                turns, so this is the budget of both together.
            open_session: makes a session of the arguments of `OnnxSession`; another one may observe the runs.

        Raises:
            UserError: the bundle doesn't have the precision, the host not the provider, or the graphs are not exact on
                every processor.
            BundleRefused: the graphs' real inputs or outputs differ from the manifest; one line each.
        """
        graphs = bundle.graphs_in(precision)
        refuse_inexact(bundle, precision)
        threads = num_threads or available_cpus()
        self.precision: Precision = precision
        self.provider: Provider = provider
        self._manifest = bundle.manifest
        self._encoder = open_session(bundle.path, graphs.encoder, provider=provider, num_threads=threads)
        self._step = open_session(
            bundle.path, graphs.decoder_step, provider=provider, num_threads=threads, copied=CHANGING
        )
        if differences := [*self._encoder.differences(), *self._step.differences()]:
            raise BundleRefused(bundle.path, differences)
        self._row_names = [tensor.input for tensor in graphs.state if tensor.scope == "row"]
        self._source_names = [tensor.input for tensor in graphs.state if tensor.scope == "source"]
        self._min_queries, self._encodes_alone = graphs.min_queries, graphs.encode_alone
        self._next = {tensor.input: tensor.output for tensor in graphs.state if tensor.output is not None}
        state = {*self._row_names, *self._source_names}
        self._position_axes = {
            spec.name: graph_io.position_axis(spec) for spec in graphs.decoder_step.inputs if spec.name in state
        }
        self._has_attention = graph_io.has_attention(graphs.decoder_step)
        self._has_wide_rows = any(self._position_axes[name] is not None for name in self._row_names)
        self._reordered = ReorderedRows(MAX_KEPT)
        # The sizes of the last step and the shapes of its outputs, which are usually the next one's, too.
        self._last_shapes: tuple[tuple[int, int, int, bool], dict[str, Shape]] = (0, 0, 0, False), {}
        self._layouts = AttentionLayouts()

    @property
    def vocabulary_size(self) -> int:
        return self._manifest.target.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        lengths = np.array([len(source) for source in sources], np.int64)
        groups = [[place] for place in range(len(sources))] if self._encodes_alone else alike(lengths.tolist())
        parts = [self._encode([sources[place] for place in group]) for group in groups]

        def every(name: str) -> Array:
            of_groups = [part[name] for part in parts]
            return in_places(of_groups, groups, self._position_axes[name], common_width(lengths))

        source_tensors = {name: every(name) for name in self._source_names}
        if masked is not None:
            mask_positions(source_tensors[SOURCE_MASK], masked)
        return DecoderState(
            row_tensors={name: every(name) for name in self._row_names},
            source_tensors=source_tensors,
            source_lengths=lengths,
            row_sources=np.arange(len(sources), dtype=np.int64),
            min_queries=self._min_queries,
        )

    def _encode(self, sources: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Encodes sources in one call; returns the state's tensors by name."""
        multiple = 1 if self._encodes_alone else width_multiple([len(source) for source in sources])
        source_ids, source_lengths = pad_sources(sources, self._manifest.special_ids.pad, multiple)
        names = [*self._row_names, *self._source_names]
        values = self._encoder.run(names, {graph_io.SOURCE_IDS: source_ids, graph_io.SOURCE_LENGTHS: source_lengths})
        return dict(zip(names, values, strict=True))

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
        state = state_of(before)
        num_candidates = min(num_candidates, self.vocabulary_size)
        inputs: dict[str, Array] = {
            **state.row_tensors,
            **state.source_tensors,
            **step_inputs(state.num_rows, previous_ids, num_candidates, forced_ids, banned_ids),
        }
        wants_attention = attention and self._has_attention
        if self._has_attention:
            inputs[graph_io.SOURCE_ROWS], inputs[graph_io.ROW_SLOTS] = self._layouts.of(state)
        outputs = self._shapes_of(state, num_candidates, wants_attention)
        log_probs, ids, forced_log_probs, *others = self._step.run(outputs, inputs, in_place=isinstance(before, Taken))
        self._release(before)
        output = StepOutput(ids, log_probs, forced_log_probs, others[-1] if wants_attention else None)
        row_tensors = dict(state.row_tensors)
        row_tensors.update(zip(self._next, others, strict=False))
        return output, _with_rows(state, row_tensors, state.row_sources)

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        """Returns the state of `rows` [R'] in that order, which shares unchanged tensors with the state before.

        Slots of sources that leave stay free until they are taken, or too many are free.
        """
        state = state_of(before)
        num_rows = state.num_rows
        if len(rows) == num_rows and rows[-1] == num_rows - 1 and same_ids(rows, np.arange(num_rows)):
            return state
        row_sources = state.row_sources[rows]
        if same_ids(row_sources, state.row_sources):
            # Beams that reorder their own rows keep the same array, which is compared fast.
            row_sources = state.row_sources
        else:
            lengths = state.source_lengths[sources_with_rows(row_sources, state.num_sources)]
            num_used, num_cells = len(lengths) * common_width(lengths), state.num_sources * state.source_width
            if not len(rows) or num_used < MIN_USED * num_cells:
                compacted = self._compacted(state, rows)
                self._release(before)
                return compacted
        if isinstance(before, Taken) and len(rows) == num_rows:
            # Later states share the tensors that steps don't write.
            kept = {n: tensor.take(rows, axis=0) for n, tensor in state.row_tensors.items() if n not in self._next}
            changed = self._reordered.take({name: state.row_tensors[name] for name in self._next}, rows)
            row_tensors = {**kept, **changed}
        else:
            row_tensors = {name: tensor.take(rows, axis=0) for name, tensor in state.row_tensors.items()}
        self._release(before)
        return _with_rows(state, row_tensors, row_sources)

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        """Joins the rows of all states, in order; writes into the buffers of the first one if it was handed over."""
        states = [state_of(part) for part in parts]
        if len(states) == 1:
            return states[0]
        first, *others = states
        live = [sources_with_rows(state.row_sources, state.num_sources) for state in states]
        lengths = [state.source_lengths[mask] for state, mask in zip(states, live, strict=True)]
        joining = np.concatenate(lengths[1:])
        free = np.flatnonzero(~live[0])
        is_taken = isinstance(parts[0], Taken)
        if is_taken and isinstance(first, _BufferedState) and first.buffers.takes(len(free), joining):
            buffers, slots = first.buffers, [np.arange(first.num_sources)]
        else:
            every = np.concatenate(lengths)
            buffers = SourceBuffers(first.source_tensors, self._position_axes, len(every), common_width(every))
            slots, free = [self._write(buffers, first, live[0])], free[:0]
        for state, mask in zip(others, live[1:], strict=True):
            slots.append(self._write(buffers, state, mask, free))
            free = free[int(mask.sum()) :]
        row_tensors = {
            name: joined([state.row_tensors[name] for state in states], self._position_axes[name], buffers.width)
            for name in self._row_names
        }
        for part in parts:
            self._release(part)
        row_sources = [place[state.row_sources] for state, place in zip(states, slots, strict=True)]
        return self._over(buffers, row_tensors, np.concatenate(row_sources))

    def _compacted(self, state: DecoderState, rows: Ids) -> DecoderState:
        """Returns the state of `rows` without free slots, no wider than its longest source."""
        live = sources_with_rows(state.row_sources[rows], state.num_sources)
        width = common_width(state.source_lengths[live])
        buffers = SourceBuffers(state.source_tensors, self._position_axes, int(live.sum()), width)
        slots = self._write(buffers, state, live)
        row_tensors = {
            name: narrowed(tensor, self._position_axes[name], width).take(rows, axis=0)
            for name, tensor in state.row_tensors.items()
        }
        return self._over(buffers, row_tensors, slots[state.row_sources[rows]])

    def _over(self, buffers: SourceBuffers, row_tensors: Mapping[str, Array], row_sources: Ids) -> _BufferedState:
        """Returns a state of rows [R, ...] with their sources [R] over the present content of the buffers."""
        lengths = buffers.lengths[: buffers.num_slots].copy()
        return _BufferedState(row_tensors, buffers.tensors(), lengths, row_sources, self._min_queries, buffers=buffers)

    def _release(self, state: DecoderState | Taken) -> None:
        """Lets the next steps write to the row tensors of a state that was handed over."""
        if isinstance(state, Taken):
            # Any tensor of a run or a reordering identifies it.
            written = state.state.row_tensors[next(iter(self._next))]
            self._step.release(written)
            self._reordered.release(written)

    def _write(self, buffers: SourceBuffers, state: DecoderState, live: Array, free: Ids | None = None) -> Ids:
        """Writes a state's sources that have rows; returns the new slot of each [number of its sources]."""
        tensors = state.source_tensors
        if not live.all():
            tensors = {name: tensor[live] for name, tensor in tensors.items()}
        slots = np.zeros(state.num_sources, np.int64)
        slots[live] = buffers.write(
            tensors, state.source_lengths[live], np.empty(0, np.int64) if free is None else free
        )
        return slots

    def _shapes_of(self, state: DecoderState, num_candidates: int, attention: bool) -> Mapping[str, Shape]:
        """Returns the shapes of a step's outputs by name."""
        num_rows = state.num_rows
        width = state.source_width if attention or self._has_wide_rows else 0
        sizes = num_rows, num_candidates, width, attention
        last_sizes, shapes = self._last_shapes
        if sizes != last_sizes:
            candidates = num_rows, num_candidates
            shapes = {
                graph_io.CANDIDATE_LOG_PROBS: candidates,
                graph_io.CANDIDATE_IDS: candidates,
                graph_io.FORCED_LOG_PROBS: (num_rows,),
                **{output: state.row_tensors[name].shape for name, output in self._next.items()},
            }
            if attention:
                shapes[graph_io.ATTENTION] = num_rows, width
            self._last_shapes = sizes, shapes
        return shapes


def _with_rows(state: DecoderState, row_tensors: Mapping[str, Array], row_sources: Ids) -> DecoderState:
    """Returns the state with other rows [R, ...] and their sources [R]. Faster than `dataclasses.replace`."""
    stays = state.source_tensors, state.source_lengths, row_sources, state.min_queries
    if isinstance(state, _BufferedState):
        return _BufferedState(row_tensors, *stays, buffers=state.buffers)
    return DecoderState(row_tensors, *stays)
