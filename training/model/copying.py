"""Copying: the next symbol may be one of the source, chosen by attention (See et al. 2017; Gu et al. 2016).

P(w) = g P_vocab(w) + (1 - g) sum of the attention on positions whose symbol is w (See et al. 2017, eq. 9), over the one
vocabulary that both sides share. g = sigmoid(x), x = w_c . context + w_s . state + w_e . embedded + b (eq. 8).

Shapes: B sources, Q queries of each, S source positions, N predictions, V vocabulary, C context size, H decoder size,
E embedding size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.training.model.config import ModelConfig
from attendant.training.model.output import IMPOSSIBLE

SYMBOLS = "source_symbols"
"""The source tensor [B, S] int64 that holds what can be copied."""

NOTHING = 2 * IMPOSSIBLE
"""Score of padding: beside it even what can't be generated is probable, so that it stays what it is."""

LEAST_SHARE = 1e-30
"""Of the attention: less counts as this much, so that its logarithm is finite."""


class Copies(NamedTuple):
    """What can be copied at each of N predictions.

    Attributes:
        symbols: [N, S] int64, the source's; PAD: nothing stands there.
        scores: [N, S] log((1 - g) / g) + log of the attention on all positions that have this symbol; symbols that
            stand several times have the same score each time.
    """

    symbols: Tensor
    scores: Tensor


class Copying(nn.Module):
    """How probable copying is, and what is copied.

    Attributes:
        gate: x of context, state and embedded previous symbol.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.context_size + config.hidden_size + config.embedding_size, 1)

    def shares(self, weights: Tensor, symbols: Tensor) -> Tensor:
        """The attention [B, Q, S] on all positions that have the symbol of each position.

        Args:
            weights: [B, Q, S]; symbols: [B, S].
        """
        same = symbols.unsqueeze(1) == symbols.unsqueeze(2)
        return torch.matmul(weights, same.to(weights.dtype))

    def scores(self, shares: Tensor, symbols: Tensor, context: Tensor, hidden: Tensor, embedded: Tensor) -> Tensor:
        """See `Copies`: [..., S] of shares [..., S] and symbols [..., S].

        Args:
            context, hidden, embedded: [..., C], [..., H] and [..., E], as the readout takes them.
        """
        gates = self.gate(torch.cat([context, hidden, embedded], -1))
        scores = torch.log(shares.clamp(min=LEAST_SHARE)) - gates
        return torch.where(symbols == PAD_ID, NOTHING, scores)


def mixed(logits: Tensor, copies: Copies) -> Tensor:
    """Logits [N, V] of the mixture of logits [N, V] and what can be copied.

    With L = log_softmax(logits), the mixture's log-probabilities less log g are L itself but for the source's symbols,
    where they are log(exp L + exp score). So their softmax is P, and symbols can be banned before it.
    """
    log_probs = torch.log_softmax(logits, -1)
    generated = log_probs.gather(1, copies.symbols)
    # A symbol that stands in the source several times is written as often, with the same value; padding, whose symbol
    # can't be generated, stays so.
    either = generated + F.softplus(copies.scores - generated)
    return log_probs.scatter_reduce(1, copies.symbols, either, "amax")
