"""Attention: a weighted mean of the memory for each query.

Shapes: B sources, T target positions, Q queries of each source, S positions, D encoder size, C context size,
H decoder size, A key size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attendant.training.kernels.looped import LoopedProduct
from attendant.training.model.attention.coverage import Coverage
from attendant.training.model.attention.scores import SCORES
from attendant.training.model.config import ModelConfig

MASKED_SCORE = -1e9
"""Finite: where a runtime meets a row of -inf, its softmax is NaN."""


class Attention(nn.Module):
    """weights = softmax over valid positions of score(query, keys); context = weights . memory.

    One function for teacher forcing (Q: all target positions), for the loop over time (Q = 1) and for a decoding step
    (Q: the rows of a source). What depends on the source alone passes through `source_tensors`.

    Attributes:
        source_names: the names of the source tensors.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        value_size = config.attention.value_size
        assert config.attention.score != "none"
        self.score = SCORES[config.attention.score](config)
        self.project_values = None if value_size is None else nn.Linear(config.memory_size, value_size, bias=False)
        self.coverage = Coverage(config) if config.attention.coverage else None
        self.has_keys = self.score.project_keys is not None or self.project_values is not None
        self.source_names = (
            "memory",
            "source_mask",
            *(["keys"] if self.has_keys else []),
            *(["fertility"] if self.coverage is not None else []),
        )

    def source_tensors(self, encoder_outputs: Tensor, source_mask: Tensor) -> dict[str, Tensor]:
        """What attention needs of each source, computed once from encoder_outputs [B, S, D] and source_mask [B, S].

        Returns:
            memory [B, S, C] and source_mask; keys [B, S, A] where they are not the memory itself; with coverage
            fertility [B, S].
        """
        tensors = {"memory": encoder_outputs, "source_mask": source_mask}
        if self.project_values is not None:
            tensors["memory"] = self.project_values(encoder_outputs)
        if self.has_keys:
            tensors["keys"] = self.score.keys(encoder_outputs)
        if self.coverage is not None:
            tensors["fertility"] = self.coverage.fertility(encoder_outputs)
        return tensors

    def query(self, hidden: Tensor) -> Tensor:
        """The queries [..., A] of decoder states [..., H]."""
        return self.score.query(hidden)

    def forward(
        self, query: Tensor, source: Mapping[str, Tensor], coverage: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Attends from queries [B, Q, A].

        Args:
            source: what `source_tensors` made.
            coverage: [B, Q, S] of each query, where the model has coverage.

        Returns:
            contexts [B, Q, C]; weights [B, Q, S], zero where the source is padding; the new coverage.
        """
        memory, mask = source["memory"], source["source_mask"]
        evidence: tuple[Tensor, ...] = ()
        if self.coverage is not None:
            assert coverage is not None
            evidence = (self.coverage.evidence(coverage),)
        scores = self.score(query, source.get("keys", memory), *evidence)
        weights = torch.softmax(torch.where(mask.unsqueeze(1), scores, MASKED_SCORE), -1)
        if self.coverage is not None:
            assert coverage is not None
            coverage = self.coverage.accumulate(coverage, weights, source["fertility"])
        return torch.matmul(weights.to(memory.dtype), memory), weights, coverage


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
        self._query = attention.score.looped_query(len(source["memory"]), num_steps)
        if attention.score.is_product:
            # In at least 32 bits: 16 would gain nothing, these products being small, and a softmax needs them.
            memory, mask = source["memory"], source["source_mask"]
            dtype = torch.promote_types(memory.dtype, torch.float32)
            masked = torch.where(mask, 0.0, MASKED_SCORE).to(dtype)
            self._scores = LoopedProduct(masked.expand(num_steps, -1, -1), source.get("keys", memory))
            nothing = masked.new_zeros(1, 1, 1).expand(num_steps, memory.shape[0], memory.shape[2])
            self._context = LoopedProduct(nothing, memory.transpose(1, 2))

    def step(self, hidden: Tensor, coverage: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The next step's contexts [B, C] and weights [B, S] of states [B, H], and the coverage [B, S] after it."""
        query = self._query(hidden)
        if self._attention.score.is_product:
            weights = torch.softmax(self._scores(query), -1)
            return self._context(weights), weights, None
        covered = None if coverage is None else coverage.unsqueeze(1)
        context, weights, covered = self._attention(query.unsqueeze(1), self._source, covered)
        return context.squeeze(1), weights.squeeze(1), None if covered is None else covered.squeeze(1)
