"""The reordering graphs: valid ONNX, and what numpy does."""

import numpy as np
import onnx
import pytest

from attendant.runtime.device.state import (
    ELEMENTS,
    ROWS,
    StateLayout,
    keep_name,
    pads_name,
    part_name,
    reordering_graph,
)
from attendant.runtime.onnx.session import BoundSession, DeviceTensor
from attendant.runtime.onnx.stepper import OnnxStepper

LAYOUTS = [
    StateLayout(name="cell", dtype="float32", rank=3, position_axis=None),
    StateLayout(name="memory", dtype="float16", rank=3, position_axis=1),
    StateLayout(name="mask", dtype="bool", rank=2, position_axis=1),
]


@pytest.mark.parametrize("num_parts", [1, 2])
def test_the_wire_format_is_onnx(num_parts: int) -> None:
    model = onnx.load_from_string(reordering_graph(LAYOUTS, num_parts))
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["cell", "memory", "mask"]
    assert {node.op_type for node in model.graph.node} == {"Slice", "Pad", "Gather"} | (
        {"Concat"} if num_parts > 1 else set()
    )
    elements = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ELEMENTS}
    assert elements == ELEMENTS


@pytest.mark.parametrize("width", [2, 5, 9])
def test_parts_are_cut_padded_joined_and_gathered(width: int) -> None:
    random = np.random.default_rng(width)
    counts, widths, rows = (3, 4), (5, 3), np.array([6, 0, 0, 3])
    parts = [
        {
            "cell": random.normal(size=(count, 2, 3)).astype(np.float32),
            "memory": random.normal(size=(count, positions, 4)).astype(np.float16),
            "mask": random.random((count, positions)) < 0.5,
        }
        for count, positions in zip(counts, widths, strict=True)
    ]
    inputs: dict[str, DeviceTensor] = {}
    host: dict[str, np.ndarray] = {ROWS: rows}
    for number, part in enumerate(parts):
        keep = min(width, widths[number])
        host[keep_name(number)] = np.array([keep])
        for name, array in part.items():
            inputs[part_name(name, number)] = DeviceTensor(array.shape, str(array.dtype), "cpu")
            inputs[part_name(name, number)].write(array)
        for rank in (2, 3):
            pads = np.zeros(2 * rank, np.int64)
            pads[rank + 1] = width - keep
            host[pads_name(rank, 1, number)] = pads
    shapes = {"cell": (4, 2, 3), "memory": (4, width, 4), "mask": (4, width)}
    outputs = {name: DeviceTensor(shape, str(parts[0][name].dtype), "cpu") for name, shape in shapes.items()}
    session = BoundSession.of_bytes("reordering", reordering_graph(LAYOUTS, 2), provider="cpu", num_threads=1)
    session.run(session.bind(inputs, outputs, host))
    for name, output in outputs.items():
        fitted = []
        for part in parts:
            array = part[name]
            if name != "cell":
                padding = [(0, 0), (0, max(0, width - array.shape[1])), *[(0, 0)] * (array.ndim - 2)]
                array = np.pad(array[:, :width], padding)
            fitted.append(array)
        assert np.array_equal(output.read(), np.concatenate(fitted)[rows]), name


def test_a_tensor_of_another_shape_is_our_own_mistake(tiny_stepper: OnnxStepper) -> None:
    with pytest.raises(AssertionError, match=r"int64\(3,\) is not int64\[2\]"):
        DeviceTensor((2,), "int64", "cpu").write(np.zeros(3, np.int64))
