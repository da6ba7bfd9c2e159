"""From the fp32 graphs to fp16 ones for CUDA: products, what they read and what is stored in fp16; sums in fp32.

It needs the graphs alone, not the model: a bundle is converted like a run. fp16 has 11 bits and ends at 65504, so
what overflows or loses what it adds up stays in fp32:

    Softmax, LogSoftmax and what follows   sums of exponentials over thousands of symbols; and the log-probabilities
                                           are summed over a whole hypothesis
    masks and bans                         their large negatives are beyond fp16, where they would be -inf, and a
                                           row that is masked altogether NaN
    means, sums, quotients                 over as many summands as there are positions
    cell states, GRU states, coverage      each step adds to them: what is small beside them would be rounded away
    products that could overflow           by the largest values that the weights allow (magnitudes.py)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attendant.export.rewriting.fp16.magnitudes import MOVING, RECURRENT, Magnitudes, step_magnitudes
from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.runtime.bundle.manifest import StateTensor, TensorSpec

FULL, HALF = TensorProto.FLOAT, TensorProto.FLOAT16

HALF_MAX: Final = 65504.0
PRODUCT_MAX: Final = HALF_MAX / 2
"""Products are added in pairs."""

BOUNDED: Final = frozenset({"Tanh", "Sigmoid"})
"""What comes of a sum through these is rounded like any other value of at most 1: nothing more is added to it."""

SUMMING: Final = frozenset(
    {"Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "ReduceLogSumExp", "CumSum", "Exp", "Log", "Div", "Pow",
     "Sqrt", "Reciprocal", "TopK"}
)  # fmt: skip

MULTIPLYING: Final = frozenset({"Gemm", "MatMul"}) | RECURRENT

NOT_RUN: Final = (
    "not run on CUDA when it was exported: what is certified is the graph on the CPU, where onnxruntime computes in "
    "fp32 between conversions"
)


@dataclass(frozen=True, slots=True)
class HalfPair:
    """The graphs, and for each matrix, tensor or operation in what it is computed or stored, and why."""

    graphs: TracedPair
    arithmetic: Mapping[str, str]


def convert(pair: TracedPair) -> HalfPair:
    """The fp16 graphs of fp32 graphs, which stay as they are."""
    encoder_magnitudes = Magnitudes(pair.encoder.model)
    magnitudes = step_magnitudes(pair.decoder_step.model, encoder_magnitudes, pair.state)
    types = {
        tensor.input: FULL if tensor.output and _adds_up(pair.decoder_step.model.graph, tensor.output) else HALF
        for tensor in pair.state
    }
    following = {tensor.output: tensor.input for tensor in pair.state if tensor.output is not None}
    while True:
        wanted = types | {output: types[name] for output, name in following.items()}
        step = _Conversion(pair.decoder_step, magnitudes, wanted)
        decoder_step = step.converted()
        # What would be converted back at every step is better stored as it is read.
        widened = {name: FULL for name in types if types[name] == HALF and (name, FULL) in step.brought}
        if not widened:
            break
        types |= widened
    encoder = _Conversion(pair.encoder, encoder_magnitudes, types)
    graphs = TracedPair(
        encoder=encoder.converted(), decoder_step=decoder_step, state=pair.state, min_queries=pair.min_queries
    )
    return HalfPair(graphs, {**encoder.arithmetic, **step.arithmetic, **_stored(pair.state, types, graphs)})


def _stored(state: Sequence[StateTensor], types: Mapping[str, int], graphs: TracedPair) -> dict[str, str]:
    floats = {spec.name for spec in graphs.decoder_step.inputs if spec.dtype.startswith("float")}
    added = "stored as fp32: every step adds to it"
    read = "stored as fp32: what reads it computes in fp32"
    kept = "fp32: sums of exponentials, and masks whose large negatives are beyond fp16"
    return {
        "softmax, log-probabilities, masks": kept,
        **{
            one.input: "stored as fp16" if types[one.input] == HALF else added if one.output else read
            for one in state
            if one.input in floats
        },
    }


def _adds_up(graph: onnx.GraphProto, output: str) -> bool:
    """Whether a state's next value is a sum: of itself and something, for all that is known here."""
    producers = {name: node for node in graph.node for name in node.output}
    waiting = [output]
    while waiting:
        node = producers.get(waiting.pop())
        if node is None:
            continue
        if node.op_type in ("Add", "Sub", "Sum"):
            return True
        if node.op_type == "Concat":
            waiting += node.input
        elif node.op_type in MOVING:
            waiting.append(node.input[0])
    return False


