"""The recurrent cells, plainly. Read this first: whatever trains faster (gates, looped, unrolled) gives the same.

Each cell is a function from its two products and its old state to its new state, made of ordinary operations: a
decoder runs it step by step, an export traces it, and autograd finds its gradients.

Shapes: R rows, I inputs, H hidden size, G = 4 H (LSTM), 3 H (GRU) or H (tanh RNN).
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from torch import Tensor, nn

CellKind = Literal["lstm", "gru", "rnn"]

CellState = tuple[Tensor, ...]
"""Tensors [R, H] in the order of `STATE_NAMES`."""

STATE_NAMES: Final[dict[CellKind, tuple[str, ...]]] = {
    "lstm": ("hidden", "cell"),
    "gru": ("hidden",),
    "rnn": ("hidden",),
}

RNN_CLASSES: Final[dict[CellKind, type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
}
"""torch's layers: they hold the weights, in torch's order of the gates."""


class RecurrentWeights(NamedTuple):
    """W [G, I] and b [G] of the inputs, U [G, H] and b' [G] of the hidden state."""

    of_inputs: Tensor
    of_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


def weights_of(rnn: nn.RNNBase) -> RecurrentWeights:
    """The weights of a layer in one direction."""
    return RecurrentWeights(*rnn.all_weights[0])


def lstm(projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x + U h + b); g = tanh(W_g x + U_g h + b_g); c' = f c + i g; h' = o tanh(c').

    Args:
        projected: W x + b of the inputs, [R, G].
        recurrent: U h + b' of the hidden state, [R, G].
        state: hidden and cell, [R, H] each.

    Returns:
        the new state; so do all cells.
    """
    _, cell = state
    input_gate, forget_gate, candidate, output_gate = (projected + recurrent).chunk(4, -1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def gru(projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the recurrent product, as cuDNN has it.

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r (U_n h + b'_n)); h' = (1 - z) n + z h.
    """
    (hidden,) = state
    reset_input, update_input, candidate_input = projected.chunk(3, -1)
    reset_hidden, update_hidden, candidate_hidden = recurrent.chunk(3, -1)
    reset = (reset_input + reset_hidden).sigmoid()
    update = (update_input + update_hidden).sigmoid()
    candidate = (candidate_input + reset * candidate_hidden).tanh()
    return (candidate + update * (hidden - candidate),)


def tanh_rnn(projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
    """The simple recurrent network (Elman 1990): h' = tanh(W x + U h + b)."""
    del state
    return ((projected + recurrent).tanh(),)


CELLS: Final[dict[CellKind, Callable[[Tensor, Tensor, CellState], CellState]]] = {
    "lstm": lstm,
    "gru": gru,
    "rnn": tanh_rnn,
}
