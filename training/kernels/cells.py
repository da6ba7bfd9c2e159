"""The recurrent cells: functions from a step's products and the old state to the new state.

They are made of ordinary operations: a decoder runs them step by step, an export traces them, and autograd finds their
gradients, of which derivatives by hand were measured to be no faster.

Shapes: R rows, T steps, I inputs, H hidden size, G = 4 H (LSTM), 3 H (GRU) or H (tanh RNN).
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attendant.training.kernels.precision import runnable_lstm

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


def lstm(product: Tensor, state: CellState) -> CellState:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x + U h + b); g = tanh(W_g x + U_g h + b_g); c' = f c + i g; h' = o tanh(c').

    Args:
        product: W x + U h + b, [R, G].
        state: hidden and cell, [R, H] each.

    Returns:
        the new state, [R, H] each; so do the other cells.
    """
    _, cell = state
    input_gate, forget_gate, candidate, output_gate = product.chunk(4, -1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def gru(projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the recurrent product, as cuDNN has it.

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r (U_n h + b'_n)); h' = (1 - z) n + z h.

    Args:
        projected: W x + b, [R, G].
        recurrent: U h + b', [R, G].
        state: hidden, [R, H].
    """
    (hidden,) = state
    reset_input, update_input, candidate_input = projected.chunk(3, -1)
    reset_hidden, update_hidden, candidate_hidden = recurrent.chunk(3, -1)
    reset = (reset_input + reset_hidden).sigmoid()
    update = (update_input + update_hidden).sigmoid()
    candidate = (candidate_input + reset * candidate_hidden).tanh()
    return (candidate + update * (hidden - candidate),)


def tanh_rnn(product: Tensor) -> CellState:
    """The simple recurrent network (Elman 1990): h' = tanh(W x + U h + b), of the product [R, G]."""
    return (product.tanh(),)


def adds(kind: CellKind) -> bool:
    """Whether only the sum of both products counts, that of the inputs and that of the hidden state."""
    return kind != "gru"


def next_state(kind: CellKind, products: Sequence[Tensor], state: CellState) -> CellState:
    """The cell's new state.

    Args:
        products: [R, G] each: W x + U h + b, or W x + b and U h + b' where they do not simply add.
        state: the old state, [R, H] each.
    """
    match kind:
        case "lstm":
            return lstm(products[0], state)
        case "gru":
            return gru(products[0], products[1], state)
        case "rnn":
            return tanh_rnn(products[0])


def step(rnn: nn.RNNBase, kind: CellKind, inputs: Tensor, state: CellState) -> CellState:
    """One step of a layer in one direction, from inputs [R, I] and the old state, [R, H] each."""
    weights = weights_of(rnn)
    projected = F.linear(inputs, weights.of_inputs, weights.input_bias)
    recurrent = F.linear(state[0], weights.of_hidden, weights.hidden_bias)
    return next_state(kind, (projected + recurrent,) if adds(kind) else (projected, recurrent), state)


def unroll(rnn: nn.RNNBase, inputs: Tensor, state: CellState | None = None) -> Tensor:
    """Runs a layer in one direction over all steps of every row.

    Args:
        inputs: [R, T, I].
        state: the first state, [R, H] each. If None, it is zeros.

    Returns:
        hidden states [R, T, H].
    """
    first = None if state is None else tuple(part.unsqueeze(0) for part in state)
    with runnable_lstm(inputs):
        outputs: Tensor = rnn(inputs, first[0] if first is not None and len(first) == 1 else first)[0]
    return outputs


def unroll_unequal(rnn: nn.RNNBase, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
    """Runs a layer in one direction from zeros over each row's own number of steps.

    Args:
        inputs: [R, T, I].
        lengths: [R] int64, at least 1.

    Returns:
        hidden states [R, T, H], zeros beyond the lengths; and the states at each row's last step, [R, H] each.
    """
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    with runnable_lstm(inputs):
        outputs, states = rnn(packed)
    padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return padded, tuple(state.squeeze(0) for state in states)
