"""Dropout whose random numbers cost little on a CPU."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RANGE: Final = 2**16
"""How many values 16 random bits have."""


class Dropout(nn.Module):
    """In training an element is zero with probability p, else divided by 1 - p (Srivastava et al. 2014).

    On a CPU, where torch draws one random number after another, each of 64 bits serves four elements: p is rounded to a
    multiple of 2^-16.

    Args:
        probability: p, in [0, 1).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.num_dropped = min(round(probability * RANGE), RANGE - 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [...] of floats with some elements dropped; the same tensor in evaluation mode."""
        if not self._drops:
            return inputs
        if inputs.device.type != "cpu":
            return F.dropout(inputs, self.num_dropped / RANGE)
        return self._drop(inputs, _kept(inputs.shape, self.num_dropped).to(inputs.dtype))

    def looped(self, like: Tensor, num_steps: int) -> Callable[[Tensor], Tensor]:
        """`forward` for the steps of a loop, whose inputs [...] have the shape and type of `like`.

        Their random numbers are drawn at once.
        """
        if not self._drops or like.device.type != "cpu":
            return self.forward
        kept = iter(_kept((num_steps, *like.shape), self.num_dropped).to(like.dtype).unbind())
        return lambda inputs: self._drop(inputs, next(kept))

    @property
    def _drops(self) -> bool:
        return self.training and self.num_dropped > 0

    def _drop(self, inputs: Tensor, kept: Tensor) -> Tensor:
        return (inputs * kept).mul_(RANGE / (RANGE - self.num_dropped))


def _kept(shape: tuple[int, ...], num_dropped: int) -> Tensor:
    """Which elements are kept, [*shape] bool on the CPU, drawn from torch's global generator."""
    num_elements = torch.Size(shape).numel()
    words = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)
    return (words.view(torch.int16)[:num_elements] >= num_dropped - RANGE // 2).view(shape)
