"""The Stepper whose state and candidates stay on the device: ids go up, K candidates per row come down.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py), in a
step all rounded up to a bucket.

It decodes the same graphs as OnnxStepper and, on the CPU, to the same bits (tests/parity): there it is only tested.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.bundle import Bundle, BundleRefused
from attendant.runtime.bundle.manifest import GraphPair, Precision, Provider, TensorSpec
from attendant.runtime.device.state import (
    BufferSets,
    Captures,
    HeldTensors,
    StateScope,
    StepShape,
    bucket_count,
    bucket_width,
    power_of_two,
)
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import Binding, BoundSession, DeviceTensor, OnnxSession
from attendant.runtime.process import available_cpus
from attendant.runtime.stepper import (
    NO_ID,
    SOURCE_MASK,
    Array,
    AttentionLayouts,
    DecoderState,
    Ids,
    StepOutput,
    Taken,
    common_width,
    mask_positions,
    pad_sources,
    same_ids,
    select_sources,
    state_of,
)

log = logging.getLogger(__name__)

FIRST_REPLAY_TOLERANCE = 2e-2
"""Tolerance of a recording's first replay against the same step without one: two roundings of fp16."""

MAX_STEP_BYTES = 2**28
"""Limit of all steps' inputs and outputs, except the state."""

Sets = tuple[int | None, int | None, int | None, int | None]
"""The numbers of the sets of buffers: the step's own, the sources, the rows read, and the rows written."""


class UploadedIds:
    """An input of ids on the device, which is written only if they change."""

    def __init__(self, shape: tuple[int, ...], fill: int, provider: Provider) -> None:
        self.tensor = DeviceTensor(shape, "int64", provider)
        self._there = np.full(shape, fill, np.int64)
        self._fill = fill
        self.tensor.write(self._there)

    def write(self, ids: Ids | None) -> None:
        """Writes ids int64, at most as large as the tensor along each axis; fills the rest, or all for None."""
        wanted = np.full(self._there.shape, self._fill, np.int64)
        if ids is not None:
            wanted[tuple(slice(size) for size in ids.shape)] = ids
        if not np.array_equal(wanted, self._there):
            self._there = wanted
            self.tensor.write(wanted)


@dataclass(slots=True)
class StepBuffers:
    """The inputs and outputs of a step of one shape, except the state."""

    ids: dict[str, UploadedIds]
    host_inputs: dict[str, Array]
    outputs: dict[str, DeviceTensor]
    bindings: dict[Sets, Binding] = field(default_factory=dict)


