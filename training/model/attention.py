"""Attention: scores, coverage, the weighted mean of the memory, and copying.

Shapes: B sources, T target positions, Q queries of each source, S source positions, D encoder size, C context size,
H decoder size, A key size, E embedding size.

A new score is a class here, its name in config.ScoreKind and a line in `SCORES`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.kernels.cells import LoopedProduct, looped_linear
from attendant.training.kernels.hardware import at_least_float32
from attendant.training.kernels.loss import Copies
from attendant.training.model.config import ModelConfig, ScoreKind
from attendant.training.model.readout import IMPOSSIBLE


class Score(nn.Module):
    """A score in three parts, which depend on the source alone, on the decoder state alone, and on both.

    Attributes:
        is_product: the score is the product of query and key.
        project_keys, project_query: W_k and W_q. If None, the states themselves are compared.
    """

    is_product = False

    @abstractmethod
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.project_keys: nn.Linear | None = None
        self.project_query: nn.Linear | None = None

    def keys(self, memory: Tensor) -> Tensor:
        """Returns keys [B, S, A] of memory [B, S, D], computed once per source."""
        return memory if self.project_keys is None else self.project_keys(memory)

    def query(self, hidden: Tensor) -> Tensor:
        """Returns queries [..., A] of decoder states [..., H]."""
        return self.scaled(hidden if self.project_query is None else self.project_query(hidden))

    def looped_query(self, num_rows: int, num_steps: int) -> Callable[[Tensor], Tensor]:
        """Returns `query` for the steps of a training loop: queries [R, A] of states [R, H]; R is `num_rows`."""
        if self.project_query is None:
            return self.query
        project = looped_linear(self.project_query, num_rows, num_steps)
        return lambda hidden: self.scaled(project(hidden))

    def scaled(self, query: Tensor) -> Tensor:
        """Returns a projected query [..., A], scaled for the product with the keys [B, S, A]."""
        return query

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Returns scores [B, Q, S] of queries [B, Q, A] against keys [B, S, A]."""


