"""Tests without a GPU that every operator of a step has a CUDA kernel for its types, so no tensor leaves the device.

The table has the operators that the graphs use, from onnxruntime's list (docs/OperatorKernels.md, CUDA execution
provider). test_cuda.py checks on a GPU that a session copies nothing.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import TensorSpec
from attendant.runtime.onnx.device import join_graph, select_graph

FLOATS = {"float32", "float16"}
MOVED = FLOATS | {"int64", "int32", "bool"}
KERNELS: dict[str, set[str]] = {
    **dict.fromkeys(("Gemm", "MatMul", "Tanh", "Sigmoid", "Softmax", "LogSoftmax", "Exp"), FLOATS),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "ReduceSum", "TopK"), FLOATS | {"int64"}),
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements", "Slice", "Split", "Concat", "Reshape", "Transpose",
                     "Squeeze", "Unsqueeze", "Expand", "Identity", "Shape", "Cast"), MOVED),
    "Less": FLOATS | {"int64"},
    "Clip": FLOATS | {"int64"},
    "Pad": FLOATS | {"bool"},
    # The first input is the condition.
    "Where": {"bool"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["luong", "bahdanau", "unequal sizes", "fixed vector"])
def test_every_operator_of_a_step_has_a_kernel(kind: str, bundle_of_kind: Callable[[str], Path]) -> None:
    bundle = open_bundle(bundle_of_kind(kind))
    for precision in ("fp32", "fp16"):
        graph = onnx.load(bundle.path / bundle.manifest.graphs[precision].decoder_step.file)
        missing = set(without_kernel(graph))
        assert not missing, f"{precision}: {sorted(missing)}"


def test_reordering_has_kernels_and_a_missing_kernel_is_reported() -> None:
    specs = [TensorSpec(name=dtype, dtype=dtype, shape=("B", "S")) for dtype in ("float32", "float16", "bool")]
    for graph in (select_graph(specs), join_graph(specs)):
        assert not set(without_kernel(onnx.load_from_string(graph)))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["R"])
    graph = helper.make_graph([helper.make_node("Mod", ["x", "x"], ["y"], fmod=1)], "test", [value], [])
    assert set(without_kernel(helper.make_model(graph))) == {"Mod of float32"}


def without_kernel(model: onnx.ModelProto) -> Iterator[str]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    elements = {tensor.name: tensor.data_type for tensor in graph.initializer} | {
        value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)
    }
    for node in graph.node:
        dtype = str(np.dtype(helper.tensor_dtype_to_np_dtype(elements[node.input[0]])))
        if dtype not in KERNELS.get(node.op_type, set()):
            yield f"{node.op_type} of {dtype}"
