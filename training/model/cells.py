"""The decoder's recurrent cells: the same weights run over a whole target at once, or one step at a time.

Shapes: R rows, T target positions, I inputs, F fed-back inputs, H hidden size,
G = 4 H (LSTM), 3 H (GRU) or H (tanh RNN).
A cell's state is a tuple of [R, H] tensors in the order of `STATE_NAMES`.
"""

from abc import abstractmethod
from typing import ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.gates import GATES, CellKind, CellState, activate
from attendant.training.kernels.looped import LoopedProduct, at_every_step
from attendant.training.kernels.unrolled import unroll

RNN_CLASSES: Final[dict[CellKind, type[nn.RNNBase]]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}

STATE_NAMES: Final[dict[CellKind, tuple[str, ...]]] = {
    "lstm": ("hidden", "cell"),
    "gru": ("hidden",),
    "rnn": ("hidden",),
}


class DecoderCell(nn.Module):
    """A one-layer recurrence whose weights are those of `self.rnn`.

    The inputs of a step may have two parts: what is known beforehand (I) and what the loop itself feeds (F).
    """

    kind: ClassVar[CellKind]
    rnn: nn.RNNBase

    def __init__(self, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.feed_size = feed_size
        self.hidden_size = hidden_size

    def unroll(self, inputs: Tensor, state: CellState) -> Tensor:
        """Runs over inputs [R, T, I] at once, where the loop feeds nothing; returns the hidden states [R, T, H]."""
        return unroll(self.kind, self.rnn, inputs, state)

    def step(self, inputs: Tensor, state: CellState) -> CellState:
        """One step from inputs [R, I + F]."""
        rnn = self.rnn
        projected = F.linear(inputs, rnn.weight_ih_l0, rnn.bias_ih_l0)
        return self.activate(projected, F.linear(state[0], rnn.weight_hh_l0, rnn.bias_hh_l0), state)

    @abstractmethod
    def activate(self, projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
        """The new state.

        Args:
            projected: [R, G] W x + b of the inputs.
            recurrent: [R, G] U h + b' of the hidden state.
            state: the old state.
        """


class CellLoop:
    """A cell over T steps, each fed by what the loop has just computed; see LoopedProduct.

    Args:
        cell: whose weights.
        known: [T, R, I] inputs known beforehand, projected outside of the loop; None: all inputs are fed.
        num_rows, num_steps: R and T.
    """

    def __init__(self, cell: DecoderCell, known: Tensor | None, num_rows: int, num_steps: int) -> None:
        rnn = cell.rnn
        self._gates = GATES[cell.kind]
        bias = rnn.bias_ih_l0 + rnn.bias_hh_l0 if self._gates.adds else rnn.bias_ih_l0
        fed_weight = rnn.weight_ih_l0
        if known is None:
            projected = at_every_step(bias, num_rows, num_steps)
        else:
            known_weight, fed_weight = fed_weight.split([cell.input_size, cell.feed_size], 1)
            projected = F.linear(known, known_weight, bias)
        if self._gates.adds:
            self._products = [LoopedProduct(projected, fed_weight, rnn.weight_hh_l0)]
        else:
            recurrent = at_every_step(rnn.bias_hh_l0, num_rows, num_steps)
            self._products = [LoopedProduct(projected, fed_weight), LoopedProduct(recurrent, rnn.weight_hh_l0)]

    def step(self, fed: Tensor, state: CellState) -> CellState:
        """The next step, from fed inputs [R, F]."""
        inputs = [(fed, state[0])] if self._gates.adds else [(fed,), (state[0],)]
        products = tuple(product(*each) for product, each in zip(self._products, inputs, strict=True))
        return activate(self._gates, products, state)


class LSTMCell(DecoderCell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x + U h + b); g = tanh(W_g x + U_g h + b_g); c' = f c + i g; h' = o tanh(c').
    """

    kind = "lstm"

    def __init__(self, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__(input_size, feed_size, hidden_size)
        self.rnn = nn.LSTM(input_size + feed_size, hidden_size, batch_first=True)

    def activate(self, projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
        _, cell = state
        input_gate, forget_gate, candidate, output_gate = (projected + recurrent).chunk(4, -1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        return output_gate.sigmoid() * cell.tanh(), cell


class GRUCell(DecoderCell):
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the recurrent product, as cuDNN has it.

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r (U_n h + b'_n)); h' = (1 - z) n + z h.
    """

    kind = "gru"

    def __init__(self, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__(input_size, feed_size, hidden_size)
        self.rnn = nn.GRU(input_size + feed_size, hidden_size, batch_first=True)

    def activate(self, projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
        (hidden,) = state
        reset_input, update_input, candidate_input = projected.chunk(3, -1)
        reset_hidden, update_hidden, candidate_hidden = recurrent.chunk(3, -1)
        reset = (reset_input + reset_hidden).sigmoid()
        update = (update_input + update_hidden).sigmoid()
        candidate = (candidate_input + reset * candidate_hidden).tanh()
        return (candidate + update * (hidden - candidate),)


class TanhCell(DecoderCell):
    """The simple recurrent network (Elman 1990): h' = tanh(W x + U h + b)."""

    kind = "rnn"

    def __init__(self, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__(input_size, feed_size, hidden_size)
        self.rnn = nn.RNN(input_size + feed_size, hidden_size, batch_first=True)

    def activate(self, projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
        return ((projected + recurrent).tanh(),)


CELL_CLASSES: Final[dict[CellKind, type[DecoderCell]]] = {"lstm": LSTMCell, "gru": GRUCell, "rnn": TanhCell}


def stack_states(states: list[CellState]) -> CellState:
    """From each layer's parts [R, H] to parts [R, L, H]."""
    return tuple(torch.stack(parts, 1) for parts in zip(*states, strict=True))


def unstack_states(parts: CellState) -> list[CellState]:
    """From parts [R, L, H] to each layer's parts [R, H]."""
    return list(zip(*(part.unbind(1) for part in parts), strict=True))
