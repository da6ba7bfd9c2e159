"""Coverage: attention that remembers what it has attended to.

Shapes: B sources, Q queries of each, S positions, D memory size, A key size.
"""

from typing import Final

import torch
from torch import Tensor, nn

from attendant.training.model.config import ModelConfig

MAX_FERTILITY: Final = 2.0
"""N of Tu et al. 2016, eq. 8: the most target symbols that one source position is expected to explain."""


class Coverage(nn.Module):
    """Linguistic coverage with fertility (Tu et al. 2016, eq. 6 to 9).

    c_t = c_{t-1} + weights_t / fertility, c_0 = 0; fertility(h) = N sigmoid(u . h); what a position has been covered
    is evidence inside the additive score: v . tanh(W s + U h + b + V c).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.predict_fertility = nn.Linear(config.memory_size, 1, bias=False)
        self.project = nn.Linear(1, config.attention.key_size or config.hidden_size, bias=False)

    def fertility(self, memory: Tensor) -> Tensor:
        """How often each position [B, S] of memory [B, S, D] is expected to be attended to, in (0, N)."""
        return MAX_FERTILITY * torch.sigmoid(self.predict_fertility(memory)).squeeze(-1)

    def evidence(self, coverage: Tensor) -> Tensor:
        """Evidence [B, Q, S, A] of coverage [B, Q, S]."""
        # One factor each: a product, where a matrix product of depth one would only be slower.
        return coverage.unsqueeze(-1) * self.project.weight.squeeze(-1)

    def accumulate(self, coverage: Tensor, weights: Tensor, fertility: Tensor) -> Tensor:
        """The coverage [B, Q, S] after a step with these weights [B, Q, S]; fertility [B, S]."""
        return coverage + weights / fertility.unsqueeze(1)