class DeviceStep:
    """Runs the step's graph in fixed buffers, and records and replays it if possible."""

    def __init__(
        self,
        load: Callable[[bool], BoundSession],
        inputs: tuple[TensorSpec, ...],
        following: Mapping[str, str],
        provider: Provider,
        captures: Captures | None,
    ) -> None:
        """Loads the graph.

        Args:
            load: loads the session; if its argument is true, runs can be recorded.
            inputs: of the step graph.
            following: a row tensor's name -> the name of the step's output.
            captures: None to record nothing.
        """
        self._load = load
        self._inputs = {spec.name for spec in inputs}
        self._following = following
        self._provider: Provider = provider
        self._captures = captures
        self._checked: set[int] = set()
        self._thread = threading.get_ident()
        self._session = self._first_session()
        self._sets = self._new_sets()

    def run(
        self, shape: StepShape, ids: Mapping[str, Ids | None], sources: HeldTensors, rows: HeldTensors, to: HeldTensors
    ) -> dict[str, DeviceTensor]:
        """Runs one step from `rows` to `to`.

        Args:
            ids: the inputs of ids by name, of at most the shape's sizes.

        Returns:
            The outputs except the state; another step of the same shape overwrites them.
        """
        buffers, lease = self._sets.take(shape)
        for name, uploaded in buffers.ids.items():
            uploaded.write(ids[name])
        key = (lease.number, sources.number, rows.number, to.number)
        captures = None if None in key else self._captures
        if captures is not None and self._thread != threading.get_ident():
            # onnxruntime keeps recordings by thread.
            self._thread = threading.get_ident()
            self._checked.clear()
            captures.forget()
        number = None if captures is None else captures.number(key)
        binding = self._binding(buffers, key, sources, rows, to)
        if number is None or number in self._checked:
            self._session.run(binding, number)
            return buffers.outputs
        written = [*buffers.outputs.values(), *(to.tensors[name] for name in self._following)]
        if (reason := self._record(number, binding, written)) is None:
            self._checked.add(number)
            return buffers.outputs
        self._stop_recording(reason)
        return self.run(shape, ids, sources, rows, to)

    def _record(self, number: int, binding: Binding, written: Sequence[DeviceTensor]) -> str | None:
        """Records a step, which writes these tensors, and replays it; returns why the recording can't be used."""

        def floats() -> list[Array]:
            return [tensor.read() for tensor in written if tensor.dtype.startswith("float")]

        self._session.run(binding)
        expected = floats()
        try:
            self._session.run(binding, number)
            self._session.run(binding, number)
        # onnxruntime's exceptions have no common base of their own.
        except Exception as error:
            return str(error).partition("\n")[0][:300]
        tolerance = FIRST_REPLAY_TOLERANCE
        for replayed, plain in zip(floats(), expected, strict=True):
            if not np.allclose(replayed, plain, rtol=tolerance, atol=tolerance, equal_nan=True):
                return "a replay gave other values than the step that was recorded"
        return None

    def _stop_recording(self, reason: str) -> None:
        """Switches to a session that never recorded, and runs every step plainly."""
        log.warning("CUDA graphs are off: %s", reason)
        self._captures = None
        self._session = self._load(False)
        self._sets = self._new_sets()

    def _first_session(self) -> BoundSession:
        if self._captures is not None:
            try:
                return self._load(True)
            # If the cause is not the recording, loading without it raises again.
            except Exception as error:
                log.warning("CUDA graphs are off: %s", error)
                self._captures = None
        return self._load(False)

    def _binding(
        self, buffers: StepBuffers, key: Sets, sources: HeldTensors, rows: HeldTensors, to: HeldTensors
    ) -> Binding:
        if key in buffers.bindings:
            return buffers.bindings[key]
        inputs = {name: uploaded.tensor for name, uploaded in buffers.ids.items()}
        outputs = {**buffers.outputs, **{output: to.tensors[name] for name, output in self._following.items()}}
        binding = self._session.bind({**inputs, **sources.tensors, **rows.tensors}, outputs, buffers.host_inputs)
        if None not in key:
            buffers.bindings[key] = binding
        return binding

    def _new_sets(self) -> BufferSets[StepShape, StepBuffers]:
        return BufferSets(make=self._allocate, size=_bytes, max_bytes=MAX_STEP_BYTES, sets_per_shape=1)

    def _allocate(self, shape: StepShape) -> StepBuffers:
        shapes = {
            graph_io.PREVIOUS_IDS: ((shape.rows,), 0),
            graph_io.FORCED_IDS: ((shape.rows,), NO_ID),
            graph_io.BANNED_IDS: ((shape.rows, shape.bans), NO_ID),
            graph_io.SOURCE_ROWS: ((shape.sources, shape.queries), 0),
            graph_io.ROW_SLOTS: ((shape.rows,), 0),
        }
        provider = self._provider
        outputs = {
            graph_io.CANDIDATE_LOG_PROBS: DeviceTensor((shape.rows, shape.candidates), "float32", provider),
            graph_io.CANDIDATE_IDS: DeviceTensor((shape.rows, shape.candidates), "int64", provider),
            graph_io.FORCED_LOG_PROBS: DeviceTensor((shape.rows,), "float32", provider),
        }
        if graph_io.SOURCE_ROWS in self._inputs:
            outputs[graph_io.ATTENTION] = DeviceTensor((shape.rows, shape.width), "float32", provider)
        return StepBuffers(
            ids={
                name: UploadedIds(sizes, fill, provider)
                for name, (sizes, fill) in shapes.items()
                if name in self._inputs
            },
            host_inputs={graph_io.NUM_CANDIDATES: np.array([shape.candidates], np.int64)},
            outputs=outputs,
        )


