"""Tests of the types in fp16 graphs, and of bounds on values, with small graphs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attendant.export.graph import GraphEditor, TracedGraph, TracedPair
from attendant.export.rewriting.bounds import Magnitudes
from attendant.export.rewriting.fp16 import HALF_MAX, convert
from attendant.runtime.bundle.manifest import StateTensor, TensorSpec
from tests.unit.export.rewriting.graphs import model_of

Arrays = dict[str, np.ndarray]


def graph_of(
    nodes: list[onnx.NodeProto], inputs: list[TensorSpec], outputs: list[TensorSpec], constants: Arrays
) -> TracedGraph:
    def values(specs: list[TensorSpec]) -> dict[str, tuple[int, tuple[int | str, ...]]]:
        return {spec.name: (helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape) for spec in specs}

    model = model_of(nodes, values(inputs), values(outputs), constants)
    return TracedGraph(model=model, opset=20, inputs=tuple(inputs), outputs=tuple(outputs))


def floats(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape)


def pair_of(weight: float, bias: float = 0.0) -> TracedPair:
    """Returns graphs: memory = tanh(embedding); step: total' = total + memory; logits = tanh(total') W + b."""
    encoder = graph_of(
        [helper.make_node("Gather", ["table", "source_ids"], ["embedding"]),
         helper.make_node("Tanh", ["embedding"], ["memory"]), helper.make_node("Identity", ["memory"], ["total"])],
        [TensorSpec(name="source_ids", dtype="int64", shape=("B",))],
        [floats("memory", "B", 4), floats("total", "B", 4)],
        {"table": np.ones((3, 4), np.float32)},
    )  # fmt: skip
    step = graph_of(
        [helper.make_node("Add", ["total", "memory"], ["total_out"]),
         helper.make_node("Tanh", ["total_out"], ["shown"]),
         helper.make_node("Gemm", ["shown", "weight", "bias"], ["logits"]),
         helper.make_node("LogSoftmax", ["logits"], ["log_probs"])],
        [floats("total", "R", 4), floats("memory", "R", 4)],
        [floats("log_probs", "R", 5), floats("total_out", "R", 4)],
        {"weight": np.full((4, 5), weight, np.float32), "bias": np.array([bias, 0, 0, 0, 1], np.float32)},
    )  # fmt: skip
    state = (
        StateTensor(input="total", output="total_out", scope="row"),
        StateTensor(input="memory", output=None, scope="source"),
    )
    return TracedPair(encoder=encoder, decoder_step=step, state=state, min_queries=1)


def types_of(graph: TracedGraph) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(graph.model, strict_mode=True).graph
    return {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
    }


def test_a_product_that_could_overflow_stays_in_fp32() -> None:
    converted = convert(pair_of(HALF_MAX / 4))
    assert types_of(converted.decoder_step)["logits"] == TensorProto.FLOAT
    assert converted.arithmetic["weight"].startswith("fp32: up to 6.55e+04")


def test_a_bias_beyond_fp16_is_added_in_fp32() -> None:
    converted = convert(pair_of(0.5, bias=-1e9))
    types = types_of(converted.decoder_step)
    assert (types["logits.product"], types["logits"]) == (TensorProto.FLOAT16, TensorProto.FLOAT)


@pytest.mark.parametrize("transposed", [False, True])
def test_magnitudes_hold_for_every_input(transposed: bool) -> None:
    """Compares with the largest bounded inputs, whose signs are those of the weights."""
    random = np.random.default_rng(0)
    weights = random.uniform(-1, 1, (6, 3)).astype(np.float32)
    graph = graph_of(
        [helper.make_node("Tanh", ["x"], ["bounded"]),
         helper.make_node("Gemm", ["bounded", "w"], ["product"], transB=int(transposed)),
         helper.make_node("Transpose", ["product"], ["transposed"], perm=[1, 0]),
         helper.make_node("MatMul", ["product", "transposed"], ["scores"])],
        [floats("x", "R", 6)],
        [floats("scores", "R", "R")],
        {"w": weights.T.copy() if transposed else weights},
    )  # fmt: skip
    plain = GraphEditor(graph.model, "test").graph
    magnitudes = Magnitudes(plain, {})
    values = {value.name: value for node in plain for value in (*node.inputs, *node.outputs) if value is not None}
    signs = np.sign(weights.T)
    products = signs @ weights
    assert magnitudes.largest(values["product"]) == pytest.approx(np.abs(products).max())
    assert (products @ products.T).max() <= (magnitudes.largest(values["scores"]) or 0)
    assert magnitudes.largest(values["x"]) is None