class _Conversion:
    """One graph, node by node in its own order: each is computed in one type, its inputs are brought to that."""

    def __init__(self, graph: TracedGraph, magnitudes: Magnitudes, types: Mapping[str, int]) -> None:
        """`types`: of the graph's inputs and outputs that don't stay in fp32."""
        self._traced = graph
        self._plain = graph.model.graph
        self._magnitudes = magnitudes
        self._wanted = types
        inferred = onnx.shape_inference.infer_shapes(graph.model).graph
        self._floats = {
            value.name
            for value in (*inferred.value_info, *inferred.input, *inferred.output)
            if value.type.tensor_type.elem_type == FULL
        }
        self._constants = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in self._plain.initializer if tensor.data_type == FULL
        }
        self._outputs = {value.name for value in self._plain.output}
        self._types = {value.name: self._type_of(value) for value in self._plain.input if value.name in self._floats}
        self.brought: dict[tuple[str, int], str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers = [tensor for tensor in self._plain.initializer if tensor.name not in self._constants]
        self.arithmetic: dict[str, str] = {}

    def converted(self) -> TracedGraph:
        for node in self._plain.node:
            self._convert(node)
        model = onnx.ModelProto()
        model.CopyFrom(self._traced.model)
        graph = model.graph
        del graph.node[:]
        graph.node.extend(self._nodes)
        del graph.initializer[:]
        graph.initializer.extend(self._initializers)
        for value in (*graph.input, *graph.output):
            if value.name in self._floats:
                value.type.tensor_type.elem_type = self._type_of(value)
        del graph.value_info[:]
        onnx.checker.check_model(model)
        specs = {value.name: self._type_of(value) for value in (*self._plain.input, *self._plain.output)}
        return TracedGraph(
            model=model,
            opset=self._traced.opset,
            inputs=tuple(_retyped(spec, specs) for spec in self._traced.inputs),
            outputs=tuple(_retyped(spec, specs) for spec in self._traced.outputs),
        )

    def _convert(self, node: onnx.NodeProto) -> None:
        assert not any(one.type == onnx.AttributeProto.GRAPH for one in node.attribute), (
            "the fp32 graphs have no bodies"
        )
        made = onnx.NodeProto()
        made.CopyFrom(node)
        given = [name for name in node.input if name in self._floats or name in self._constants]
        element = self._computed_in(node, given)
        if element == HALF and node.op_type == "Gemm" and self._is_too_large(node.input[2:]):
            self._split_bias(made)
            return
        for place, name in enumerate(node.input):
            if name in given:
                made.input[place] = self._as(name, element)
        self._nodes.append(made)
        for place, name in enumerate(node.output):
            if name not in self._floats:
                continue
            self._types[name] = element
            if name in self._outputs and element != self._wanted.get(name, FULL):
                # The output's own name goes to the conversion; whoever else reads the value reads it as it was.
                made.output[place] = f"{name}.plain"
                self.brought[name, element] = made.output[place]
                self._cast(made.output[place], name, self._wanted.get(name, FULL))
                self.brought[name, self._wanted.get(name, FULL)] = name

    def _computed_in(self, node: onnx.NodeProto, given: Sequence[str]) -> int:
        """The type that a node computes in."""
        if not given:
            # Conversions of masks and lengths, zeros and the like: sums and quotients read them.
            return FULL
        if node.op_type in MULTIPLYING:
            return self._product_in(node)
        if node.op_type in SUMMING:
            return FULL
        if any(self._types.get(name) == FULL and not self._is_bounded(name) for name in given):
            return FULL
        return FULL if self._is_too_large(given) else HALF

    def _is_bounded(self, name: str) -> bool:
        return any(name in node.output and node.op_type in BOUNDED for node in self._plain.node)

    def _is_too_large(self, names: Sequence[str]) -> bool:
        """Whether a constant among these is beyond fp16."""
        constants = [self._constants[name] for name in names if name in self._constants]
        return any(constant.size and np.abs(constant).max() > PRODUCT_MAX for constant in constants)

    def _split_bias(self, gemm: onnx.NodeProto) -> None:
        """A product in fp16 and its bias in fp32: logits whose bias bans the symbols that are never written."""
        (output,) = gemm.output
        bias = gemm.input.pop(2)
        for place, name in enumerate(gemm.input):
            gemm.input[place] = self._as(name, HALF)
        gemm.output[0] = f"{output}.product"
        self._nodes.append(gemm)
        self._types[gemm.output[0]] = HALF
        terms = [self._as(gemm.output[0], FULL), self._as(bias, FULL)]
        assert output not in self._outputs, "logits are no output"
        self._nodes.append(helper.make_node("Add", terms, [output], name=output))
        self._types[output] = FULL

    def _product_in(self, node: onnx.NodeProto) -> int:
        largest = self._magnitudes.inside(node)
        named = next((name for name in node.input if name in self._constants), node.output[0])
        if largest is not None and largest <= PRODUCT_MAX:
            self.arithmetic[named] = "fp16"
            return HALF
        how_large = "it has no bound" if largest is None else f"up to {largest:.3g}"
        self.arithmetic[named] = f"fp32: {how_large}, and fp16 ends at {HALF_MAX:g}"
        return FULL

    def _as(self, name: str, element: int) -> str:
        """The value's name in that type."""
        if (name, element) in self.brought:
            return self.brought[name, element]
        if name in self._constants:
            brought = name if element == FULL else f"{name}.fp16"
            values = self._constants[name].astype(helper.tensor_dtype_to_np_dtype(element))
            self._initializers.append(numpy_helper.from_array(values, brought))
        elif self._types[name] == element:
            brought = name
        else:
            brought = f"{name}.{'fp32' if element == FULL else 'fp16'}"
            self._cast(self._as(name, self._types[name]), brought, element)
        self.brought[name, element] = brought
        return brought

    def _cast(self, value: str, to: str, element: int) -> None:
        self._nodes.append(helper.make_node("Cast", [value], [to], name=to, to=element))

    def _type_of(self, value: onnx.ValueInfoProto) -> int:
        element: int = value.type.tensor_type.elem_type
        return self._wanted.get(value.name, FULL) if element == FULL else element


def _retyped(spec: TensorSpec, elements: Mapping[str, int]) -> TensorSpec:
    # The number of candidates is an input, too.
    dtype = helper.tensor_dtype_to_np_dtype(elements[spec.name])
    return TensorSpec(name=spec.name, dtype=str(np.dtype(dtype)), shape=spec.shape)
