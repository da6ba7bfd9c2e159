"""The Stepper that serves: the bundle's two graphs on ONNX Runtime.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py).
State tensors are numpy arrays. Nothing here knows the architecture: which tensors there are, and what follows from
what, stands in the manifest.
"""

from collections.abc import Sequence

import numpy as np

from runtime import graph_io
from runtime.bundle import Bundle, BundleRefused
from runtime.cpu import available_cpus
from runtime.errors import UserError
from runtime.manifest import Precision, Provider
from runtime.onnx_session import Array, OnnxSession, as_input
from runtime.stepper import (
    DecoderState,
    Ids,
    StepOutput,
    attention_layout,
    pad_sources,
    padded_width,
    select_sources,
)

NO_ID = -1


class OnnxStepper:
    """Decodes a bundle. One thread at a time may use it; several steppers may share a bundle."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision = "fp32",
        provider: Provider = "cpu",
        num_threads: int | None = None,
    ) -> None:
        """Loads the two graphs.

        Args:
            num_threads: of each operator; None: all CPUs that the container's quota grants. The two graphs run in
                turns, so this is the budget of both together.

        Raises:
            UserError: the bundle has no such precision, or the host no such provider.
            BundleRefused: the graphs' real inputs or outputs differ from the manifest; one line each.
        """
        manifest = bundle.manifest
        if precision not in manifest.graphs:
            choices = ", ".join(sorted(manifest.graphs))
            raise UserError(f"precision {precision} is not in the bundle {manifest.name}; it has {choices}")
        graphs = manifest.graphs[precision]
        threads = num_threads or available_cpus()
        self.precision: Precision = precision
        self.provider: Provider = provider
        self._manifest = manifest
        self._encoder = OnnxSession(bundle.path, graphs.encoder, provider=provider, num_threads=threads)
        self._step = OnnxSession(bundle.path, graphs.decoder_step, provider=provider, num_threads=threads)
        if differences := [*self._encoder.differences(), *self._step.differences()]:
            raise BundleRefused(bundle.path, differences)
        self._row_names = [tensor.input for tensor in graphs.state if tensor.scope == "row"]
        self._source_names = [tensor.input for tensor in graphs.state if tensor.scope == "source"]
        self._min_queries = graphs.min_queries
        self._next = {tensor.input: tensor.output for tensor in graphs.state if tensor.output is not None}
        state = {*self._row_names, *self._source_names}
        self._position_axes = {
            spec.name: graph_io.position_axis(spec) for spec in graphs.decoder_step.inputs if spec.name in state
        }
        self._has_attention = any(spec.name == graph_io.SOURCE_ROWS for spec in graphs.decoder_step.inputs)

    @property
    def vocabulary_size(self) -> int:
        return self._manifest.target.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        source_ids, source_lengths = pad_sources(sources, self._manifest.special_ids.pad)
        names = [*self._row_names, *self._source_names]
        values = self._encoder.run(names, {graph_io.SOURCE_IDS: source_ids, graph_io.SOURCE_LENGTHS: source_lengths})
        tensors = dict(zip(names, values, strict=True))
        return DecoderState(
            row_tensors={name: tensors[name] for name in self._row_names},
            source_tensors={name: tensors[name] for name in self._source_names},
            source_lengths=source_lengths,
            row_sources=np.arange(len(sources), dtype=np.int64),
        )

    def step(
        self,
        state: DecoderState,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        num_rows = state.num_rows
        inputs: dict[str, Array] = {
            graph_io.PREVIOUS_IDS: as_input(previous_ids, np.int64),
            graph_io.FORCED_IDS: _or_none(forced_ids, (num_rows,)),
            graph_io.BANNED_IDS: _or_none(banned_ids, (num_rows, 1)),
            graph_io.NUM_CANDIDATES: np.array([min(num_candidates, self.vocabulary_size)], np.int64),
            **state.row_tensors,
            **state.source_tensors,
        }
        if self._has_attention:
            source_rows, row_slots = attention_layout(state.row_sources, state.num_sources, self._min_queries)
            inputs |= {graph_io.SOURCE_ROWS: source_rows, graph_io.ROW_SLOTS: row_slots}
        wants_attention = attention and self._has_attention
        names = [
            graph_io.CANDIDATE_LOG_PROBS,
            graph_io.CANDIDATE_IDS,
            graph_io.FORCED_LOG_PROBS,
            *self._next.values(),
            *([graph_io.ATTENTION] if wants_attention else []),
        ]
        outputs = dict(zip(names, self._step.run(names, inputs), strict=True))
        output = StepOutput(
            candidate_ids=outputs[graph_io.CANDIDATE_IDS],
            candidate_log_probs=outputs[graph_io.CANDIDATE_LOG_PROBS],
            forced_log_probs=outputs[graph_io.FORCED_LOG_PROBS],
            attention=outputs[graph_io.ATTENTION] if wants_attention else None,
        )
        stepped = {name: outputs[following] for name, following in self._next.items()}
        return output, DecoderState(
            row_tensors={**state.row_tensors, **stepped},
            source_tensors=state.source_tensors,
            source_lengths=state.source_lengths,
            row_sources=state.row_sources,
        )

    def select(self, state: DecoderState, rows: Ids) -> DecoderState:
        """The state of `rows` in that order. What stays as it is is shared with `state`, not copied."""
        if np.array_equal(rows, np.arange(state.num_rows)):
            return state
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        if kept is None:
            row_tensors = {name: tensor.take(rows, axis=0) for name, tensor in state.row_tensors.items()}
            return DecoderState(row_tensors, state.source_tensors, state.source_lengths, row_sources)
        # The widest source may have left: what is copied anyway is copied no wider than those that stay.
        lengths = state.source_lengths[kept]
        width = padded_width(int(lengths.max(initial=0)))
        return DecoderState(
            row_tensors={
                name: self._narrowed(name, tensor, width).take(rows, axis=0)
                for name, tensor in state.row_tensors.items()
            },
            source_tensors={
                name: self._narrowed(name, tensor, width).take(kept, axis=0)
                for name, tensor in state.source_tensors.items()
            },
            source_lengths=lengths,
            row_sources=row_sources,
        )

    def concat(self, states: Sequence[DecoderState]) -> DecoderState:
        if len(states) == 1:
            return states[0]
        lengths = np.concatenate([state.source_lengths for state in states])
        width = padded_width(int(lengths.max(initial=0)))
        offsets = np.cumsum([0, *(state.num_sources for state in states)])
        return DecoderState(
            row_tensors={
                name: self._joined(name, [state.row_tensors[name] for state in states], width)
                for name in self._row_names
            },
            source_tensors={
                name: self._joined(name, [state.source_tensors[name] for state in states], width)
                for name in self._source_names
            },
            source_lengths=lengths,
            row_sources=np.concatenate(
                [state.row_sources + offset for state, offset in zip(states, offsets, strict=False)]
            ),
        )

    def _narrowed(self, name: str, tensor: Array, width: int) -> Array:
        """The tensor's first `width` source positions, not copied; all of it where it has none."""
        axis = self._position_axes[name]
        return tensor if axis is None else tensor[(slice(None),) * axis + (slice(width),)]

    def _joined(self, name: str, tensors: Sequence[Array], width: int) -> Array:
        """The rows of all tensors, at `width` source positions; new ones are zero, which for a mask is invalid."""
        axis = self._position_axes[name]
        if axis is None:
            return np.concatenate(tensors)
        shape = list(tensors[0].shape)
        shape[0], shape[axis] = sum(len(tensor) for tensor in tensors), width
        joined = np.zeros(shape, tensors[0].dtype)
        begin = 0
        for tensor in tensors:
            place = self._narrowed(name, joined[begin : begin + len(tensor)], tensor.shape[axis])
            place[...] = self._narrowed(name, tensor, width)
            begin += len(tensor)
        return joined


def _or_none(ids: Ids | None, shape: tuple[int, ...]) -> Array:
    return np.full(shape, NO_ID, np.int64) if ids is None else as_input(ids, np.int64)
