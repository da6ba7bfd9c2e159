"""Rewrites fp32 graphs to fp16 for CUDA: products, their inputs and stored tensors in fp16; sums in fp32.

It needs the graphs alone, not the model: a bundle is converted like a run. fp16 has 11 bits and ends at 65504, so
values that would overflow, and sums that would lose their summands, stay in fp32:

    Softmax, LogSoftmax and later nodes    sums of exponentials over thousands of symbols; and the log-probabilities
                                           are summed over a whole hypothesis
    masks and bans                         their large negatives are beyond fp16: they would become -inf, and a row
                                           that is masked altogether NaN
    means, sums, quotients                 they have a summand for each position
    cell states, GRU states, coverage      each step adds to them: small increments would be rounded away
    products that could overflow           by the largest values that the weights allow (bounds.py)
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.graph import RECURRENT, GraphEditor, TracedPair, constant, inputs_of, made_by
from attendant.export.rewriting.bounds import MOVING, Magnitudes, step_bounds
from attendant.runtime.bundle.manifest import StateTensor

FULL, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16

HALF_MAX: Final = 65504.0
PRODUCT_MAX: Final = HALF_MAX / 2  # Products are added in pairs.
SUMMING: Final = frozenset(
    {"Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "ReduceLogSum", "ReduceLogSumExp", "CumSum", "Exp", "Log",
     "Div", "Pow", "Sqrt", "Reciprocal", "TopK"}
)  # fmt: skip

MULTIPLYING: Final = frozenset({"Gemm", "MatMul"}) | RECURRENT

UNTOUCHED: Final = "fp32: sums of exponentials, and masks whose large negatives are beyond fp16"


def convert(pair: TracedPair) -> TracedPair:
    """Returns the fp16 graphs of fp32 graphs, which don't change."""
    encoder, step = GraphEditor(pair.encoder.model, "fp16"), GraphEditor(pair.decoder_step.model, "fp16")
    encoder_magnitudes, magnitudes = step_bounds(Magnitudes, encoder.graph, step.graph, pair.state)
    dtypes = {
        tensor.input: FULL if tensor.output and _adds_up(step.output(tensor.output)) else HALF for tensor in pair.state
    }
    while True:
        outputs = {tensor.output: dtypes[tensor.input] for tensor in pair.state if tensor.output is not None}
        converted = _Conversion(step, magnitudes, {**dtypes, **outputs})
        # A tensor that is converted back at every step is better stored in fp32.
        widened = {name: FULL for name in dtypes if dtypes[name] == HALF and converted.reads_in_full(step.input(name))}
        if not widened:
            break
        dtypes |= widened
    stored = {
        tensor.input: _storage(tensor, dtypes[tensor.input])
        for tensor in pair.state
        if step.input(tensor.input).dtype == FULL
    }
    converted_encoder = _Conversion(encoder, encoder_magnitudes, dtypes)
    converted_encoder.write()
    converted.write()
    return TracedPair(
        encoder=encoder.finished(),
        decoder_step=step.finished(),
        state=pair.state,
        min_queries=pair.min_queries,
        arithmetic={
            **converted_encoder.arithmetic,
            **converted.arithmetic,
            "softmax, log-probabilities, masks": UNTOUCHED,
            **stored,
        },
    )


def _storage(tensor: StateTensor, dtype: ir.DataType) -> str:
    if dtype == HALF:
        return "stored as fp16"
    return f"stored as fp32: {'every step adds to it' if tensor.output else 'its readers compute in fp32'}"


def _adds_up(output: ir.Value) -> bool:
    """Returns True if a state's next value is a sum, perhaps of the state itself and an increment."""
    waiting = [output]
    while waiting:
        value = waiting.pop()
        if made_by(value, "Add", "Sub", "Sum") is not None:
            return True
        if (joined := made_by(value, "Concat")) is not None:
            waiting += inputs_of(joined)
        elif (moved := made_by(value, *MOVING)) is not None:
            waiting += inputs_of(moved)[:1]
    return False


