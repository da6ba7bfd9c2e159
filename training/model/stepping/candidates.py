"""From logits to the next symbol's candidates: what a step hands to the search. In the exported step graph too.

Shapes: R rows, V target vocabulary, N bans, K candidates.
"""

import torch
from torch import Tensor

from attendant.training.model.output import IMPOSSIBLE


def candidates(
    logits: Tensor, forced_ids: Tensor, banned_ids: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable symbols after the bans.

    Args:
        logits: [R, V].
        forced_ids: [R] int64, symbols whose log-probability is wanted; -1: none.
        banned_ids: [R, N] int64, symbols taken out before normalization; -1: padding.
        num_candidates: K, at most V.

    Returns:
        log-probabilities [R, K], normalized over V, in falling order; their ids [R, K], ties by the lower id; and the
        log-probabilities [R] of the forced symbols, 0 where none.
    """
    log_probs = torch.log_softmax(ban(logits, banned_ids), -1)
    forced = log_probs.gather(1, forced_ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    forced = torch.where(forced_ids < 0, 0.0, forced)
    return *top(log_probs, num_candidates), forced


def ban(logits: Tensor, banned_ids: Tensor) -> Tensor:
    """Makes banned symbols impossible: logits [R, V], banned_ids [R, N]; -1: padding."""
    places = banned_ids.clamp(min=0)
    # Padding writes back what already stands there, and the minimum lets a real ban of the same symbol win.
    values = torch.where(banned_ids < 0, logits.gather(1, places), IMPOSSIBLE)
    return logits.scatter_reduce(1, places, values, "amin")


def top(log_probs: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """The K largest of log_probs [R, V] and their ids, ties by the lower id."""
    values, ids = torch.topk(log_probs, num_candidates, -1)
    if torch.compiler.is_exporting():
        return values, ids  # ONNX TopK itself prefers the lower id.
    # torch.topk takes equal values in any order: where a row has some, sort it in full.
    at_least = (log_probs >= values[:, -1:]).sum(-1) > num_candidates
    tied = at_least | (values[:, 1:] == values[:, :-1]).any(-1)
    if tied.any():
        order = log_probs[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = order.values[:, :num_candidates], order.indices[:, :num_candidates]
    return values, ids
