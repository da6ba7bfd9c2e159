"""Helpers that build and run small ONNX graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from attendant.export.graph import CONTRIBUTED


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    constants: Mapping[str, Any],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
        [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIBUTED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
