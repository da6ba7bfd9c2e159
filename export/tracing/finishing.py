"""What is done to a traced graph before it is written.

The exporter leaves the example's sizes in inferred shapes, a constant where the number of candidates should be free,
and the paths of this machine's source files in its metadata.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from attendant.runtime.bundle.manifest import TensorSpec


def finish(
    model: onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    num_candidates: TensorSpec | None,
) -> None:
    """Finishes a graph in place.

    Args:
        num_candidates: becomes an input: the k of the graph's one TopK. None: the graph has no candidates.
    """
    graph = model.graph
    domains = {entry.domain for entry in model.opset_import} | {node.domain for node in graph.node}
    assert domains <= {""} and not model.functions, f"only standard operators are portable, got {sorted(domains)}"
    _declare(graph.input, inputs)
    _declare(graph.output, outputs)
    if num_candidates is not None:
        _free_candidates(graph, num_candidates)
    # Sizes of the example hide in inferred shapes; the runtime would warn of them at every call.
    del graph.value_info[:]
    _strip(model)
    onnx.checker.check_model(model)


def _declare(values: Sequence[onnx.ValueInfoProto], specs: Sequence[TensorSpec]) -> None:
    """Names the dimensions as the manifest does; types and ranks must be what was traced."""
    assert [value.name for value in values] == [spec.name for spec in specs]
    for value, spec in zip(values, specs, strict=True):
        traced = value.type.tensor_type
        element = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        assert traced.elem_type == element and len(traced.shape.dim) == len(spec.shape), f"{value.name} is not {spec}"
        value.type.CopyFrom(helper.make_tensor_type_proto(element, spec.shape))


def _free_candidates(graph: onnx.GraphProto, spec: TensorSpec) -> None:
    (node,) = [node for node in graph.node if node.op_type == "TopK"]
    constant = node.input[1]
    node.input[1] = spec.name
    if not any(constant in other.input for other in graph.node):
        for tensor in [tensor for tensor in graph.initializer if tensor.name == constant]:
            graph.initializer.remove(tensor)
        for producer in [other for other in graph.node if constant in other.output]:
            graph.node.remove(producer)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    graph.input.append(helper.make_tensor_value_info(spec.name, element, spec.shape))


def _strip(message: Any) -> None:
    """Takes documentation and metadata off every part: they hold stack traces with local paths."""
    for name in ("doc_string", "metadata_props"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for part in _parts(message):
        _strip(part)


def _parts(message: Any) -> Iterable[Any]:
    """The message's own sub-messages."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        yield from value if isinstance(value, Sequence) or hasattr(value, "add") else [value]
