"""Bounds: how large the values of a graph can become with any input.

tanh, sigmoid and softmax are bounded, and so are hidden states, means of them and embeddings (a table of constants).
int8 quantizes a bounded value in fixed steps, and one without a bound (cell states, projections) by a scale per row;
fp16 keeps values in fp32 that could overflow.

A bound is the largest |x| of each feature (the last axis): a scalar if all features have the same, else [K].
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from attendant.export.graph import RECURRENT, constant, inputs_of, keeps_last_axis, made_by, operand, shape_of
from attendant.runtime.bundle.manifest import StateTensor

Bound = NDArray[np.float64]
"""[] or [K]."""

BOUNDED_BY_ONE = frozenset({"Tanh", "Sigmoid", "Softmax"}) | RECURRENT
"""Also recurrent layers: their hidden states start from zero. The cell states of an LSTM are not bounded."""

MOVING = frozenset(
    {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Split", "GatherElements", "Gather", "Transpose"}
)
"""Operators that only move the values of their first input."""

COMBINING: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Add": sum,
    "Sub": sum,
    "Mul": prod,
    "Concat": max,
    "Max": max,
    "Where": max,
}
"""Operator -> the function from the bounds of a node's inputs to that of its output."""


class Bounds:
    """Bounds of a graph's values. A pass over its nodes computes them from the bounds of the graph's inputs."""

    def __init__(self, graph: ir.Graph, inputs: Mapping[str, Bound]) -> None:
        self._known: dict[ir.Value, Bound] = {}
        for value in graph.inputs:
            self._note(value, inputs.get(value.name or ""))
        for value in graph.initializers.values():
            self._note(value, _of_constant(value))
        for node in graph:
            for value in node.outputs:
                self._note(value, _of_constant(value) if constant(value) is not None else self._of_output(node, value))

    def of(self, value: ir.Value | None) -> Bound | None:
        """Returns the bound of a value, [] or [K] float64; None if there is none."""
        return None if value is None else self._known.get(value)

    def largest(self, value: ir.Value | None) -> float | None:
        """Returns the largest bound of all features."""
        bound = self.of(value)
        return None if bound is None else float(bound.max())

    def _note(self, value: ir.Value, bound: Bound | float | None) -> None:
        if bound is not None:
            self._known[value] = np.asarray(bound, np.float64)

    def _of_output(self, node: ir.Node, value: ir.Value) -> Bound | float | None:
        if node.op_type in BOUNDED_BY_ONE:
            return None if node.op_type == "LSTM" and value in node.outputs[2:] else 1.0
        if node.op_type in MOVING:
            return self.of(node.inputs[0]) if _keeps_features(node) else self.largest(node.inputs[0])
        if node.op_type in ("MatMul", "Gemm"):
            return self._of_product(node)
        if node.op_type in COMBINING:
            mixed = self._mixture(node) if node.op_type == "Add" else None
            return self._combined(node) if mixed is None else mixed
        return None

    def _combined(self, node: ir.Node) -> float | None:
        parts = [self.largest(value) for value in inputs_of(node)[-2 if node.op_type == "Where" else 0 :]]
        known = [part for part in parts if part is not None]
        return COMBINING[node.op_type](known) if len(known) == len(parts) else None

    def _of_product(self, node: ir.Node) -> Bound | float | None:
        # A mean of the memory under attention weights is no larger than the memory.
        return self.largest(node.inputs[1]) if made_by(node.inputs[0], "Softmax") is not None else None

    def _mixture(self, node: ir.Node) -> float | None:
        """Returns the bound of a + z (b - a), which lies between a and b if z is in [0, 1] (GRU)."""
        for a, product in (node.inputs, reversed(node.inputs)):
            mul = made_by(product, "Mul")
            for z, difference in (mul.inputs, reversed(mul.inputs)) if mul is not None else ():
                sub = made_by(difference, "Sub")
                if sub is not None and sub.inputs[1] is a and made_by(z, "Sigmoid") is not None:
                    first, second = self.largest(a), self.largest(sub.inputs[0])
                    return None if first is None or second is None else max(first, second)
        return None


