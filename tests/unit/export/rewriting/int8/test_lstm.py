"""Tests that no state of an integer LSTM layer exceeds the calibration constants, so that scales don't depend on rows.

tests/parity/test_export.py and test_int8.py check that rows don't affect each other.
"""

import numpy as np
from onnx import helper

from attendant.export.rewriting.recurrent import CALIBRATION_CELLS, CALIBRATION_OUTPUT_GATE
from tests.unit.export.rewriting.graphs import FLOAT, model_of, run


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