def _bytes(shape: StepShape) -> int:
    """Returns the bytes of all inputs and outputs of a step, except the state."""
    per_row = 8 * (4 + shape.bans) + 12 * shape.candidates + 4 * shape.width
    return shape.rows * per_row + 8 * shape.sources * shape.queries


_DEVICE = threading.RLock()
"""While a step is recorded, no other thread may allocate or copy on the device: CUDA would abort the recording. Several
models in one process share one device, so they take turns."""


class DeviceStepper:
    """Decodes a bundle on a device. Threads may share it, each for states of its own: on CUDA they take turns."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision = "fp32",
        provider: Provider = "cuda",
        num_threads: int | None = None,
        *,
        cuda_graphs: bool = True,
        captures: Captures | None = None,
    ) -> None:
        """Loads the two graphs.

        Args:
            num_threads: for the few sizes that the CPU computes; if None, all CPUs of the quota.
            cuda_graphs: record and replay the steps of frequent shapes; if the graph can't be recorded, a line is
                logged, and steps run plainly.
            captures: the number and time of recordings; if None, the defaults of runtime/device/state.py.

        Raises:
            UserError: the bundle doesn't have the precision, or the host not the provider; or its sources must be
                encoded one by one.
            BundleRefused: the graphs' real inputs or outputs differ from the manifest; one line each.
        """
        graphs = bundle.graphs_in(precision)
        if graphs.encode_alone:
            raise UserError(
                f"{bundle.path}: its encoder depends on padding, so that sources are encoded one by one, which CUDA's "
                "stepper can't: take --provider cpu, or export a module that masks padding"
            )
        threads = num_threads or available_cpus()
        self.precision: Precision = precision
        self.provider: Provider = provider
        self._manifest = bundle.manifest
        self._min_queries = graphs.min_queries
        self._has_attention = graph_io.has_attention(graphs.decoder_step)
        self._layouts = AttentionLayouts()

        def load(cuda_graphs: bool) -> BoundSession:
            session = OnnxSession(
                bundle.path,
                graphs.decoder_step,
                provider=provider,
                num_threads=threads,
                cuda_graphs=cuda_graphs and provider == "cuda",
            )
            if differences := session.differences():
                raise BundleRefused(bundle.path, differences)
            return session.bound()

        with self._turn():
            encoder = OnnxSession(bundle.path, graphs.encoder, provider=provider, num_threads=threads)
            if differences := encoder.differences():
                raise BundleRefused(bundle.path, differences)
            self._encoder = encoder.bound()
            self._step = DeviceStep(
                load,
                graphs.decoder_step.inputs,
                {tensor.input: tensor.output for tensor in graphs.state if tensor.output is not None},
                provider,
                (Captures() if captures is None else captures) if cuda_graphs else None,
            )
            self._rows = _scope(graphs, "row", provider, threads)
            self._sources = _scope(graphs, "source", provider, threads)

    @property
    def vocabulary_size(self) -> int:
        return self._manifest.target.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        source_ids, source_lengths = pad_sources(sources, self._manifest.special_ids.pad)
        with self._turn():
            rows, shared = (scope.new(*source_ids.shape) for scope in (self._rows, self._sources))
            inputs = {graph_io.SOURCE_IDS: source_ids, graph_io.SOURCE_LENGTHS: source_lengths}
            self._encoder.run(self._encoder.bind({}, {**rows.tensors, **shared.tensors}, inputs))
            if masked is not None:
                source_mask = shared.tensors[SOURCE_MASK].read()
                mask_positions(source_mask, masked)
                shared.tensors[SOURCE_MASK].write(source_mask)
        return DecoderState(rows, shared, source_lengths, np.arange(len(sources), dtype=np.int64))

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
        num_rows, width = state.num_rows, state.source_width
        wanted = min(num_candidates, self.vocabulary_size)
        shape = self._shape(state, wanted, 0 if banned_ids is None else banned_ids.shape[1])
        ids = {
            graph_io.PREVIOUS_IDS: previous_ids,
            graph_io.FORCED_IDS: forced_ids,
            graph_io.BANNED_IDS: banned_ids,
        }
        if self._has_attention:
            ids[graph_io.SOURCE_ROWS], ids[graph_io.ROW_SLOTS] = self._layouts.of(state, shape.queries)
        with self._turn():
            held = self._rows.fitted(self._row_tensors(state), num_rows, width)
            shared = self._sources.fitted(self._held(state.source_tensors), state.num_sources, width)
            stepped = self._rows.take(num_rows, width)
            outputs = self._step.run(shape, ids, shared, held, stepped)
            output = StepOutput(
                candidate_ids=outputs[graph_io.CANDIDATE_IDS].read()[:num_rows, :wanted],
                candidate_log_probs=outputs[graph_io.CANDIDATE_LOG_PROBS].read()[:num_rows, :wanted],
                forced_log_probs=(
                    np.zeros(num_rows, np.float32)
                    if forced_ids is None
                    else outputs[graph_io.FORCED_LOG_PROBS].read()[:num_rows]
                ),
                attention=(
                    outputs[graph_io.ATTENTION].read()[:num_rows, :width] if attention and self._has_attention else None
                ),
            )
        return output, DecoderState(stepped, shared, state.source_lengths, state.row_sources)

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        """Returns the state of `rows` [R'] in that order, which shares unchanged tensors with the state before."""
        state = state_of(before)
        if same_ids(rows, np.arange(state.num_rows)):
            return state
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        lengths = state.source_lengths if kept is None else state.source_lengths[kept]
        width = common_width(lengths)
        with self._turn():
            held, shared = self._row_tensors(state), self._held(state.source_tensors)
            taken = self._rows.reordered([held], rows, width)
            if kept is not None:
                shared = self._sources.reordered([shared], kept, width)
        return DecoderState(taken, shared, lengths, row_sources)

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        joined = state_of(parts[0])
        for state in parts[1:]:
            joined = self._joined(joined, state_of(state))
        return joined

    def _joined(self, first: DecoderState, second: DecoderState) -> DecoderState:
        lengths = np.concatenate([first.source_lengths, second.source_lengths])
        width = common_width(lengths)
        with self._turn():
            rows = [self._row_tensors(state) for state in (first, second)]
            shared = [self._held(state.source_tensors) for state in (first, second)]
            row_indices = _indices_of_two(first.num_rows, rows[0].count, second.num_rows)
            source_indices = _indices_of_two(first.num_sources, shared[0].count, second.num_sources)
            return DecoderState(
                self._rows.reordered(rows, row_indices, width),
                self._sources.reordered(shared, source_indices, width),
                lengths,
                np.concatenate([first.row_sources, second.row_sources + first.num_sources]),
            )

    def _shape(self, state: DecoderState, num_candidates: int, num_bans: int) -> StepShape:
        queries = max(int(np.bincount(state.row_sources).max(initial=0)), self._min_queries)
        return StepShape(
            rows=bucket_count(state.num_rows),
            sources=bucket_count(state.num_sources),
            width=bucket_width(state.source_width),
            queries=power_of_two(queries),
            candidates=min(power_of_two(num_candidates), self.vocabulary_size),
            bans=power_of_two(num_bans),
        )

    def _row_tensors(self, state: DecoderState) -> HeldTensors:
        """Returns the state's rows on the device; copies them there if a caller made the state of arrays."""
        if isinstance(state.row_tensors, HeldTensors):
            return state.row_tensors
        return self._rows.of_arrays(state.row_tensors, state.source_width)

    def _held(self, tensors: Mapping[str, Any]) -> HeldTensors:
        assert isinstance(tensors, HeldTensors), "a state of another stepper"
        return tensors

    def _turn(self) -> contextlib.AbstractContextManager[object]:
        return _DEVICE if self.provider == "cuda" else contextlib.nullcontext()


def _scope(graphs: GraphPair, scope: str, provider: Provider, num_threads: int) -> StateScope:
    names = [tensor.input for tensor in graphs.state if tensor.scope == scope]
    specs = {spec.name: spec for spec in graphs.decoder_step.inputs}
    return StateScope([specs[name] for name in names], provider, num_threads)


def _indices_of_two(first: int, first_count: int, second: int) -> Ids:
    """Returns indices of `first` entries of a part with `first_count`, and of `second` entries of the next part."""
    return np.concatenate([np.arange(first), first_count + np.arange(second)]).astype(np.int64)