class Magnitudes(Bounds):
    """Bounds that include products: |x W| <= |x| times the largest sum of |W| over a column."""

    def inside(self, node: ir.Node) -> float | None:
        """Returns the largest |x| of a node's products and their sums, before activation and bias."""
        if node.op_type not in RECURRENT:
            product = self._without_bias(node)
            return None if product is None else float(product.max())
        largest, biases = self.largest(node.inputs[0]), constant(node.inputs[3])
        if largest is None or biases is None:
            return None
        # The hidden state of these layers is at most 1, and their weights are [D, G * H, K].
        products = largest * _row_sum(node.inputs[1]) + _row_sum(node.inputs[2])
        return products + 2 * float(np.abs(biases).max())

    def _of_product(self, node: ir.Node) -> Bound | float | None:
        product = self._without_bias(node)
        if product is None or len(node.inputs) < 3:
            return product
        bias = self.largest(node.inputs[2])
        return None if bias is None else product + bias

    def _without_bias(self, node: ir.Node) -> Bound | None:
        """Returns the bound of a matrix product without its bias."""
        first, weights = self.of(node.inputs[0]), constant(node.inputs[1])
        if first is None:
            return None
        if weights is None:
            return self._of_two(node, first)
        absolute = np.abs(weights.astype(np.float64))
        if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
            absolute = absolute.T
        return np.asarray(first.max() * absolute.sum(-2 if absolute.ndim > 1 else -1))

    def _of_two(self, node: ir.Node, first: Bound) -> Bound | None:
        """Returns the bound of attention's products: a mean of the memory, or queries and keys feature by feature."""
        if (mean := super()._of_product(node)) is not None:
            return np.asarray(mean)
        second, sizes = self.largest(node.inputs[1]), shape_of(operand(node))
        if second is None or not sizes[-1]:
            return None
        return np.asarray((first.sum() if first.ndim else first * sizes[-1]) * second)


AnyBounds = TypeVar("AnyBounds", bound=Bounds)


def step_bounds(
    kind: type[AnyBounds], encoder: ir.Graph, step: ir.Graph, state: Sequence[StateTensor]
) -> tuple[AnyBounds, AnyBounds]:
    """Returns the bounds of both graphs; a step's state is the encoder's, or that after any number of steps."""
    first = kind(encoder, {})
    firsts = {value.name: first.of(value) for value in encoder.outputs}
    known = {tensor.input: bound for tensor in state if (bound := firsts[tensor.input]) is not None}
    while True:
        bounds, following = kind(step, known), dict(known)
        afters = {value.name: bounds.largest(value) for value in step.outputs}
        for tensor in state:
            if tensor.output is not None and tensor.input in known:
                after, before = afters[tensor.output], float(known[tensor.input].max())
                if after is None or after > max(before, 1.0):
                    # It grows from step to step.
                    del following[tensor.input]
                else:
                    following[tensor.input] = np.asarray(max(before, after))
        if all(name in following and np.all(following[name] == bound) for name, bound in known.items()):
            return first, bounds
        known = following


def _of_constant(value: ir.Value) -> Bound | None:
    values = constant(value)
    if values is None or values.dtype.kind != "f" or not values.size:
        return None
    features = np.abs(values.astype(np.float64)).reshape(-1, values.shape[-1] if values.ndim else 1).max(0)
    return np.asarray(features[0]) if (features == features[0]).all() else features


def _keeps_features(node: ir.Node) -> bool:
    """Returns True if a node that moves values keeps the last axis."""
    if node.op_type != "Gather":
        return keeps_last_axis(node)
    table = constant(node.inputs[0])
    return node.attributes.get_int("axis", 0) == 0 and (table is None or table.ndim == 2)


def _row_sum(weights: ir.Value | None) -> float:
    values = constant(weights)
    return np.inf if values is None else float(np.abs(values.astype(np.float64)).sum(-1).max())
