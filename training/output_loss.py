"""The output layer and the loss in one, with their gradients, so that no logits are kept for the way back.

Where the vocabulary is large, the two take most of a step's time and of its memory. Taken apart, they leave autograd
[N, V] values several times over. Here some rows at a time go all the way, to the gradients, and their logits with them.

Shapes: N target positions, H decoder size, V target vocabulary.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from training.loss import smoothed_cross_entropy, smoothing_shares

MIN_ROWS: Final = 256
"""Fewer at a time would make the products slow."""

MAX_LOGITS: Final = 2**21
"""At a time, where that leaves rows enough: what a processor's cache holds."""


def output_loss(inputs: Tensor, weight: Tensor, bias: Tensor, target_ids: Tensor, *, label_smoothing: float) -> Tensor:
    """smoothed_cross_entropy of the logits W x + b, for one backward pass.

    Within autocast the products are in its type, and everything else in the weights'.

    Args:
        inputs: x, [N, H].
        weight, bias: W, [V, H], and b, [V].
        target_ids: [N] int64.
        label_smoothing: see smoothed_cross_entropy.

    Returns:
        the sum in nats, a scalar.
    """
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    if dtype == torch.float16:
        # The gradients are outside its range as long as the loss is not scaled, and it is scaled only after this.
        return smoothed_cross_entropy(F.linear(inputs, weight, bias), target_ids, label_smoothing=label_smoothing)
    total: Tensor = _OutputLoss.apply(inputs, weight, bias, target_ids, label_smoothing, dtype)  # type: ignore[no-untyped-call]
    return total


class _OutputLoss(torch.autograd.Function):
    """dloss/dz = softmax(z) - q, q being the target distribution (see smoothed_cross_entropy)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        target_ids: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            low_inputs, low_weight = inputs.to(dtype), weight.to(dtype)
            of_inputs, of_weight, of_bias = torch.empty_like(inputs), torch.zeros_like(weight), torch.zeros_like(bias)
            shares = smoothing_shares(bias, label_smoothing)
            total = bias.new_zeros(())
            num_rows = max(MIN_ROWS, MAX_LOGITS // len(bias))
            for rows in (slice(start, start + num_rows) for start in range(0, len(inputs), num_rows)):
                logits = torch.mm(low_inputs[rows], low_weight.T).to(weight.dtype).add_(bias)
                true = target_ids[rows].unsqueeze(1)
                log_probs = torch.log_softmax(logits, 1)
                true_log_probs = log_probs.gather(1, true)
                total -= (1 - label_smoothing) * true_log_probs.sum()
                if label_smoothing > 0:
                    total -= torch.mv(log_probs, shares).sum()
                gradient = log_probs.exp_().sub_(shares)
                gradient.scatter_add_(1, true, torch.full_like(true_log_probs, label_smoothing - 1))
                of_bias += gradient.sum(0)
                low_gradient = gradient.to(dtype)
                of_inputs[rows] = torch.mm(low_gradient, low_weight)
                of_weight += torch.mm(low_gradient.T, low_inputs[rows])
        ctx.gradients = of_inputs, of_weight, of_bias
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # they are multiplied where they lie
        of_inputs, of_weight, of_bias = (found.mul_(gradient) for found in gradients)
        return of_inputs, of_weight, of_bias, None, None, None
