"""Puts ONNX graphs into the trace of a model in PyTorch: each is traced as one node, then replaces that node.

Shapes: R rows (of sources, in an encoder).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx
import onnx_ir as ir
import torch
from onnx import compose
from torch import Tensor, nn

DOMAIN: Final = "inlined"


class InlinedGraph(nn.Module):
    """A graph that is one node of a trace.

    Attributes:
        label: names the node; unique in the model.
        row_by_row: the graph takes a single row. It becomes the body of a `Scan` over the first axis of all its inputs,
            and its outputs get that axis, too.
    """

    def __init__(self, label: str, *, row_by_row: bool) -> None:
        super().__init__()
        self.label, self.row_by_row = label, row_by_row

    def onnx_model(self, opset: int) -> onnx.ModelProto:
        """Returns the graph in this version of ONNX's operators."""
        raise NotImplementedError

    def node(self, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], shapes: Sequence[Any]) -> Sequence[Tensor]:
        """Adds the node that the graph will replace to a trace; returns the node's outputs."""
        outputs: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{self.label}", inputs, dtypes=dtypes, shapes=shapes, version=1
        )
        return outputs


def inline(model: ir.Model, graphs: Mapping[str, InlinedGraph]) -> None:
    """Replaces the nodes of a trace that `InlinedGraph.node` has added by their graphs.

    Args:
        graphs: label -> the graph of the nodes with this label.
    """
    nodes = [node for node in model.graph if node.domain == DOMAIN]
    if not nodes:
        return
    opset = model.opset_imports[""]
    for number, node in enumerate(nodes):
        inlined = graphs[node.op_type]
        proto = compose.add_prefix(inlined.onnx_model(opset), f"{node.op_type}_{number}/")
        inner = ir.from_proto(proto).graph
        (_scan if inlined.row_by_row else _insert)(model.graph, node, inner)
    model.opset_imports.pop(DOMAIN, None)


def _insert(graph: ir.Graph, node: ir.Node, inner: ir.Graph) -> None:
    """Moves the nodes and constants of a graph to the place of a node."""
    for outer, value in zip(node.inputs, list(inner.inputs), strict=True):
        assert outer is not None
        value.replace_all_uses_with(outer, replace_graph_outputs=True)
    results = list(inner.outputs)
    inner.outputs.clear()
    for name, value in list(inner.initializers.items()):
        del inner.initializers[name]
        graph.register_initializer(value)
    nodes = list(inner)
    inner.remove(nodes)
    graph.insert_before(node, nodes)
    _replace(graph, node, results)


def _scan(graph: ir.Graph, node: ir.Node, body: ir.Graph) -> None:
    """Replaces a node by a `Scan` over rows, whose body is a graph of one row."""
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(node.inputs)}
    scan = ir.node("Scan", list(node.inputs), attributes, num_outputs=len(node.outputs), name=node.name)
    graph.insert_before(node, scan)
    _replace(graph, node, scan.outputs)


def _replace(graph: ir.Graph, node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Redirects all uses of a node's outputs to these values, and removes the node."""
    for old, new in zip(node.outputs, results, strict=True):
        if old.is_graph_output():
            identity = ir.node("Identity", [new])
            graph.insert_before(node, identity)
            new = identity.outputs[0]  # noqa: PLW2901
            old.name, new.name = f"{old.name}/replaced", old.name
        new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
