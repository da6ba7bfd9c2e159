"""R-Drop (Liang et al. 2021): two passes with different dropout shall predict the same.

The paper's loss of a target position, of which y is the symbol, P and Q the two predictions and alpha the weight:

    - log P(y) - log Q(y) + alpha / 2 (KL(P || Q) + KL(Q || P))

the first two terms smoothed here as everywhere (training/kernels/loss.py). What is trained on is half of it, so that a
position counts as much as without R-Drop, at the same alpha: the mean of the two cross-entropies, and alpha / 4 of the
symmetric divergence. Both passes are one batch of twice as many rows.

Shapes: B pairs of a batch, T target positions, N of them wanted, V target vocabulary.
"""

import torch
from torch import Tensor

from attendant.training.data.batches import Batch


def twice(batch: Batch) -> Batch:
    """Each pair two times; of the wanted positions, [2 N], the two of a pair are neighbors."""
    num_positions = batch.previous_ids.numel()
    return Batch(
        batch.source_ids.repeat(2, 1),
        batch.source_lengths.repeat(2),
        batch.previous_ids.repeat(2, 1),
        torch.stack((batch.positions, batch.positions + num_positions), 1).flatten(),
        batch.target_ids.repeat_interleave(2),
    )


def symmetric_divergence(log_probs: Tensor) -> Tensor:
    """KL(P || Q) + KL(Q || P) in nats, summed over pairs of neighbors.

    Args:
        log_probs: [2 N, V], log P and log Q in turns.
    """
    ours, theirs = log_probs.unflatten(0, (-1, 2)).unbind(1)
    return ((ours.exp() - theirs.exp()) * (ours - theirs)).sum()


def divergence_and_gradients(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """`symmetric_divergence`, and its gradients with respect to the logits, [2 N, V].

    With d = log P - log Q: dKL(P || Q)/dz = P (d - KL(P || Q)) and dKL(Q || P)/dz = P - Q, z being P's logits.
    """
    probs = log_probs.exp().unflatten(0, (-1, 2))
    difference = log_probs.unflatten(0, (-1, 2)).diff(dim=1)
    away = torch.cat((-difference, difference), 1)  # each one's log-probabilities less the other's
    divergences = (probs * away).sum(2, keepdim=True)
    gradients = probs * (away - divergences) + probs - probs.flip(1)
    return divergences.sum(), gradients.flatten(0, 1)
