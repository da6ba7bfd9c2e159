"""The stepper whose state stays on a CUDA device: ids go up, K candidates per row come down (docs/cuda.md).

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py).

It decodes the same graphs as OnnxStepper and, on the CPU, to the same bits (tests/parity): there it is only tested.

States are reordered and joined on the device. The server has no ONNX library, and no bundle needs to carry the graphs
for it: they are written here in ONNX's own wire format (https://protobuf.dev/programming-guides/encoding/, field
numbers of onnx/onnx.proto). For each state tensor:

    select:  [N, S, ...] -> Slice to `width` positions -> Gather `rows`
    join:    each part [N, S, ...] -> Pad by `pads` -> Concat

Slice and Pad are only for tensors with an axis of positions. One session serves every shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.bundle import Bundle, BundleRefused
from attendant.runtime.bundle.graph_content import message_field, number_field, text_field
from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, Precision, Provider, TensorSpec
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import BoundSession, OnnxSession, step_inputs
from attendant.runtime.process import available_cpus
from attendant.runtime.stepper import (
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

ROWS, WIDTH = "rows", "width"
IR_VERSION: Final = 10
OPSET: Final = 20

FLOAT, BOOL, UINT8, INT64, FLOAT16 = 1, 9, 2, 7, 10
ELEMENTS: Final = {"float32": FLOAT, "float16": FLOAT16, "bool": BOOL, "int64": INT64, "uint8": UINT8}
"""numpy's name -> TensorProto.DataType."""

INTEGER_ATTRIBUTE: Final = 2  # AttributeProto.AttributeType.INT.


def part_name(name: str, part: int) -> str:
    return f"{name}.{part}"


def pads_name(rank: int, axis: int, part: int) -> str:
    """Returns the name of the zeros before and after each axis of a part's tensors [2 * rank], as Pad takes them."""
    return f"pads.{rank}.{axis}.{part}"


def select_graph(specs: Sequence[TensorSpec]) -> bytes:
    """Returns an ONNX model with the inputs `rows`, `width` and the tensors, and the outputs of part_name(name, 0)."""
    inputs, nodes, constants = [_value(ROWS, INT64, 1)], list[bytes](), dict[str, bytes]()
    for spec in specs:
        name, axis = spec.name, position_axis(spec)
        inputs.append(_value(name, ELEMENTS[spec.dtype], len(spec.shape)))
        if axis is not None:
            constants |= {"zero": _constant("zero", 0), f"axis.{axis}": _constant(f"axis.{axis}", axis)}
            nodes.append(_node("Slice", [name, "zero", WIDTH, f"axis.{axis}"], f"{name}.cut"))
            name = f"{name}.cut"
        nodes.append(_node("Gather", [name, ROWS], part_name(spec.name, 0), axis=0))
    inputs += [_value(WIDTH, INT64, 1)] if constants else []
    outputs = [_value(part_name(spec.name, 0), ELEMENTS[spec.dtype], len(spec.shape)) for spec in specs]
    return _model(nodes, list(constants.values()), inputs, outputs)


def join_graph(specs: Sequence[TensorSpec]) -> bytes:
    """Returns an ONNX model whose inputs are two parts of each tensor and their `pads`, and whose outputs join them."""
    inputs, nodes = dict[str, bytes](), list[bytes]()
    for spec in specs:
        rank, axis = len(spec.shape), position_axis(spec)
        parts = [part_name(spec.name, part) for part in range(2)]
        for part, name in enumerate(parts):
            inputs[name] = _value(name, ELEMENTS[spec.dtype], rank)
            if axis is not None:
                pads = pads_name(rank, axis, part)
                inputs[pads] = _value(pads, INT64, 1)
                nodes.append(_node("Pad", [name, pads], f"{name}.padded"))
                parts[part] = f"{name}.padded"
        nodes.append(_node("Concat", parts, spec.name, axis=0))
    outputs = [_value(spec.name, ELEMENTS[spec.dtype], len(spec.shape)) for spec in specs]
    return _model(nodes, [], list(inputs.values()), outputs)


