"""The exponential moving average of the weights (Polyak and Juditsky 1992), which is validated and published."""

import copy

import torch
from torch import Tensor

from attendant.training.model import Seq2Seq

WARM_UP = 10


class MovingAverage:
    """After n updates a' = d a + (1 - d) w, with d = min(decay, (1 + n) / (10 + n)): the first weights, which mean
    nothing, are forgotten fast.

    Attributes:
        model: a model of its own with the averaged weights.
    """

    def __init__(self, model: Seq2Seq, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.model.requires_grad_(False)
        self._decay = decay

    @torch.no_grad()
    def update(self, model: Seq2Seq, num_updates: int) -> None:
        """Takes in the weights after an update."""
        decay = min(self._decay, (1 + num_updates) / (WARM_UP + num_updates))
        averages: list[Tensor] = list(self.model.parameters())
        weights: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)
