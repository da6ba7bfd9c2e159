"""How large the values of a graph can become, products included: what fits into fp16 whatever the input.

rewriting/bounds.py knows what tanh, sigmoid and softmax bound. Here it goes on through the products: |x W| <= |x| times
the largest sum of |W| over a column.
"""

from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.bounds import Bound, Bounds
from attendant.export.rewriting.graph import constant, operand, shape_of

RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})


class Magnitudes(Bounds):
    """The largest |x| of a graph's values; None where the graph does not tell."""

    def inside(self, node: ir.Node) -> float | None:
        """The largest |x| of what a node multiplies and adds up before anything bounds it; without a product's bias."""
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
        """Of a matrix product: one number, or one per feature."""
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
        """Weights and memory: a mean is no larger than what it is of. Queries and keys: feature by feature."""
        if (mean := super()._of_product(node)) is not None:
            return np.asarray(mean)
        second, sizes = self.largest(node.inputs[1]), shape_of(operand(node))
        if second is None or not sizes[-1]:
            return None
        return np.asarray((first.sum() if first.ndim else first * sizes[-1]) * second)


def _row_sum(weights: ir.Value | None) -> float:
    values = constant(weights)
    return np.inf if values is None else float(np.abs(values.astype(np.float64)).sum(-1).max())
