"""How large the values of a graph can become, whatever the input: what fixes a scale for good.

tanh, sigmoid and softmax are bounded, and so are hidden states, means of them and embeddings (a table of constants).
A value with a known bound needs no look at the row to be quantized. Values without one (cell states, projections)
are left to a scale per row.

A bound is the largest |x| of each feature (the last axis): a scalar where all have the same, else [K].
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from attendant.export.rewriting.graph import GraphEditor, attribute

Bound = NDArray[np.float64]
"""[] or [K]."""

PRESERVING = frozenset({"Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Split", "GatherElements"})
"""They move values about: the largest of all features holds wherever those come to stand."""


class Bounds:
    """The bounds of a graph's values, worked out when asked for.

    Args:
        inputs: the bounds of the graph's own inputs, where they are known.
    """

    def __init__(self, editor: GraphEditor, inputs: Mapping[str, Bound] | None = None) -> None:
        self._editor = editor
        self._known: dict[str, Bound | None] = dict(inputs or {})

    def of(self, value: str) -> Bound | None:
        """The bound of a value; None: it has none that could be told from the graph."""
        if value not in self._known:
            self._known[value] = self._work_out(value)
        return self._known[value]

    def _work_out(self, value: str) -> Bound | None:
        constant = self._editor.constant(value)
        if constant is not None:
            if constant.dtype.kind != "f" or not constant.size:
                return None
            flat = np.abs(constant.astype(np.float64)).reshape(-1, constant.shape[-1] if constant.ndim else 1)
            return _simplified(flat.max(0))
        node = self._editor.producer(value)
        if node is None:
            return None
        if node.op_type in PRESERVING:
            return _largest(self.of(node.input[0]))
        rule = RULES.get(node.op_type)
        return None if rule is None else rule(self, self._editor, node, value)


def _one(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    """tanh, sigmoid, probabilities; the hidden states of recurrent layers that start from zero (not their cells)."""
    cells = {*node.output[2:]} if node.op_type == "LSTM" else set()
    return None if value in cells else np.array(1.0)


def _concat(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    parts = [bounds.of(name) for name in node.input]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    scalars = [_largest(part) for part in known]
    largest = np.max([scalar for scalar in scalars if scalar is not None])
    return np.array(largest)


def _gather(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    bound = bounds.of(node.input[0])
    table = editor.constant(node.input[0])
    keeps_features = attribute(node, "axis", 0) == 0 and (table is None or table.ndim == 2)
    return bound if keeps_features else _largest(bound)


def _transpose(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    bound, order = bounds.of(node.input[0]), attribute(node, "perm")
    return bound if order is not None and order[-1] == len(order) - 1 else _largest(bound)


def _mul(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    first, second = (_largest(bounds.of(name)) for name in node.input)
    return None if first is None or second is None else first * second


def _add(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    if node.op_type == "Add" and (mixed := _mixture(bounds, editor, node)) is not None:
        return mixed
    first, second = (_largest(bounds.of(name)) for name in node.input)
    return None if first is None or second is None else first + second


def _mixture(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto) -> Bound | None:
    """A + z (b - a) with z in [0, 1] lies between a and b (GRU)."""
    for a, product in (node.input, reversed(node.input)):
        mul = editor.made_by(product, "Mul")
        for z, difference in (mul.input, reversed(mul.input)) if mul is not None else ():
            sub = editor.made_by(difference, "Sub")
            if sub is not None and sub.input[1] == a and editor.made_by(z, "Sigmoid") is not None:
                one, other = _largest(bounds.of(a)), _largest(bounds.of(sub.input[0]))
                return None if one is None or other is None else np.maximum(one, other)
    return None


def _either(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    first, second = (_largest(bounds.of(name)) for name in node.input[-2:])
    return None if first is None or second is None else np.maximum(first, second)


def _matmul(bounds: Bounds, editor: GraphEditor, node: onnx.NodeProto, value: str) -> Bound | None:
    """A mean of the memory under attention weights is no larger than the memory."""
    return _largest(bounds.of(node.input[1])) if editor.made_by(node.input[0], "Softmax") is not None else None


RULES: Mapping[str, Callable[[Bounds, GraphEditor, onnx.NodeProto, str], Bound | None]] = {
    **dict.fromkeys(("Tanh", "Sigmoid", "Softmax", "LSTM", "GRU", "RNN"), _one),
    "Concat": _concat,
    "Gather": _gather,
    "Transpose": _transpose,
    "Mul": _mul,
    "Add": _add,
    "Sub": _add,
    "Where": _either,
    "Max": _either,
    "MatMul": _matmul,
}


def _largest(bound: Any) -> Bound | None:
    return None if bound is None else np.array(np.max(bound))


def _simplified(bound: Bound) -> Bound:
    return np.array(bound[0]) if (bound == bound[0]).all() else bound
