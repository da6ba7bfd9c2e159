"""Attention scores: how well each source position fits a query.

Shapes: B sources, Q queries of each, S positions, D memory size, H decoder size, A key size.

A new score is one class here, its name in config.ScoreKind and one line in `SCORES`.
"""

from abc import abstractmethod
from typing import Final

import torch
from torch import Tensor, nn

from training.model.config import ModelConfig, ScoreKind


class Score(nn.Module):
    """A score in three parts, by what each depends on: the source alone, the decoder state alone, both.

    Attributes:
        has_keys: the source's part differs from the memory itself.
        is_product: the score is the product of query and key.
    """

    has_keys = False
    is_product = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    def keys(self, memory: Tensor) -> Tensor:
        """Keys [B, S, A] of memory [B, S, D], computed once per source."""
        return memory

    def query(self, hidden: Tensor) -> Tensor:
        """Queries [..., A] of decoder states [..., H]."""
        return hidden

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, Q, S] of queries [B, Q, A] against keys [B, S, A]."""


class DotScore(Score):
    """score(s, h) = s . h (Luong et al. 2015, eq. 8). The encoder's states are the keys: D = H."""

    is_product = True

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        # Keys times query, not query times keys: a beam's rows then get the same bits whatever stands beside them.
        return torch.matmul(keys, query.transpose(1, 2)).transpose(1, 2)


class GeneralScore(DotScore):
    """score(s, h) = s . W h (Luong et al. 2015, eq. 8), with W h computed once per source."""

    has_keys = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.project_keys = nn.Linear(config.memory_size, config.hidden_size, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.project_keys(memory)
        return projected


class AdditiveScore(Score):
    """score(s, h) = v . tanh(W s + U h + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    has_keys = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.project_keys = nn.Linear(config.memory_size, config.key_size)
        self.project_query = nn.Linear(config.hidden_size, config.key_size, bias=False)
        self.weight = nn.Parameter(torch.empty(config.key_size))

    def keys(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.project_keys(memory)
        return projected

    def query(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.project_query(hidden)
        return projected

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.matmul(torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)), self.weight)


SCORES: Final[dict[ScoreKind, type[Score]]] = {
    "dot": DotScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}
