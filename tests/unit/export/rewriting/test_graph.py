"""Tests of editing a graph (replaced values, kept names, dropped constants), of bounds on its values, and of
logarithms, whose bits are the same at every position of the tensor.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from attendant.export.graph import GraphEditor
from attendant.export.rewriting.bounds import Bounds, step_bounds
from attendant.export.tracing import by_element
from attendant.runtime.bundle.manifest import StateTensor
from tests.unit.export.rewriting.graphs import FLOAT, INT64, model_of, run

X = np.array([[1.0, -2.0, 3.0]], np.float32)


def editor() -> GraphEditor:
    """Returns an editor of the graph middle = |x|; y = middle + middle; z = -y."""
    nodes = [
        helper.make_node("Abs", ["x"], ["middle"]),
        helper.make_node("Add", ["middle", "middle"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    shape = (FLOAT, ["B", 3])
    return GraphEditor(model_of(nodes, {"x": shape}, {"y": shape, "z": shape}, {"spare": X}), "test")


def test_an_output_that_is_replaced_keeps_its_name_and_its_readers() -> None:
    made = editor()
    y = made.output("y")
    new = made.add("Mul", [made.input("x"), made.add_constant(np.float32(5), "five")])
    made.replace(y, new)
    assert made.original(new) is y
    finished = made.finished()
    assert [node.op_type for node in finished.model.graph.node] == ["Mul", "Neg"]
    assert [spec.name for spec in finished.outputs] == ["y", "z"]
    assert len(finished.model.graph.initializer) == 1, "the unused constant is dropped"
    found_y, found_z = run(finished.model, {"x": X})
    np.testing.assert_array_equal(found_y, 5 * X)
    np.testing.assert_array_equal(found_z, -5 * X)


def test_readers_of_a_redefined_output_keep_the_old_value() -> None:
    made = editor()
    made.add_output("y", made.add("Cast", [made.output("y")], to=ir.DataType.INT8), ir.DataType.INT8, ("B", 3))
    made.add_output("x_again", made.input("x"), ir.DataType.FLOAT, ("B", 3))
    finished = made.finished()
    assert [(spec.name, spec.dtype) for spec in finished.outputs] == [
        ("y", "int8"),
        ("z", "float32"),
        ("x_again", "float32"),
    ]
    y, z, again = run(finished.model, {"x": X})
    assert y.tolist() == [[2, 4, 6]]
    np.testing.assert_array_equal(z, -2 * np.abs(X))
    np.testing.assert_array_equal(again, X)


ROWS = (FLOAT, ["R", 2])
TABLE = np.array([[0.5, -3.0], [0.25, 1.0]], np.float32)


def bounds_of(nodes: list, output: str) -> np.ndarray | None:
    model = model_of(nodes, {"x": ROWS, "ids": (INT64, ["R"])}, {output: ROWS}, {"table": TABLE})
    graph = GraphEditor(model, "test").graph
    return Bounds(graph, {}).of(graph.outputs[0])


def test_a_table_bounds_each_feature() -> None:
    bound = bounds_of([helper.make_node("Gather", ["table", "ids"], ["y"])], "y")
    assert bound is not None and bound.tolist() == [0.5, 3.0]


@pytest.mark.parametrize(("operator", "expected"), [("Add", 4.0), ("Sub", 4.0), ("Mul", 3.0), ("Max", 3.0)])
def test_bounds_of_operands_combine(operator: str, expected: float) -> None:
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Tanh", ["x"], ["t"])]
    bound = bounds_of([*nodes, helper.make_node(operator, ["rows", "t"], ["y"])], "y")
    assert bound is not None and bound.tolist() == expected
    assert bounds_of([*nodes, helper.make_node(operator, ["rows", "x"], ["y"])], "y") is None


def test_a_gated_mixture_is_no_larger_than_its_parts() -> None:
    """Checks a + z (b - a), a GRU's next state: its bound is 1, but the rule for sums gives 3."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["x"], ["z"]),
        helper.make_node("Sin", ["x"], ["unknown"]),
        helper.make_node("Tanh", ["unknown"], ["b"]),
        helper.make_node("Sub", ["b", "a"], ["difference"]),
        helper.make_node("Mul", ["z", "difference"], ["share"]),
        helper.make_node("Add", ["a", "share"], ["y"]),
    ]
    bound = bounds_of(nodes, "y")
    assert bound is not None and bound.tolist() == 1.0


def test_a_state_that_grows_has_no_bound_and_one_that_is_squashed_has() -> None:
    encoder = model_of(
        [helper.make_node("Tanh", ["x"], ["sum"]), helper.make_node("Identity", ["sum"], ["hidden"])],
        {"x": ROWS},
        {"sum": ROWS, "hidden": ROWS},
        {},
    )
    step = model_of(
        [
            helper.make_node("Add", ["sum", "hidden"], ["sum_out"]),
            helper.make_node("Tanh", ["sum_out"], ["hidden_out"]),
        ],
        {"sum": ROWS, "hidden": ROWS},
        {"sum_out": ROWS, "hidden_out": ROWS},
        {},
    )
    state = [StateTensor(input=name, output=f"{name}_out", scope="row") for name in ("sum", "hidden")]
    graphs = [GraphEditor(model, "test").graph for model in (encoder, step)]
    _, bounds = step_bounds(Bounds, *graphs, state)
    total, hidden = graphs[1].inputs
    assert bounds.of(total) is None and bounds.largest(hidden) == 1.0


WIDTH = 64


def graph_of(operator: str) -> onnx.ModelProto:
    shape = (FLOAT, ["R", WIDTH])
    return model_of([helper.make_node(operator, ["x"], ["y"])], {"x": shape}, {"y": shape}, {})


@pytest.mark.parametrize("operator", ["Log", "Softplus"])
def test_an_element_has_the_same_bits_at_every_place(operator: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    content = by_element(graph_of(operator)).to_bytes()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    row = random.uniform(1e-30, 1, WIDTH) if operator == "Log" else random.normal(0, 20, WIDTH)
    # Rotated rows put every element at many positions of the tensor.
    rows = np.stack([np.roll(row, number) for number in range(1000)]).astype(np.float32)
    (results,) = session.run(None, {"x": rows})
    for number, result in enumerate(results):
        assert np.array_equal(np.roll(result, -number), results[0])


def test_softplus_is_exact_at_the_ends() -> None:
    rows = np.resize(np.array([-2e9, -200, -20, -1, 0, 1, 20, 200, 2e9], np.float32), (1, WIDTH))
    (results,) = run(by_element(graph_of("Softplus")).model, {"x": rows})
    np.testing.assert_allclose(results, np.logaddexp(0, rows.astype(np.float64)), rtol=1e-6, atol=1e-7)
