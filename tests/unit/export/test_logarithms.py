"""Tests of logarithms in a graph: an element gives the same bits at every position of the tensor."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from attendant.export.tracing import by_element
from tests.unit.export.rewriting.graphs import FLOAT, model_of, run

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
