"""Products with the same matrix at every step of a loop over time, their gradients taken together after it.

Shapes: B rows, T steps, I inputs, G outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attendant.training.kernels.precision import product_dtype, without_autocast
from attendant.training.kernels.products import usual_products


class LoopedProduct:
    """y_t = x_t W' + a_t for t = 0, 1, ... T - 1; or the sum of several products, x_t W' + z_t U' + a_t.

    Left alone, autograd computes a gradient of W's size at every step and adds them up: most of the time that a loop
    takes to train. Here each step only gives x_t its gradient; W's is one product over all steps, sum_t y_t' x_t.

    Args:
        addends: a, [T, B, G]; what does not depend on the loop. The products are in its type.
        weights: W, U, ..., all of them [G, I] for all rows, or all [B, G, I].
    """

    def __init__(self, addends: Tensor, *weights: Tensor) -> None:
        self._steps = _Steps(addends.detach(), [weight.detach().to(addends.dtype) for weight in weights])
        self._end: Tensor = _AllSteps.apply(self._steps, addends, *weights)  # type: ignore[no-untyped-call]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The next step's y [B, G] of x [B, I], z, ..., one for each matrix."""
        product: Tensor = _OneStep.apply(self._steps, self._end, *inputs)  # type: ignore[no-untyped-call]
        return product


def looped_linear(layer: nn.Linear, num_rows: int, num_steps: int) -> LoopedProduct:
    """The layer as a looped product."""
    bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return LoopedProduct(at_every_step(bias, num_rows, num_steps), layer.weight)


def at_every_step(bias: Tensor, num_rows: int, num_steps: int) -> Tensor:
    """A bias [G] as addends [T, B, G], in the type of products."""
    return bias.to(product_dtype(bias)).expand(num_steps, num_rows, -1)


class _Steps:
    """What the steps of one looped product share: their inputs and, in the backward pass, the gradients of their y.

    Several matrices are joined along I, and so are their inputs: one product is faster than several.
    """

    def __init__(self, addends: Tensor, weights: list[Tensor]) -> None:
        num_steps, num_rows, _ = addends.shape
        self.addends = addends
        self.sizes = [weight.shape[-1] for weight in weights]
        self.weight = weights[0] if len(weights) == 1 else torch.cat(weights, -1)
        self.inputs = self.weight.new_empty(num_steps, num_rows, sum(self.sizes))
        self.gradients = addends.new_empty(0)
        self.num_taken = 0
        self.steps_with_gradient: list[int] = []

    def product(self, step: int, inputs: Sequence[Tensor]) -> Tensor:
        """y_t of x_t, z_t, ...; keeps these."""
        kept = self.inputs[step]
        for place, each in zip(torch.split(kept, self.sizes, 1), inputs, strict=True):
            place.copy_(each)
        if self.weight.dim() == 2:
            return torch.addmm(self.addends[step], kept, self.weight.T)
        with usual_products():
            found = torch.baddbmm(self.addends[step].unsqueeze(1), kept.unsqueeze(1), self.weight.transpose(1, 2))
        return found.squeeze(1)

    def input_gradients(self, step: int, gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of a step's inputs from that of y_t."""
        if not self.steps_with_gradient or step >= self.steps_with_gradient[-1]:  # a backward pass begins
            self.gradients, self.steps_with_gradient = self.addends.new_empty(self.addends.shape), []
        self.steps_with_gradient.append(step)
        self.gradients[step] = gradient
        if self.weight.dim() == 2:
            return torch.split(torch.mm(gradient, self.weight), self.sizes, 1)
        with usual_products():
            return torch.split(torch.bmm(gradient.unsqueeze(1), self.weight).squeeze(1), self.sizes, 1)

    def weight_gradients(self) -> tuple[Tensor, ...]:
        """The gradients of W, U, ..., from those of all y that the loss depends on."""
        for step in set(range(len(self.addends))).difference(self.steps_with_gradient):
            self.gradients[step] = 0
        if self.weight.dim() == 2:
            found = torch.mm(self.gradients.flatten(0, 1).T, self.inputs.flatten(0, 1))
        else:
            found = torch.bmm(self.gradients.permute(1, 2, 0), self.inputs.transpose(0, 1))
        return torch.split(found, self.sizes, -1)


class _OneStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: _Steps, end: Tensor, *inputs: Tensor) -> Tensor:
        del end  # an input for autograd alone: so `_AllSteps` goes back after every step has
        ctx.steps, ctx.step, ctx.dtypes = steps, steps.num_taken, [each.dtype for each in inputs]
        steps.num_taken += 1
        with without_autocast(inputs[0].device):
            return steps.product(ctx.step, inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.steps.input_gradients(ctx.step, gradient)
        return None, None, *(each.to(dtype) for each, dtype in zip(found, ctx.dtypes, strict=True))


class _AllSteps(torch.autograd.Function):
    """Takes no part in the forward pass. Its backward pass, after that of all steps, gives the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, steps: _Steps, addends: Tensor, *weights: Tensor) -> Tensor:
        ctx.steps, ctx.dtypes = steps, [weight.dtype for weight in weights]
        return addends.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        del gradient  # of nothing
        found = zip(ctx.steps.weight_gradients(), ctx.dtypes, strict=True)
        return None, ctx.steps.gradients, *(each.to(dtype) for each, dtype in found)
