"""Copying: the next symbol may be one of the source, chosen by attention (See et al. 2017; Gu et al. 2016).

P(w) = g P_vocab(w) + (1 - g) sum of the attention on positions whose symbol is w (See et al. 2017, eq. 9), over the one
vocabulary that both sides share. g = sigmoid(x), x = w_c . context + w_s . state + w_e . embedded + b (eq. 8).

Shapes: B sources, Q queries of each, S source positions, C context size, H decoder size, E embedding size.
"""

import torch
from torch import Tensor, nn

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.kernels.mixture import Copies
from attendant.training.model.config import ModelConfig
from attendant.training.model.output import IMPOSSIBLE

SYMBOLS = "source_symbols"
"""The source tensor [B, S] int64 that holds what can be copied."""

NOTHING = 2 * IMPOSSIBLE
"""Score of padding and of BOS: so far below IMPOSSIBLE that mixing it in changes no logit at all."""

LEAST_SHARE = 1e-30
"""The least share of the attention that counts: a smaller one is taken for this, so that its logarithm is finite."""


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

    def copies(self, symbols: Tensor, shares: Tensor, context: Tensor, hidden: Tensor, embedded: Tensor) -> Copies:
        """What can be copied, both of it [..., S], of symbols [..., S] and their shares [..., S].

        Args:
            context, hidden, embedded: [..., C], [..., H] and [..., E], as the readout takes them.
        """
        gates = self.gate(torch.cat([context, hidden, embedded], -1))
        scores = torch.log(shares.clamp(min=LEAST_SHARE)) - gates
        return Copies(symbols, torch.where((symbols == PAD_ID) | (symbols == BOS_ID), NOTHING, scores))
