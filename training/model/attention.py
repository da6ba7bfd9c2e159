"""Attention: a weighted mean of the memory for each query.

Shapes: B sources, T target positions, Q queries of each, S positions, D memory size, H decoder size, A key size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.model.config import ModelConfig
from training.model.looped import LoopedProduct
from training.model.scores import SCORES

MASKED_SCORE = -1e9
"""Finite: where a runtime meets a row of -inf, its softmax is NaN."""


class Attention(nn.Module):
    """weights = softmax over valid positions of score(query, keys); context = weights . memory.

    One function for teacher forcing (Q: all target positions), for the loop over time (Q = 1) and for a decoding step
    (Q: the rows of a source). What depends on the source alone passes through `source_tensors`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.score = SCORES[config.attention.score](config)

    def source_tensors(self, memory: Tensor, source_mask: Tensor) -> dict[str, Tensor]:
        """What attention needs of each source, computed once: memory [B, S, D], source_mask [B, S], keys [B, S, A]."""
        tensors = {"memory": memory, "source_mask": source_mask}
        return {**tensors, "keys": self.score.keys(memory)} if self.score.has_keys else tensors

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of `source_tensors`."""
        return ("memory", "source_mask", "keys") if self.score.has_keys else ("memory", "source_mask")

    def query(self, hidden: Tensor) -> Tensor:
        """The queries [..., A] of decoder states [..., H]."""
        return self.score.query(hidden)

    def forward(self, query: Tensor, source: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Attends from queries [B, Q, A].

        Returns:
            contexts [B, Q, D] and weights [B, Q, S], zero where the source is padding.
        """
        memory, mask = source["memory"], source["source_mask"]
        scores = self.score(query, source.get("keys", memory))
        scores = torch.where(mask.unsqueeze(1), scores, MASKED_SCORE)
        weights = torch.softmax(scores, -1)
        return torch.matmul(weights.to(memory.dtype), memory), weights


class AttentionLoop:
    """Attention of one query per source at each of T steps; see LoopedProduct.

    Args:
        attention: whose weights.
        source: what `attention.source_tensors` made.
        num_steps: T.
    """

    def __init__(self, attention: Attention, source: Mapping[str, Tensor], num_steps: int) -> None:
        self._attention = attention
        self._source = source
        if attention.score.is_product:
            memory, mask = source["memory"], source["source_mask"]
            masked = torch.where(mask, 0.0, MASKED_SCORE).to(memory.dtype).unsqueeze(1)
            self._scores = LoopedProduct(source.get("keys", memory), masked.expand(-1, num_steps, -1))
            nothing = memory.new_zeros(1, 1, 1).expand(memory.shape[0], num_steps, memory.shape[2])
            self._context = LoopedProduct(memory.transpose(1, 2), nothing)

    def step(self, hidden: Tensor) -> Tensor:
        """The next step's contexts [B, D] of states [B, H]."""
        query = self._attention.query(hidden)
        if self._attention.score.is_product:
            return self._context(torch.softmax(self._scores(query), -1))
        context, _ = self._attention(query.unsqueeze(1), self._source)
        return context.squeeze(1)
