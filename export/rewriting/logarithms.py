"""Rewrites logarithms so that the result for an element doesn't depend on its place in the tensor."""

from typing import Final

import numpy as np
import onnx

from attendant.export.graph import GraphEditor, TracedGraph, operand

REWRITTEN: Final = frozenset({"Log", "Softplus"})


def by_element(model: onnx.ModelProto) -> TracedGraph:
    """Returns a graph with ReduceLogSum over an axis of one element instead of Log, also instead of that in Softplus.

    ONNX Runtime computes Log and Softplus in vectors, and the elements that are left over at the ends of each thread's
    part with another function, which rounds differently. A reduction uses one function for all elements, as Exp does.
    The results have the same accuracy and take as long.
    """
    editor = GraphEditor(model, "logarithms")
    nodes = [node for node in editor.graph if node.op_type in REWRITTEN]
    last, unit = editor.integers(-1), editor.add_constant(np.float32(1), "one")
    for node in nodes:
        x = argument = operand(node)
        if node.op_type == "Softplus":
            # log(1 + exp(x)), without large exponents: max(x, 0) + log(1 + exp(-|x|)).
            argument = editor.add("Add", [editor.add("Exp", [editor.add("Neg", [editor.add("Abs", [x])])]), unit])
        result = editor.add("ReduceLogSum", [editor.add("Unsqueeze", [argument, last]), last], keepdims=0)
        if node.op_type == "Softplus":
            result = editor.add("Add", [editor.add("Relu", [x]), result])
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        editor.replace(node.outputs[0], result)
    return editor.finished()
