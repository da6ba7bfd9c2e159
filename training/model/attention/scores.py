"""Attention scores: how well each source position fits a query.

Shapes: B sources, Q queries of each, S positions, D memory size, H decoder size, A key size.

A new score is one class here, its name in config.ScoreKind and one line in `SCORES`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from attendant.training.kernels.looped import looped_linear
from attendant.training.model.config import ModelConfig, ScoreKind


class Score(nn.Module):
    """A score in three parts, by what each depends on: the source alone, the decoder state alone, both.

    Attributes:
        is_product: the score is the product of query and key.
        project_keys, project_query: W_k and W_q; None: the states themselves.
    """

    is_product = False

    @abstractmethod
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.project_keys: nn.Linear | None = None
        self.project_query: nn.Linear | None = None

    def keys(self, memory: Tensor) -> Tensor:
        """Keys [B, S, A] of memory [B, S, D], computed once per source."""
        return memory if self.project_keys is None else self.project_keys(memory)

    def query(self, hidden: Tensor) -> Tensor:
        """Queries [..., A] of decoder states [..., H]."""
        return self.scaled(hidden if self.project_query is None else self.project_query(hidden))

    def looped_query(self, num_rows: int, num_steps: int) -> Callable[[Tensor], Tensor]:
        """`query` for the steps of a loop of training: queries [R, A] of states [R, H]; R is `num_rows`."""
        if self.project_query is None:
            return self.query
        project = looped_linear(self.project_query, num_rows, num_steps)
        return lambda hidden: self.scaled(project(hidden))

    def scaled(self, query: Tensor) -> Tensor:
        """A projected query [..., A] as it meets the keys [B, S, A]."""
        return query

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, Q, S] of queries [B, Q, A] against keys [B, S, A]."""


class DotScore(Score):
    """score(s, h) = s . h (Luong et al. 2015, eq. 8), or (W_q s) . (W_k h) with a key size of its own."""

    is_product = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.attention.key_size is not None:
            self.project_keys = nn.Linear(config.memory_size, config.attention.key_size, bias=False)
            self.project_query = nn.Linear(config.hidden_size, config.attention.key_size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        # Keys times query, not query times keys: a beam's rows then get the same bits whatever stands beside them.
        return torch.matmul(keys, query.transpose(1, 2)).transpose(1, 2)


class ScaledDotScore(DotScore):
    """score(s, h) = s . h / sqrt(A) (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.scale = 1 / math.sqrt(config.attention.key_size or config.hidden_size)

    def scaled(self, query: Tensor) -> Tensor:
        return query * self.scale


class GeneralScore(DotScore):
    """score(s, h) = s . W h (Luong et al. 2015, eq. 8), with W h computed once per source."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.project_keys = nn.Linear(config.memory_size, config.hidden_size, bias=False)


class AdditiveScore(Score):
    """score(s, h) = v . tanh(W s + U h + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, config: ModelConfig, *, bias: bool = True) -> None:
        super().__init__(config)
        key_size = config.attention.key_size or config.hidden_size
        self.project_keys = nn.Linear(config.memory_size, key_size, bias=bias)
        self.project_query = nn.Linear(config.hidden_size, key_size, bias=False)
        self.weight = nn.Parameter(torch.empty(key_size))

    def forward(self, query: Tensor, keys: Tensor, evidence: Tensor | None = None) -> Tensor:
        """As Score.forward.

        Args:
            evidence: [B, Q, S, A] what else speaks for a position, added inside the tanh.
        """
        inner = query.unsqueeze(2) + keys.unsqueeze(1)
        return torch.matmul(torch.tanh(inner if evidence is None else inner + evidence), self.weight)


class ConcatScore(AdditiveScore):
    """score(s, h) = v . tanh(W [s; h]) (Luong et al. 2015, eq. 8).

    W [s; h] = W_s s + W_h h: the halves stand as matrices of their own, so that W_h h is computed once per source.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, bias=False)


SCORES: Final[dict[ScoreKind, type[Score]]] = {
    "dot": DotScore,
    "scaled_dot": ScaledDotScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
    "concat": ConcatScore,
}