class _Conversion:
    """The conversion of one graph: every node is computed in one type, to which its inputs are cast."""

    def __init__(self, editor: GraphEditor, magnitudes: Magnitudes, stored: Mapping[str, ir.DataType]) -> None:
        """Decides the types; `stored` has those of the graph's inputs and outputs that don't stay in fp32."""
        self._editor = editor
        self._magnitudes = magnitudes
        self._stored = stored
        self._dtypes = {value: self._stored_as(value) for value in editor.graph.inputs if value.dtype == FULL}
        self._brought: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.arithmetic: dict[str, str] = {}
        self._computed: dict[ir.Node, ir.DataType] = {}
        for node in editor.graph:
            self._computed[node] = self._computed_in(node)
            made = FULL if self._has_wide_bias(node) else self._computed[node]
            self._dtypes |= {value: made for value in node.outputs if value.dtype == FULL}

    def reads_in_full(self, value: ir.Value) -> bool:
        """Returns True if a consumer of the value computes in fp32."""
        return any(self._computed[node] == FULL for node in value.consumers())

    def write(self) -> None:
        """Converts the graph."""
        graph = self._editor.graph
        for node, dtype in self._computed.items():
            bias = node.inputs[2] if self._has_wide_bias(node) else None
            for place, value in enumerate(node.inputs):
                if value is not None and value.dtype == FULL and value is not bias:
                    node.replace_input_with(place, self._as(value, dtype))
            if bias is not None:
                self._split_bias(node, bias)
        for place, value in enumerate(graph.outputs):
            name = value.name
            if value.dtype == FULL and self._dtypes[value] != self._stored_as(value):
                graph.outputs[place] = self._as(value, self._stored_as(value))
                value.name, graph.outputs[place].name = f"{name}.plain", name
                graph.outputs[place].shape = value.shape
        for value in (*graph.inputs, *graph.outputs):
            if value in self._dtypes:
                value.dtype = self._dtypes[value]

    def _computed_in(self, node: ir.Node) -> ir.DataType:
        floats = [value for value in inputs_of(node) if value.dtype == FULL]
        if not floats:
            # Conversions of masks and lengths, zeros and the like: inputs of sums and quotients.
            return FULL
        if node.op_type in MULTIPLYING:
            return self._product_in(node)
        if node.op_type in SUMMING:
            return FULL
        if any(self._dtypes.get(value) == FULL and made_by(value, "Tanh", "Sigmoid") is None for value in floats):
            # A sum is rounded to fp16 only after a tanh or sigmoid, when nothing more is added to it.
            return FULL
        return FULL if _is_too_large(floats) else HALF

    def _product_in(self, node: ir.Node) -> ir.DataType:
        largest = self._magnitudes.inside(node)
        named = next((value.name for value in inputs_of(node) if value.const_value is not None), node.outputs[0].name)
        assert named is not None
        if largest is not None and largest <= PRODUCT_MAX:
            self.arithmetic[named] = "fp16"
            return HALF
        how_large = "it has no bound" if largest is None else f"up to {largest:.3g}"
        self.arithmetic[named] = f"fp32: {how_large}, and fp16 ends at {HALF_MAX:g}"
        return FULL

    def _has_wide_bias(self, node: ir.Node) -> bool:
        return node.op_type == "Gemm" and self._computed[node] == HALF and _is_too_large(inputs_of(node)[2:])

    def _split_bias(self, gemm: ir.Node, bias: ir.Value) -> None:
        """Adds the bias in fp32 to a product in fp16: the bias of logits bans symbols that are never written."""
        (logits,) = gemm.outputs
        assert not logits.is_graph_output(), "logits are no output"
        gemm.resize_inputs(2)
        readers = logits.uses()
        self._dtypes[logits] = HALF
        total = self._editor.add("Add", [self._as(logits, FULL), self._as(bias, FULL)])
        total.dtype = self._dtypes[total] = FULL
        logits.name, total.name = f"{logits.name}.product", logits.name
        for use in readers:
            use.node.replace_input_with(use.idx, total)

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns the value in that type: itself, a converted constant, or a cast that all consumers share."""
        if value.const_value is None and self._dtypes[value] == dtype:
            return value
        if value.const_value is not None and dtype == FULL:
            return value
        if (value, dtype) not in self._brought:
            values = constant(value) if value.const_value is not None else None
            if values is None:
                brought = self._editor.add("Cast", [value], to=dtype)
            else:
                brought = self._editor.add_constant(values.astype(dtype.numpy()), value.name or "")
            brought.dtype = self._dtypes[brought] = dtype
            self._brought[value, dtype] = brought
        return self._brought[value, dtype]

    def _stored_as(self, value: ir.Value) -> ir.DataType:
        return self._stored.get(value.name or "", FULL)


def _is_too_large(values: Sequence[ir.Value]) -> bool:
    """Returns True if a constant among these is beyond fp16."""
    constants = [value.const_value.numpy() for value in values if value.const_value is not None]
    return any(values.size and np.abs(values).max() > PRODUCT_MAX for values in constants)
