"""How large the values of a graph can become, products included: what fits into fp16 whatever the input.

bounds.py knows what tanh, sigmoid and softmax bound, feature by feature. Here one number per value is
enough, and it goes on through the products: |x W| <= |x| times the largest sum of |W| over a column.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
import onnx

from attendant.export.rewriting.bounds import Bound, Bounds
from attendant.export.rewriting.graph import GraphEditor, attribute
from attendant.runtime.bundle.manifest import StateTensor

MOVING: Final = frozenset(
    {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Split", "GatherElements", "Gather", "Transpose"}
)
"""They move the values of their first input about."""

RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})

COMBINED: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "Add": sum,
    "Sub": sum,
    "Mul": prod,
    "Concat": max,
    "Max": max,
    "Where": max,
}
"""How the magnitudes of a node's inputs make its output's."""


class Magnitudes:
    """The largest |x| of a graph's values, worked out when asked for; None where the graph does not tell."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, Bound] | None = None) -> None:
        """`inputs`: of the graph's own inputs, where they are known."""
        self._editor = GraphEditor(model)
        self._bounds = Bounds(self._editor, inputs)
        self._known: dict[str, Bound | None] = {}

    def of(self, value: str) -> Bound | None:
        """One number, or one per feature (the last axis)."""
        if value not in self._known:
            bound = self._bounds.of(value)
            self._known[value] = self._work_out(value) if bound is None else bound
        return self._known[value]

    def largest(self, value: str) -> float | None:
        bound = self.of(value)
        return None if bound is None else float(bound.max())

    def inside(self, node: onnx.NodeProto) -> float | None:
        """The largest |x| of what a node multiplies and adds up before anything bounds it; without a product's bias."""
        if node.op_type not in RECURRENT:
            product = self.product(node)
            return None if product is None else float(product.max())
        given, biases = self.largest(node.input[0]), self._editor.constant(node.input[3])
        if given is None or biases is None:
            return None
        # The hidden state of these layers is at most 1, and their weights are [D, G * H, K].
        products = given * self._row_sum(node.input[1]) + self._row_sum(node.input[2])
        return products + 2 * float(np.abs(biases).max())

    def product(self, node: onnx.NodeProto) -> Bound | None:
        """Of a matrix product without its bias: one number, or one per feature."""
        first, weights = self.of(node.input[0]), self._editor.constant(node.input[1])
        if first is None:
            return None
        if weights is None:
            return self._product_of_two(node, first)
        absolute = np.abs(weights.astype(np.float64))
        if node.op_type == "Gemm" and attribute(node, "transB", 0):
            absolute = absolute.T
        return np.asarray(first.max() * absolute.sum(-2 if absolute.ndim > 1 else -1))

    def _product_of_two(self, node: onnx.NodeProto, first: Bound) -> Bound | None:
        """Weights and memory: a mean is no larger than what it is of. Queries and keys: feature by feature."""
        if (mean := self._bounds.of(node.output[0])) is not None:
            return mean
        second, sizes = self.largest(node.input[1]), self._editor.shape(node.input[0])
        if second is None or not sizes[-1]:
            return None
        return np.asarray((first.sum() if first.ndim else first * sizes[-1]) * second)

    def _row_sum(self, weights: str) -> float:
        values = self._editor.constant(weights)
        return np.inf if values is None else float(np.abs(values.astype(np.float64)).sum(-1).max())

    def _work_out(self, value: str) -> Bound | None:
        node = self._editor.producer(value)
        if node is None:
            return None
        if node.op_type in MOVING:
            moved = self.of(node.input[0])
            return moved if moved is None or node.op_type == "Identity" else np.asarray(moved.max())
        if node.op_type in ("Gemm", "MatMul"):
            product = self.product(node)
            if product is None or len(node.input) < 3:
                return product
            added = self.largest(node.input[2])
            return None if added is None else product + added
        parts = [self.largest(name) for name in (node.input[-2:] if node.op_type == "Where" else node.input)]
        known = [part for part in parts if part is not None]
        combine = COMBINED.get(node.op_type)
        return np.asarray(combine(known)) if combine is not None and known and len(known) == len(parts) else None


def step_magnitudes(model: onnx.ModelProto, encoder: Magnitudes, state: Sequence[StateTensor]) -> Magnitudes:
    """Of a step, given that its state came from the encoder or from any number of steps before."""
    given = {tensor.input: known for tensor in state if (known := encoder.of(tensor.input)) is not None}
    while True:
        found, following = Magnitudes(model, given), dict(given)
        for tensor in state:
            if tensor.output is not None and tensor.input in given:
                after, before = found.largest(tensor.output), float(given[tensor.input].max())
                if after is None or after > max(before, 1.0):
                    # It grows from step to step.
                    del following[tensor.input]
                else:
                    following[tensor.input] = np.asarray(max(before, after))
        if all(following.get(name) is bound or following.get(name) == bound.max() for name, bound in given.items()):
            return found
        given = following
