"""What a recurrent layer does at one position, as the body of a Scan.

Shapes: B sources, H hidden size of one direction, G gates (recurrent.py).

Gates stand in ONNX's order: update, reset, hidden (GRU). LSTM layers have a node of their own (lstm.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attendant.export.rewriting.graph import CONTRIBUTED
from attendant.export.rewriting.int8.activations import LARGEST_CODE, ZERO
from attendant.export.rewriting.int8.products import Matrix, quantized

HIDDEN_STEP: Final = 1 / LARGEST_CODE
"""Of hidden states, which lie within -1 and 1."""


class ScanBody:
    """The steps of all directions at one position.

    Each direction's inputs are joined to its hidden state, both as codes, and multiplied with [W; U] at once. States
    are, for each direction, the hidden state's codes and its values (GRU); what is scanned out are the codes.
    """

    def __init__(self, operator: str, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self._cell = CELLS[operator]
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._states: list[_State] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._step = self.constant(np.float32(HIDDEN_STEP))
        self._one = self.constant(np.float32(1.0))
        self._zero = self.constant(np.uint8(ZERO))

    @property
    def coded_states(self) -> list[bool]:
        """For each state [B, H], in order, whether it is codes; they begin with the code of 0, values with 0."""
        return [state.element == TensorProto.UINT8 for state in self._states]

    def add_direction(self, matrix: Matrix, bias: Matrix) -> None:
        """Adds a direction.

        Args:
            matrix: [I + H, N] of the joined codes, their steps folded in.
            bias: [N].
        """
        codes = self.state(TensorProto.UINT8)
        weights, scales = quantized(matrix)
        inputs = f"inputs_{len(self._inputs)}"
        self._inputs.append(inputs)
        joined = self.add("Concat", [inputs, codes.before], axis=-1)
        factors = [joined, self.constant(weights), self._one, self.constant(scales), self._zero, ""]
        bias_name = self.constant(bias.astype(np.float32))
        hidden = self._cell(self, self.add("MatMulIntegerToFloat", [*factors, bias_name], domain=CONTRIBUTED))
        codes.after = self.add("QuantizeLinear", [hidden, self._step, self._zero])
        # One name can't be two of the body's outputs.
        self._outputs.append(self.add("Identity", [codes.after]))

    def add(self, operator: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        return self.add_many(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, inputs: Sequence[str], count: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        outputs = [f"{operator}_{len(self._nodes)}_{number}" for number in range(count)]
        self._nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs

    def constant(self, values: Matrix | np.generic) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def state(self, element: int) -> "_State":
        """A new state, whose value after the position is still to be given."""
        state = _State(f"state_{len(self._states)}", element)
        self._states.append(state)
        return state

    def to_graph(self) -> onnx.GraphProto:
        """State before and inputs -> state after and codes."""
        before = [(state.before, state.element) for state in self._states]
        after = [(state.after, state.element) for state in self._states]
        scanned = [[(name, TensorProto.UINT8) for name in names] for names in (self._inputs, self._outputs)]
        return helper.make_graph(
            self._nodes,
            "position",
            [helper.make_tensor_value_info(name, element, None) for name, element in (*before, *scanned[0])],
            [helper.make_tensor_value_info(name, element, None) for name, element in (*after, *scanned[1])],
            self._constants,
        )


@dataclass(slots=True)
class _State:
    before: str
    element: int
    after: str = ""


def _gru(body: ScanBody, sums: str) -> str:
    """z, r = sigmoid of the sums; n = tanh(x + r u), x and u the last of the sums [B, 4 H]; h' = n + z (h - n)."""
    hidden = body.state(TensorProto.FLOAT)
    size = body.hidden_size
    gates, of_inputs, of_hidden = body.add_many(
        "Split", [sums, body.constant(np.array([2 * size, size, size]))], 3, axis=-1
    )
    update, reset = body.add_many("Split", [body.add("Sigmoid", [gates])], 2, axis=-1, num_outputs=2)
    candidate = body.add("Tanh", [body.add("Add", [of_inputs, body.add("Mul", [reset, of_hidden])])])
    difference = body.add("Sub", [hidden.before, candidate])
    hidden.after = body.add("Add", [candidate, body.add("Mul", [update, difference])])
    return hidden.after


def _tanh(body: ScanBody, sums: str) -> str:
    """H' = tanh of the sums [B, H]."""
    return body.add("Tanh", [sums])


CELLS: Final[Mapping[str, Callable[[ScanBody, str], str]]] = {"GRU": _gru, "RNN": _tanh}
"""Each adds a cell to a body: from the sums of W x, U h and b [B, N] the hidden state [B, H]."""


def stacked(operator: str, weights: Matrix, recurrent: Matrix, biases: Matrix) -> tuple[Matrix, Matrix]:
    """One matrix [I + H, N] and one bias [N] for a direction's two products.

    A GRU's reset gate multiplies only the recurrent half of its candidate: the halves stay apart, N = 4 H.

    Args:
        weights: [I, G H], its activation's steps folded in; recurrent: [H, G H], likewise.
        biases: [2 G H] of both, as the ONNX node has them.
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
