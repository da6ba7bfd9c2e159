"""Products with the same matrix at every step of a loop over time, their gradients taken together after it.

Shapes: B rows, T steps, I inputs, G outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class LoopedProduct:
    """y_t = x_t W' + a_t for t = 0, 1, ... T - 1.

    Left alone, autograd computes a gradient of W's size at every step and adds them up: most of the time that a loop
    takes to train. Here each step only gives x_t its gradient; W's is one product over all steps, sum_t y_t' x_t.

    Args:
        weight: W, [G, I] for all rows, or [B, G, I].
        addends: a, [B, T, G]; what does not depend on the loop.
    """

    def __init__(self, weight: Tensor, addends: Tensor) -> None:
        self._inputs: list[Tensor] = []
        self._transposed = weight.detach().to(addends.dtype).transpose(-1, -2)
        self._addends = _OneGradient.apply(weight, addends, self._inputs).unbind(1)

    def __call__(self, inputs: Tensor) -> Tensor:
        """The next step's y [B, G] of x [B, I]."""
        addend = self._addends[len(self._inputs)]
        inputs = inputs.to(addend.dtype)
        self._inputs.append(inputs.detach())
        if self._transposed.dim() == 2:
            return torch.addmm(addend, inputs, self._transposed)
        return torch.baddbmm(addend.unsqueeze(1), inputs.unsqueeze(1), self._transposed).squeeze(1)


def looped_linear(layer: nn.Linear, num_rows: int, num_steps: int) -> LoopedProduct:
    """The layer as a looped product."""
    bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return LoopedProduct(layer.weight, bias.expand(num_rows, num_steps, -1))


class _OneGradient(torch.autograd.Function):
    """Passes the addends through. Their gradient is that of all y, which together with all x gives W's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, addends: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs = inputs
        ctx.is_shared = weight.dim() == 2
        ctx.dtype = weight.dtype
        return addends.view_as(addends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs = torch.stack(ctx.inputs, 1)
        if ctx.is_shared:
            of_weight = gradient.flatten(0, 1).T @ inputs.flatten(0, 1)
        else:
            of_weight = gradient.transpose(1, 2) @ inputs
        return of_weight.to(ctx.dtype), gradient, None
