"""A distribution over the vocabulary mixed with one over what stands in the source.

Shapes: N predictions, S source positions, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Copies(NamedTuple):
    """What can be copied at each of N predictions.

    Attributes:
        symbols: [N, S] int64, the source's; PAD: nothing stands there.
        scores: [N, S] log((1 - g) / g) + log of the attention on all positions that have this symbol, g being the
            probability of generating; so low for PAD that nothing comes of it. Symbols that stand several times have
            the same score each time.
    """

    symbols: Tensor
    scores: Tensor


def mixed(logits: Tensor, copies: Copies) -> Tensor:
    """Logits [N, V] whose softmax is the mixture of that of logits [N, V] and of what can be copied."""
    log_probs = torch.log_softmax(logits, -1)
    return mixed_in(log_probs, log_probs.gather(1, copies.symbols), copies)


def mixed_in(log_probs: Tensor, generated: Tensor, copies: Copies) -> Tensor:
    """The same, of L = log_softmax(logits) [N, V] and what L gives the source's symbols [N, S].

    The mixture's log-probabilities less log g are L itself but for the source's symbols, where they are
    log(exp L + exp score).
    """
    # A symbol that stands in the source several times is written as often, with the same value.
    return log_probs.scatter_reduce(1, copies.symbols, generated + F.softplus(copies.scores - generated), "amax")
