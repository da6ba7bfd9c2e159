"""Attention in integers: near that of floats, and the same bits for one query as for several."""

import numpy as np
import onnx
import pytest
from onnx import helper

from attendant.export.graph import GraphEditor
from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.products import Activations
from attendant.export.rewriting.state import Attention
from tests.unit.export.rewriting.graphs import FLOAT, model_of, run

RANDOM = np.random.default_rng(0)
SIZE = 16
MATRIX = (RANDOM.standard_normal((SIZE, SIZE)) / 4).astype(np.float32)
SOURCES = RANDOM.standard_normal((3, 8, SIZE)).astype(np.float32)
QUERIES = RANDOM.standard_normal((3, 4, SIZE)).astype(np.float32)

Graphs = tuple[onnx.ModelProto, onnx.ModelProto]


def plain(projected: bool) -> Graphs:
    """An encoder and a step that attends: with keys that are projected, or that are the memory itself."""
    states = {"memory": (FLOAT, ["B", "S", SIZE]), "keys": (FLOAT, ["B", "S", SIZE])}
    nodes = [helper.make_node("Tanh", ["x"], ["memory"]), helper.make_node("MatMul", ["memory", "matrix"], ["keys"])]
    if not projected:
        del states["keys"], nodes[1]
    constants = {"matrix": MATRIX} if projected else {}
    encoder = model_of(nodes, {"x": (FLOAT, ["B", "S", SIZE])}, states, constants)
    step = model_of(
        [
            helper.make_node("Tanh", ["q"], ["hidden"]),
            helper.make_node("Transpose", ["hidden"], ["transposed"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["keys" if projected else "memory", "transposed"], ["products"]),
            helper.make_node("Transpose", ["products"], ["scores"], perm=[0, 2, 1]),
            helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
            helper.make_node("MatMul", ["weights", "memory"], ["contexts"]),
        ],
        {"q": (FLOAT, ["B", "M", SIZE]), **states},
        {"contexts": (FLOAT, ["B", "M", SIZE]), "weights": (FLOAT, ["B", "M", "S"])},
        {},
    )
    return encoder, step


def in_integers(graphs: Graphs) -> tuple[Graphs, Attention]:
    encoder, step = (GraphEditor(graph, "int8") for graph in graphs)
    attention = Attention(step)
    attention.store(encoder, Activations(encoder, Bounds(encoder.graph, {})))
    attention.replace(Activations(step, Bounds(step.graph, {})))
    return (encoder.finished().model, step.finished().model), attention


def contexts(graphs: Graphs, queries: np.ndarray) -> list[np.ndarray]:
    """Contexts and weights."""
    encoder, step = graphs
    names = [output.name for output in encoder.graph.output]
    state = dict(zip(names, run(encoder, {"x": SOURCES}), strict=True))
    wanted = {value.name for value in step.graph.input}
    return run(step, {"q": queries, **{name: values for name, values in state.items() if name in wanted}})


@pytest.mark.parametrize("projected", [True, False])
def test_contexts_and_weights_are_near(projected: bool) -> None:
    graphs = plain(projected)
    expected, (integers, _) = contexts(graphs, QUERIES), in_integers(graphs)
    assert [node.op_type for node in integers[1].graph.node].count("MatMul") == 0
    for value, reference in zip(contexts(integers, QUERIES), expected, strict=True):
        np.testing.assert_allclose(value, reference, atol=0.02)


@pytest.mark.parametrize("projected", [True, False])
def test_one_query_gets_the_bits_that_it_gets_among_others(projected: bool) -> None:
    graphs, _ = in_integers(plain(projected))
    together = contexts(graphs, QUERIES)
    for place in range(QUERIES.shape[1]):
        alone = contexts(graphs, QUERIES[:, [place]])
        for single, several in zip(alone, together, strict=True):
            np.testing.assert_array_equal(single[:, 0], several[:, place])


def test_keys_are_stored_with_their_positions_last() -> None:
    (encoder, step), attention = in_integers(plain(projected=True))
    assert attention.keys is not None and attention.keys.name == "keys"
    for values in (encoder.graph.output, step.graph.input):
        (keys,) = [value for value in values if value.name == "keys"]
        sizes = [dim.dim_param or dim.dim_value for dim in keys.type.tensor_type.shape.dim]
        assert sizes == ["B", SIZE, "S"]
        assert keys.type.tensor_type.elem_type == onnx.TensorProto.INT8
    codes = dict(zip([output.name for output in encoder.graph.output], run(encoder, {"x": SOURCES}), strict=True))
    assert codes["keys"].shape == (3, SIZE, 8) and codes["memory"].shape == (3, 8, SIZE)
    scales = codes[attention.keys.scale][:, None] if attention.keys.scale is not None else 1.0
    expected = np.tanh(SOURCES) @ MATRIX
    values = codes["keys"] * attention.keys.step * scales
    np.testing.assert_allclose(values.transpose(0, 2, 1), expected, atol=np.abs(expected).max() / 127)


def test_keys_that_are_the_memory_are_stored_beside_it() -> None:
    (encoder, _), attention = in_integers(plain(projected=False))
    assert [codes.name for codes in attention.stored] == ["memory", "memory_transposed"]
    memory, transposed = run(encoder, {"x": SOURCES})
    np.testing.assert_array_equal(memory.transpose(0, 2, 1), transposed)
    np.testing.assert_allclose(memory * attention.stored[0].step, np.tanh(SOURCES), atol=1 / 127)
