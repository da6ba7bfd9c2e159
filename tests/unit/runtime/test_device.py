"""Tests on the CPU of the graphs that reorder and join states on a device."""

import numpy as np
import onnx
import pytest

from attendant.runtime.bundle.manifest import TensorSpec
from attendant.runtime.onnx.device import ELEMENTS, DeviceTensors, StateScope, join_graph, select_graph
from attendant.runtime.onnx.session import BoundSession

SPECS = [
    TensorSpec(name="cell", dtype="float32", shape=("R", 2, 3)),
    TensorSpec(name="memory", dtype="float16", shape=("B", "S", 4)),
    TensorSpec(name="mask", dtype="bool", shape=("B", "S")),
]


@pytest.mark.parametrize("graph", [select_graph(SPECS), join_graph(SPECS)])
def test_the_written_graphs_are_valid_onnx(graph: bytes) -> None:
    onnx.checker.check_model(onnx.load_from_string(graph), full_check=True)
    assert {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ELEMENTS} == ELEMENTS


def test_parts_are_padded_and_joined_then_gathered_and_cut() -> None:
    random, session = (
        np.random.default_rng(1),
        BoundSession.of_bytes("select", select_graph(SPECS), provider="cpu", num_threads=1),
    )
    parts = [
        {
            "cell": random.normal(size=(count, 2, 3)).astype(np.float32),
            "memory": random.normal(size=(count, width, 4)).astype(np.float16),
            "mask": random.random((count, width)) < 0.5,
        }
        for count, width in ((3, 5), (4, 3))
    ]
    held = [
        DeviceTensors({name: session.uploaded(array) for name, array in part.items()}, part["mask"].shape[1])
        for part in parts
    ]
    scope, rows = StateScope(SPECS, "cpu", 1), np.array([6, 0, 0, 3])
    joined = scope.join(held, 8)
    selected = scope.select(joined, rows, 2)
    for name in joined:
        padded = [
            part[name]
            if name == "cell"
            else np.pad(part[name], [(0, 0), (0, 8 - part[name].shape[1]), (0, 0)][: part[name].ndim])
            for part in parts
        ]
        expected = np.concatenate(padded)
        assert np.array_equal(joined[name], expected), name
        assert np.array_equal(selected[name], expected[rows] if name == "cell" else expected[rows][:, :2]), name
