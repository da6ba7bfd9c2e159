"""Tests of an integer LSTM layer: rows don't affect each other, and no state exceeds the calibration constants."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attendant.export.graph import GraphEditor
from attendant.export.rewriting.bounds import Bounds
from attendant.export.rewriting.products import Activations
from attendant.export.rewriting.recurrent import CALIBRATION_CELLS, CALIBRATION_OUTPUT_GATE, replace_recurrent
from tests.unit.export.rewriting.graphs import FLOAT, INT64, model_of, run

INPUTS, HIDDEN, SYMBOLS = 6, 5, 9


def layer(num_directions: int, *, weight: float = 1.0, bias: float = 1.0) -> onnx.ModelProto:
    """Returns a layer over embeddings, as export/tracing.py writes it."""
    random = np.random.default_rng(num_directions)

    def uniform(bound: float, *shape: int) -> np.ndarray:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    direction = "bidirectional" if num_directions == 2 else "forward"
    width = num_directions * HIDDEN
    return model_of(
        [
            helper.make_node("Gather", ["table", "ids"], ["embedded"]),
            helper.make_node("Transpose", ["embedded"], ["by_position"], perm=[1, 0, 2]),
            helper.make_node("Cast", ["lengths"], ["short"], to=TensorProto.INT32),
            helper.make_node(
                "LSTM",
                ["by_position", "weights", "recurrent", "biases", "short"],
                ["outputs", "final"],
                hidden_size=HIDDEN,
                direction=direction,
            ),
            helper.make_node("Transpose", ["outputs"], ["by_source"], perm=[2, 0, 1, 3]),
            helper.make_node("Reshape", ["by_source", "wide"], ["states"]),
            helper.make_node("Transpose", ["final"], ["last_by_source"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["last_by_source", "flat"], ["last"]),
        ],
        {"ids": (INT64, ["B", "S"]), "lengths": (INT64, ["B"])},
        {"states": (FLOAT, ["B", "S", width]), "last": (FLOAT, ["B", width])},
        {
            "table": uniform(3.0, SYMBOLS, INPUTS),
            "weights": uniform(weight, num_directions, 4 * HIDDEN, INPUTS),
            "recurrent": uniform(weight, num_directions, 4 * HIDDEN, HIDDEN),
            "biases": uniform(bias, num_directions, 8 * HIDDEN),
            "wide": np.array([0, 0, width]),
            "flat": np.array([0, width]),
        },
    )


def in_integers(plain: onnx.ModelProto) -> onnx.ModelProto:
    editor = GraphEditor(plain, "int8")
    replace_recurrent(editor, Activations(editor, Bounds(editor.graph, {})))
    return editor.finished().model


@pytest.mark.parametrize("weight", [1.0, 6.0])
def test_rows_don_t_see_each_other(weight: float) -> None:
    """Covers large weights, which saturate some states: these come closest to the calibration constants."""
    model = in_integers(layer(2, weight=weight, bias=4 * weight))
    random = np.random.default_rng(1)
    ids, lengths = random.integers(0, SYMBOLS, (40, 8)), random.integers(1, 9, 40)
    states, last = run(model, {"ids": ids, "lengths": lengths})
    for row in range(40):
        alone = run(model, {"ids": ids[row : row + 1], "lengths": lengths[row : row + 1]})
        np.testing.assert_array_equal(alone[0][0], states[row])
        np.testing.assert_array_equal(alone[1][0], last[row])


def test_no_state_is_larger_than_the_calibration_constants() -> None:
    """Covers hosts whose tanh and sigmoid exceed 1 by some units in the last place before they saturate."""
    nodes = [helper.make_node("Tanh", ["x"], ["tanh"]), helper.make_node("Sigmoid", ["x"], ["sigmoid"])]
    outputs = {name: (FLOAT, ["N"]) for name in ("tanh", "sigmoid")}
    model = model_of(nodes, {"x": (FLOAT, ["N"])}, outputs, {})
    first, last = (int(np.float32(bound).view(np.int32)) for bound in (2.0, 32.0))
    floats = np.arange(first, last + 1, dtype=np.int32).view(np.float32)
    constants = np.array([*CALIBRATION_CELLS, CALIBRATION_OUTPUT_GATE], np.float32)
    constant_tanh, constant_sigmoid = run(model, {"x": constants})
    for sign in (np.float32(1), np.float32(-1)):
        tanh, sigmoid = run(model, {"x": sign * floats})
        assert (sign * tanh).max() == (sign * constant_tanh[:-1]).max()
        assert sigmoid.max() <= constant_sigmoid[-1]