def _model(
    nodes: Sequence[bytes], constants: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]
) -> bytes:
    graph = b"".join(
        [
            *(message_field(1, node) for node in nodes),
            text_field(2, "reordering"),
            *(message_field(5, constant) for constant in constants),
            *(message_field(11, value) for value in inputs),
            *(message_field(12, value) for value in outputs),
        ]
    )
    opset = message_field(8, text_field(1, "") + number_field(2, OPSET))
    return number_field(1, IR_VERSION) + message_field(7, graph) + opset


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> bytes:
    """Returns a NodeProto: input 1, output 2, name 3, op_type 4, attribute 5."""
    described = [
        message_field(5, text_field(1, name) + number_field(3, value) + number_field(20, INTEGER_ATTRIBUTE))
        for name, value in attributes.items()
    ]
    named = [text_field(2, output), text_field(3, output), text_field(4, operator)]
    return b"".join([*(text_field(1, name) for name in inputs), *named, *described])


def _constant(name: str, value: int) -> bytes:
    """Returns a TensorProto of one int64: dims 1, data_type 2, int64_data 7, name 8."""
    return number_field(1, 1) + number_field(2, INT64) + number_field(7, value) + text_field(8, name)


def _value(name: str, element: int, rank: int) -> bytes:
    """Returns a ValueInfoProto: name 1, type 2 {tensor_type 1 {elem_type 1, shape 2 {dim 1, each without a size}}}."""
    shape = b"".join(message_field(1, b"") for _ in range(rank))
    return text_field(1, name) + message_field(2, message_field(1, number_field(1, element) + message_field(2, shape)))


class DeviceTensors(Mapping[str, Array]):
    """The tensors of one scope on the device, at S = `width`; as a mapping, it copies them to the host."""

    def __init__(self, values: Mapping[str, Any], width: int) -> None:
        self.values_by_name = values
        self.width = width

    def __getitem__(self, name: str) -> Array:
        return np.array(self.values_by_name[name].numpy())

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


class StateScope:
    """The state tensors of one scope: reorders and joins them on the device."""

    def __init__(self, specs: Sequence[TensorSpec], provider: Provider, num_threads: int) -> None:
        """Specs of the step's inputs, whose first axis is N; there may be none."""
        self.names = [spec.name for spec in specs]
        self._axes = {(len(spec.shape), axis) for spec in specs if (axis := position_axis(spec)) is not None}
        if specs:
            # Loaded now and not when first needed: loading a session captures standard error.
            how: dict[str, Any] = {"provider": provider, "num_threads": num_threads}
            self._selecting = BoundSession.of_bytes("reordering", select_graph(specs), **how)
            self._joining = BoundSession.of_bytes("joining", join_graph(specs), **how)

    def select(self, tensors: DeviceTensors, rows: Ids, width: int) -> DeviceTensors:
        """Returns the entries `rows` [N'] at the first `width` positions."""
        if not self.names:
            return tensors
        inputs: dict[str, Any] = {**tensors.values_by_name, ROWS: np.ascontiguousarray(rows, np.int64)}
        if self._axes:
            inputs[WIDTH] = np.array([width], np.int64)
        results = self._selecting.run(inputs, [part_name(name, 0) for name in self.names])
        return DeviceTensors(dict(zip(self.names, results, strict=True)), width)

    def join(self, parts: Sequence[DeviceTensors], width: int) -> DeviceTensors:
        """Returns the entries of two parts, padded by zeros to `width` positions."""
        if not self.names:
            return parts[0]
        inputs: dict[str, Any] = {}
        for number, part in enumerate(parts):
            inputs |= {part_name(name, number): value for name, value in part.values_by_name.items()}
            for rank, axis in self._axes:
                pads = np.zeros(2 * rank, np.int64)
                pads[rank + axis] = width - part.width
                inputs[pads_name(rank, axis, number)] = pads
        return DeviceTensors(dict(zip(self.names, self._joining.run(inputs, self.names), strict=True)), width)


