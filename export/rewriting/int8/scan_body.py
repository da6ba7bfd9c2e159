"""One position of a recurrent layer in integers, as the body of a Scan.

Shapes: B sources, H hidden size of one direction, G gates (recurrent.py).

Gates stand in ONNX's order: update, reset, hidden (GRU). LSTM layers have a node of their own (lstm.py).
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import onnx_ir as ir

from attendant.export.rewriting.graph import GraphBuilder
from attendant.export.rewriting.int8.activations import LARGEST_CODE, ZERO
from attendant.export.rewriting.int8.products import Matrix, quantized

HIDDEN_STEP: Final = 1 / LARGEST_CODE
"""Of hidden states, which lie within -1 and 1."""


class ScanBody(GraphBuilder):
    """The steps of all directions at one position.

    Each direction's inputs are concatenated with its hidden state, both as codes, and multiplied with [W; U] at once.
    Each direction carries its hidden state as codes, a GRU also as values; the outputs are the codes.
    """

    def __init__(self, operator: str, hidden_size: int) -> None:
        super().__init__(ir.Graph([], [], nodes=[], name="position"), "position")
        self.hidden_size = hidden_size
        self._cell = CELLS[operator]
        self._states: dict[ir.Value, ir.Value] = {}
        self._scanned: dict[ir.Value, ir.Value] = {}
        self._step = self.add_constant(np.float32(HIDDEN_STEP), "step")
        self._one = self.add_constant(np.float32(1.0), "one")
        self._zero = self.add_constant(np.uint8(ZERO), "zero")

    @property
    def coded_states(self) -> list[bool]:
        """For each state [B, H], in order, whether it is codes; they begin with the code of 0, values with 0."""
        return [state.dtype == ir.DataType.UINT8 for state in self._states]

    def add_direction(self, matrix: Matrix, bias: Matrix) -> None:
        """Adds a direction.

        Args:
            matrix: [I + H, N] float64 of the joined codes, their steps folded in.
            bias: [N] float.
        """
        before, inputs = (ir.val(self.unique(name), ir.DataType.UINT8) for name in ("codes", "inputs"))
        # Its place among the states is before those that the cell adds.
        self._states[before] = before
        weights, scales = quantized(matrix)
        joined = self.add("Concat", [inputs, before], axis=-1)
        factors = joined, self.add_constant(weights, "weights"), self._one, self.add_constant(scales, "scales")
        sums = self.multiply_integers(*factors, self._zero, self.add_constant(bias.astype(np.float32), "bias"))
        hidden = self._cell(self, sums)
        after = self.add("QuantizeLinear", [hidden, self._step, self._zero])
        self.set_state(before, after)
        # One name can't be two of the body's outputs.
        self._scanned[inputs] = self.add("Identity", [after])

    def set_state(self, before: ir.Value, after: ir.Value) -> None:
        """What a state is after the position."""
        after.dtype = before.dtype or ir.DataType.UNDEFINED
        self._states[before] = after

    def to_graph(self) -> ir.Graph:
        """State before and inputs -> state after and codes."""
        for codes in self._scanned.values():
            codes.dtype = ir.DataType.UINT8
        self.graph.inputs.extend([*self._states, *self._scanned])
        self.graph.outputs.extend([*self._states.values(), *self._scanned.values()])
        return self.graph


def _gru(body: ScanBody, sums: ir.Value) -> ir.Value:
    """z, r = sigmoid of the sums; n = tanh(x + r u), x and u the last of the sums [B, 4 H]; h' = n + z (h - n)."""
    hidden = ir.val(body.unique("hidden"), ir.DataType.FLOAT)
    size = body.hidden_size
    gates, of_inputs, of_hidden = body.add_many("Split", [sums, body.integers(2 * size, size, size)], 3, axis=-1)
    update, reset = body.add_many("Split", [body.add("Sigmoid", [gates])], 2, axis=-1, num_outputs=2)
    candidate = body.add("Tanh", [body.add("Add", [of_inputs, body.add("Mul", [reset, of_hidden])])])
    difference = body.add("Sub", [hidden, candidate])
    after = body.add("Add", [candidate, body.add("Mul", [update, difference])])
    body.set_state(hidden, after)
    return after


CELLS: Final[Mapping[str, Callable[[ScanBody, ir.Value], ir.Value]]] = {
    "GRU": _gru,
    "RNN": lambda body, sums: body.add("Tanh", [sums]),
}
"""Each adds a cell to a body: from the sums of W x, U h and b [B, N] the hidden state [B, H]."""


def stacked(operator: str, weights: Matrix, recurrent: Matrix, biases: Matrix) -> tuple[Matrix, Matrix]:
    """One matrix [I + H, N] float64 and one bias [N] float32 for a direction's two products.

    A GRU's reset gate multiplies only the recurrent half of its candidate: the halves stay apart, N = 4 H.

    Args:
        weights: [I, G H] float64, its activation's steps folded in; recurrent: [H, G H], likewise.
        biases: [2 G H] float32 of both, as the ONNX node has them.
    """
    of_inputs, of_hidden = np.split(biases, 2)
    if operator != "GRU":
        return np.concatenate([weights, recurrent]), of_inputs + of_hidden
    (input_gates, input_candidate), (hidden_gates, hidden_candidate) = (
        np.split(matrix, [matrix.shape[-1] * 2 // 3], axis=-1) for matrix in (weights, recurrent)
    )
    nothing = np.zeros_like(input_candidate), np.zeros_like(hidden_candidate)
    matrix = np.block([[input_gates, input_candidate, nothing[0]], [hidden_gates, nothing[1], hidden_candidate]])
    split = of_inputs.shape[0] * 2 // 3
    gates = of_inputs[:split] + of_hidden[:split]
    return matrix, np.concatenate([gates, of_inputs[split:], of_hidden[split:]])