class DotScore(Score):
    """score(s, h) = s . h (Luong et al. 2015, eq. 8), or (W_q s) . (W_k h) with a key size of its own."""

    is_product = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.attention.key_size is not None:
            self.project_keys = nn.Linear(config.memory_size, config.attention.key_size, bias=False)
            self.project_query = nn.Linear(config.hidden_size, config.attention.key_size, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        # Keys times query, not query times keys: a beam's rows then get the same bits with any neighbours.
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
        """Returns scores as Score.forward.

        Args:
            evidence: [B, Q, S, A] further evidence for each position, added inside the tanh.
        """
        inner = query.unsqueeze(2) + keys.unsqueeze(1)
        return torch.matmul(torch.tanh(inner if evidence is None else inner + evidence), self.weight)


class ConcatScore(AdditiveScore):
    """score(s, h) = v . tanh(W [s; h]) (Luong et al. 2015, eq. 8).

    W [s; h] = W_s s + W_h h: the halves are separate matrices, so that W_h h is computed once per source.
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


MAX_FERTILITY: Final = 2.0
"""N of Tu et al. 2016, eq. 8: the most target symbols that one source position is expected to explain."""


class Coverage(nn.Module):
    """Linguistic coverage with fertility (Tu et al. 2016, eq. 6 to 9).

    c_t = c_{t-1} + weights_t / fertility, c_0 = 0; fertility(h) = N sigmoid(u . h); a position's coverage is
    evidence inside the additive score: v . tanh(W s + U h + b + V c).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.predict_fertility = nn.Linear(config.memory_size, 1, bias=False)
        self.project = nn.Linear(1, config.attention.key_size or config.hidden_size, bias=False)

    def fertility(self, memory: Tensor) -> Tensor:
        """Returns the expected number of attentions [B, S] to each position of memory [B, S, D], in (0, N)."""
        return MAX_FERTILITY * torch.sigmoid(self.predict_fertility(memory)).squeeze(-1)

    def evidence(self, coverage: Tensor) -> Tensor:
        """Returns evidence [B, Q, S, A] of coverage [B, Q, S]."""
        # One factor each: a product, where a matrix product of depth one would only be slower.
        return coverage.unsqueeze(-1) * self.project.weight.squeeze(-1)

    def accumulate(self, coverage: Tensor, weights: Tensor, fertility: Tensor) -> Tensor:
        """Returns the coverage [B, Q, S] after a step with these weights [B, Q, S]; fertility [B, S]."""
        return coverage + weights / fertility.unsqueeze(1)


MASKED_SCORE = -1e9  # Finite: where a runtime meets a row of -inf, its softmax is NaN.


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
        """Returns the source tensors, computed once from encoder_outputs [B, S, D] and source_mask [B, S].

        Returns:
            memory [B, S, C] and source_mask; keys [B, S, A] unless they are the memory itself; with coverage,
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

    def forward(
        self, query: Tensor, source: Mapping[str, Tensor], coverage: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Attends from queries [B, Q, A].

        Args:
            source: the result of `source_tensors`.
            coverage: [B, Q, S] of each query, if the model has coverage.

        Returns:
            contexts [B, Q, C]; weights [B, Q, S], zero on padding; the new coverage.
        """
        memory, mask = source["memory"], source["source_mask"]
        evidence: tuple[Tensor, ...] = ()
        if self.coverage is not None:
            assert coverage is not None
            evidence = (self.coverage.evidence(coverage),)
        scores = at_least_float32(self.score(query, source.get("keys", memory), *evidence))
        weights = torch.softmax(torch.where(mask.unsqueeze(1), scores, MASKED_SCORE), -1)
        if self.coverage is not None:
            assert coverage is not None
            coverage = self.coverage.accumulate(coverage, weights, source["fertility"])
        return torch.matmul(weights.to(memory.dtype), memory), weights, coverage


class AttentionLoop:
    """Attention of one query per source at each of T steps; see LoopedProduct.

    Args:
        attention: the attention that is computed.
        source: the result of `attention.source_tensors`.
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
        """Returns a step's contexts [B, C] and weights [B, S] of states [B, H], and the coverage [B, S] after it."""
        query = self._query(hidden)
        if self._attention.score.is_product:
            weights = torch.softmax(self._scores(query), -1)
            return self._context(weights), weights, None
        covered = None if coverage is None else coverage.unsqueeze(1)
        context, weights, covered = self._attention(query.unsqueeze(1), self._source, covered)
        return context.squeeze(1), weights.squeeze(1), None if covered is None else covered.squeeze(1)


SYMBOLS = "source_symbols"  # The source tensor [B, S] int64 of the symbols that can be copied.
NOTHING = 2 * IMPOSSIBLE  # Score of padding and of BOS: so far below IMPOSSIBLE that mixing it in changes no logit.
LEAST_SHARE = 1e-30  # Smaller shares of the attention are raised to this, so that their logarithm is finite.


class Copying(nn.Module):
    """The probability of copying, and of each symbol to copy.

    Attributes:
        gate: a linear layer of context, state and embedded previous symbol; the logit of generating.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.context_size + config.hidden_size + config.embedding_size, 1)

    def shares(self, weights: Tensor, symbols: Tensor) -> Tensor:
        """Returns the attention [B, Q, S] on all positions that have the symbol of each position.

        Args:
            weights: [B, Q, S]; symbols: [B, S].
        """
        same = symbols.unsqueeze(1) == symbols.unsqueeze(2)
        return torch.matmul(weights, same.to(weights.dtype))

    def copies(self, symbols: Tensor, shares: Tensor, context: Tensor, hidden: Tensor, embedded: Tensor) -> Copies:
        """Returns the symbols that can be copied, with their scores, from symbols and their shares, [..., S] each.

        Args:
            context, hidden, embedded: [..., C], [..., H] and [..., E], as the readout takes them.
        """
        gates = self.gate(torch.cat([context, hidden, embedded], -1))
        scores = torch.log(at_least_float32(shares).clamp(min=LEAST_SHARE)) - gates
        return Copies(symbols, torch.where((symbols == PAD_ID) | (symbols == BOS_ID), NOTHING, scores))
