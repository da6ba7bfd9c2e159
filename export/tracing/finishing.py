"""What is done to a traced graph before it is written.

The exporter leaves the example's sizes in inferred shapes, a constant where the number of candidates should be free,
and the paths of this machine's source files in its metadata.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass

from attendant.export.tracing.traced import TracedGraph
from attendant.runtime.bundle.manifest import TensorSpec


def finished(
    model: ir.Model,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    num_candidates: TensorSpec | None,
) -> TracedGraph:
    """The graph as it is written; `model` is used up.

    Args:
        inputs, outputs: as they were traced, in order; their dimensions are named as these say.
        num_candidates: becomes an input: the k of the graph's one TopK. None: the graph has no candidates.
    """
    graph = model.graph
    domains = {*model.opset_imports, *(node.domain for node in graph.all_nodes())}
    assert domains <= {""} and not model.functions, f"only standard operators are portable, got {sorted(domains)}"
    _declare(graph.inputs, inputs)
    _declare(graph.outputs, outputs)
    if num_candidates is not None:
        count = ir.val(num_candidates.name, _dtype(num_candidates), num_candidates.shape)
        graph.inputs.append(count)
        (top,) = [node for node in graph if node.op_type == "TopK"]
        top.replace_input_with(1, count)
        inputs = (*inputs, num_candidates)
    RemoveUnusedNodesPass()(model)
    ClearMetadataAndDocStringPass()(model)
    proto = ir.to_proto(model)
    # Sizes of the example hide in inferred shapes; the runtime would warn of them at every call.
    del proto.graph.value_info[:]
    # What the passes leave: of the model, and of its inputs, outputs and weights.
    del proto.metadata_props[:]
    for part in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    onnx.checker.check_model(proto)
    return TracedGraph(model=proto, opset=model.opset_imports[""], inputs=tuple(inputs), outputs=tuple(outputs))


def _declare(values: Sequence[ir.Value], specs: Sequence[TensorSpec]) -> None:
    """Names the dimensions as the manifest does; types and ranks must be what was traced."""
    assert [value.name for value in values] == [spec.name for spec in specs]
    for value, spec in zip(values, specs, strict=True):
        assert value.dtype == _dtype(spec) and len(value.shape or ()) == len(spec.shape), f"{value} is not {spec}"
        value.shape = ir.Shape(spec.shape)


def _dtype(spec: TensorSpec) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(spec.dtype))
