"""The decoder's cells: the same weights run over a whole target at once, step by step, or in a loop of training.

Shapes: R rows, T target positions, L layers, I inputs, F fed-back inputs, H hidden size, G the gates' width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.cells import (
    RNN_CLASSES,
    CellKind,
    CellState,
    adds,
    next_state,
    step,
    unroll,
    weights_of,
)
from attendant.training.kernels.looped import LoopedProduct, at_every_step


class DecoderCell(nn.Module):
    """A one-layer recurrence whose weights are those of `self.rnn`.

    The inputs of a step may have two parts: what is known beforehand (I) and what the loop itself feeds (F).
    """

    def __init__(self, kind: CellKind, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__()
        self.kind = kind
        self.input_size = input_size
        self.feed_size = feed_size
        self.rnn = RNN_CLASSES[kind](input_size + feed_size, hidden_size, batch_first=True)

    def unroll(self, inputs: Tensor, state: CellState) -> Tensor:
        """Runs over inputs [R, T, I] at once, where the loop feeds nothing; returns the hidden states [R, T, H]."""
        return unroll(self.rnn, inputs, state)

    def step(self, inputs: Tensor, state: CellState) -> CellState:
        """One step from inputs [R, I + F]."""
        return step(self.rnn, self.kind, inputs, state)


class CellLoop:
    """A cell over T steps, each fed by what the loop has just computed; see LoopedProduct.

    Args:
        cell: whose weights.
        known: [T, R, I] inputs known beforehand, projected outside of the loop; None: all inputs are fed.
        num_rows, num_steps: R and T.
    """

    def __init__(self, cell: DecoderCell, known: Tensor | None, num_rows: int, num_steps: int) -> None:
        weights = weights_of(cell.rnn)
        self._kind = cell.kind
        bias = weights.input_bias + weights.hidden_bias if adds(cell.kind) else weights.input_bias
        fed_weight = weights.of_inputs
        if known is None:
            projected = at_every_step(bias, num_rows, num_steps)
        else:
            known_weight, fed_weight = torch.split(fed_weight, [cell.input_size, cell.feed_size], 1)
            projected = F.linear(known, known_weight, bias)
        if adds(cell.kind):
            self._products = [LoopedProduct(projected, fed_weight, weights.of_hidden)]
        else:
            recurrent = at_every_step(weights.hidden_bias, num_rows, num_steps)
            self._products = [LoopedProduct(projected, fed_weight), LoopedProduct(recurrent, weights.of_hidden)]

    def step(self, fed: Tensor, state: CellState) -> CellState:
        """The next step, from fed inputs [R, F]. The state has at least 32 bits, whatever the products have."""
        inputs = [(fed, state[0])] if adds(self._kind) else [(fed,), (state[0],)]
        products = [product(*each) for product, each in zip(self._products, inputs, strict=True)]
        return next_state(self._kind, [_in_32_bits(product) for product in products], state)


def _in_32_bits(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def stack_states(states: list[CellState]) -> CellState:
    """From each layer's parts [R, H] to parts [R, L, H]."""
    return tuple(torch.stack(parts, 1) for parts in zip(*states, strict=True))


def unstack_states(parts: CellState) -> list[CellState]:
    """From parts [R, L, H] to each layer's parts [R, H]."""
    return list(zip(*(part.unbind(1) for part in parts), strict=True))
