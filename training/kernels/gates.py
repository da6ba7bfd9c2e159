"""What each cell makes of its products, forward and backward by hand: a few operations in place of autograd's many.

Shapes: R rows, H hidden size, G = 4 H (LSTM), 3 H (GRU) or H (tanh RNN).

Within, numbers have at least 32 bits, whatever the type of the products.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CellKind = Literal["lstm", "gru", "rnn"]
Tensors = tuple[Tensor, ...]

CellState = tuple[Tensor, ...]
"""Tensors [R, H] in the order of `STATE_NAMES`."""


class Gates(ABC):
    """A cell after its products.

    Attributes:
        adds: only the sum of both products counts, that of the inputs and that of the hidden state.
    """

    adds: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def forward(products: Tensors, state: CellState) -> tuple[CellState, Tensors]:
        """The new state, and what `backward` needs.

        Args:
            products: W x + U h + b, [R, G]; W x + b and U h + b' where they don't simply add.
            state: the old state.
        """

    @staticmethod
    @abstractmethod
    def backward(kept: Tensors, gradients: CellState) -> tuple[Tensors, tuple[Tensor | None, ...]]:
        """The gradients of the products; and of the old state, as far as it does not go through the products.

        Args:
            kept: by `forward`.
            gradients: of the new state.
        """


class LSTMGates(Gates):
    """i, f, o = sigmoid; g = tanh; c' = f c + i g; h' = o tanh(c')."""

    adds = True

    @staticmethod
    def forward(products: Tensors, state: CellState) -> tuple[CellState, Tensors]:
        (product,), (_, cell) = products, state
        gates = torch.empty_like(product)
        torch.sigmoid(product, out=gates)
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
        torch.tanh(product.chunk(4, 1)[2], out=candidate)
        new_cell = (forget_gate * cell).addcmul_(input_gate, candidate)
        squashed = new_cell.tanh()
        return (output_gate * squashed, new_cell), (gates, cell, squashed)

    @staticmethod
    def backward(kept: Tensors, gradients: CellState) -> tuple[Tensors, tuple[Tensor | None, ...]]:
        (gates, cell, squashed), (of_hidden, of_cell) = kept, gradients
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
        of_product = torch.empty_like(gates)
        of_input, of_forget, of_candidate, of_output = of_product.chunk(4, 1)
        of_cell = of_cell + _tanh_backward(of_hidden * output_gate, squashed)
        _sigmoid_backward(of_hidden * squashed, output_gate, grad_input=of_output)
        _sigmoid_backward(of_cell * candidate, input_gate, grad_input=of_input)
        _sigmoid_backward(of_cell * cell, forget_gate, grad_input=of_forget)
        _tanh_backward(of_cell * input_gate, candidate, grad_input=of_candidate)
        return (of_product,), (None, of_cell * forget_gate)


class GRUGates(Gates):
    """r, z = sigmoid; n = tanh(W_n x + b_n + r (U_n h + b'_n)); h' = n + z (h - n)."""

    adds = False

    @staticmethod
    def forward(products: Tensors, state: CellState) -> tuple[CellState, Tensors]:
        (projected, recurrent), (hidden,) = products, state
        size = hidden.shape[1]
        gates = (projected[:, : 2 * size] + recurrent[:, : 2 * size]).sigmoid_()
        reset, update = gates.chunk(2, 1)
        inner = recurrent[:, 2 * size :]
        candidate = torch.addcmul(projected[:, 2 * size :], reset, inner).tanh_()
        return (torch.lerp(candidate, hidden, update),), (gates, candidate, inner, hidden)

    @staticmethod
    def backward(kept: Tensors, gradients: CellState) -> tuple[Tensors, tuple[Tensor | None, ...]]:
        (gates, candidate, inner, hidden), (of_new,) = kept, gradients
        size = hidden.shape[1]
        reset, update = gates.chunk(2, 1)
        of_old = of_new * update
        of_projected = gates.new_empty(len(gates), 3 * size)
        of_gates, of_candidate = of_projected[:, : 2 * size], of_projected[:, 2 * size :]
        _tanh_backward(of_new - of_old, candidate, grad_input=of_candidate)
        outer = torch.cat([of_candidate * inner, of_new * (hidden - candidate)], 1)
        _sigmoid_backward(outer, gates, grad_input=of_gates)
        of_recurrent = torch.cat([of_gates, of_candidate * reset], 1)
        return (of_projected, of_recurrent), (of_old,)


class TanhGates(Gates):
    """h' = tanh."""

    adds = True

    @staticmethod
    def forward(products: Tensors, state: CellState) -> tuple[CellState, Tensors]:
        hidden = products[0].tanh()
        return (hidden,), (hidden,)

    @staticmethod
    def backward(kept: Tensors, gradients: CellState) -> tuple[Tensors, tuple[Tensor | None, ...]]:
        return (_tanh_backward(gradients[0], kept[0]),), (None,)


GATES: Final[dict[CellKind, type[Gates]]] = {"lstm": LSTMGates, "gru": GRUGates, "rnn": TanhGates}

_sigmoid_backward = torch.ops.aten.sigmoid_backward
_tanh_backward = torch.ops.aten.tanh_backward


def activate(gates: type[Gates], products: Tensors, state: CellState) -> CellState:
    """The new state, for autograd."""
    new_state: CellState = _Activation.apply(gates, len(products), *products, *state)  # type: ignore[no-untyped-call]
    return new_state


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: type[Gates], num_products: int, *tensors: Tensor) -> CellState:
        products, state = tensors[:num_products], tensors[num_products:]
        ctx.gates, ctx.dtypes = gates, [tensor.dtype for tensor in tensors]
        new_state, kept = gates.forward(full(products), full(state))
        ctx.save_for_backward(*kept)
        return new_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_products, of_state = ctx.gates.backward(ctx.saved_tensors, gradients)
        found = zip((*of_products, *of_state), ctx.dtypes, strict=True)
        return None, None, *(None if gradient is None else gradient.to(dtype) for gradient, dtype in found)


def full(tensors: Tensors) -> Tensors:
    """In at least 32 bits."""
    return tuple(tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors)