class DeviceStepper:
    """Decodes a bundle on a device. Threads may share it, each for states of its own."""

    def __init__(
        self, bundle: Bundle, precision: Precision = "fp32", provider: Provider = "cuda", num_threads: int | None = None
    ) -> None:
        """Loads the two graphs.

        Args:
            num_threads: for the few sizes that the CPU computes; if None, all CPUs of the quota.

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
        self._next = {tensor.input: tensor.output for tensor in graphs.state if tensor.output is not None}
        self._layouts = AttentionLayouts()

        def load(spec: GraphSpec) -> BoundSession:
            session = OnnxSession(bundle.path, spec, provider=provider, num_threads=threads)
            if differences := session.differences():
                raise BundleRefused(bundle.path, differences)
            return session.bound()

        self._encoder, self._step = load(graphs.encoder), load(graphs.decoder_step)
        self._rows = StateScope(_specs(graphs, "row"), provider, threads)
        self._sources = StateScope(_specs(graphs, "source"), provider, threads)

    @property
    def vocabulary_size(self) -> int:
        return self._manifest.target.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        source_ids, source_lengths = pad_sources(sources, self._manifest.special_ids.pad)
        names = [*self._rows.names, *self._sources.names]
        inputs = {graph_io.SOURCE_IDS: source_ids, graph_io.SOURCE_LENGTHS: source_lengths}
        values = dict(zip(names, self._encoder.run(inputs, names), strict=True))
        if masked is not None:
            source_mask = np.array(values[SOURCE_MASK].numpy())
            mask_positions(source_mask, masked)
            values[SOURCE_MASK] = self._encoder.uploaded(source_mask)
        width = source_ids.shape[1]
        rows, shared = (
            DeviceTensors({name: values[name] for name in scope.names}, width) for scope in (self._rows, self._sources)
        )
        return DecoderState(rows, shared, source_lengths, np.arange(len(sources), dtype=np.int64), self._min_queries)

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
        rows, sources = self._row_tensors(state), _held(state.source_tensors)
        inputs: dict[str, Any] = {
            **rows.values_by_name,
            **sources.values_by_name,
            **step_inputs(
                state.num_rows, previous_ids, min(num_candidates, self.vocabulary_size), forced_ids, banned_ids
            ),
        }
        if self._has_attention:
            inputs[graph_io.SOURCE_ROWS], inputs[graph_io.ROW_SLOTS] = self._layouts.of(state)
        on_host = [graph_io.CANDIDATE_IDS, graph_io.CANDIDATE_LOG_PROBS, graph_io.FORCED_LOG_PROBS]
        on_host += [graph_io.ATTENTION] if attention and self._has_attention else []
        results = self._step.run(inputs, list(self._next.values()), on_host)
        ids, log_probs, forced_log_probs, *weights = results[len(self._next) :]
        output = StepOutput(ids, log_probs, forced_log_probs, weights[0] if weights else None)
        after = {**rows.values_by_name, **dict(zip(self._next, results, strict=False))}
        return output, DecoderState(
            DeviceTensors(after, rows.width), sources, state.source_lengths, state.row_sources, self._min_queries
        )

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        """Returns the state of `rows` [R'] in that order, which shares unchanged tensors with the state before."""
        state = state_of(before)
        if same_ids(rows, np.arange(state.num_rows)):
            return state
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        lengths = state.source_lengths if kept is None else state.source_lengths[kept]
        width = common_width(lengths)
        taken, sources = self._rows.select(self._row_tensors(state), rows, width), _held(state.source_tensors)
        if kept is not None:
            sources = self._sources.select(sources, kept, width)
        return DecoderState(taken, sources, lengths, row_sources, self._min_queries)

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        joined = state_of(parts[0])
        for part in parts[1:]:
            first, second = joined, state_of(part)
            lengths = np.concatenate([first.source_lengths, second.source_lengths])
            width = common_width(lengths)
            joined = DecoderState(
                self._rows.join([self._row_tensors(first), self._row_tensors(second)], width),
                self._sources.join([_held(first.source_tensors), _held(second.source_tensors)], width),
                lengths,
                np.concatenate([first.row_sources, second.row_sources + first.num_sources]),
                self._min_queries,
            )
        return joined

    def _row_tensors(self, state: DecoderState) -> DeviceTensors:
        """Returns the state's rows on the device; copies them there if a caller made the state of arrays."""
        if isinstance(state.row_tensors, DeviceTensors):
            return state.row_tensors
        uploaded = {name: self._step.uploaded(array) for name, array in state.row_tensors.items()}
        return DeviceTensors(uploaded, state.source_width)


def _held(tensors: Mapping[str, Any]) -> DeviceTensors:
    assert isinstance(tensors, DeviceTensors), "a state of another stepper"
    return tensors


def _specs(graphs: GraphPair, scope: str) -> list[TensorSpec]:
    specs = {spec.name: spec for spec in graphs.decoder_step.inputs}
    return [specs[tensor.input] for tensor in graphs.state if tensor.scope == scope]
