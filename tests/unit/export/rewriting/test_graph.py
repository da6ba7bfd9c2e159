"""Editing a graph: what is read instead, what keeps its name, and what is dropped."""

import numpy as np
import onnx_ir as ir
from onnx import helper

from attendant.export.graph import GraphEditor, constant
from tests.unit.export.rewriting.graphs import FLOAT, model_of, run

X = np.array([[1.0, -2.0, 3.0]], np.float32)


def editor() -> GraphEditor:
    """middle = |x|; y = middle + middle; z = -y."""
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
    assert len(finished.model.graph.initializer) == 1, "the spare one goes"
    found_y, found_z = run(finished.model, {"x": X})
    np.testing.assert_array_equal(found_y, 5 * X)
    np.testing.assert_array_equal(found_z, -5 * X)


def test_an_output_given_anew_leaves_its_readers_what_they_read() -> None:
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


def test_the_plain_graph_stays_as_it_is() -> None:
    plain = model_of([helper.make_node("Abs", ["x"], ["y"])], {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, {})
    before = plain.SerializeToString()
    made = GraphEditor(plain, "test")
    made.replace(made.output("y"), made.add("Neg", [made.input("x")]))
    made.finished()
    assert plain.SerializeToString() == before


def test_constants_are_read_also_where_two_are_added() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["x", "sum"], ["y"])]
    made = GraphEditor(model_of(nodes, {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, {"a": X[0], "b": 2 * X[0]}), "test")
    (product,) = [node for node in made.graph if node.op_type == "Mul"]
    np.testing.assert_array_equal(constant(product.inputs[1]), 3 * X[0])
    assert constant(product.inputs[0]) is None
