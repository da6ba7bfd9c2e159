"""What training minimizes.

Shapes: N target positions, V target vocabulary; B pairs, T and S padded target and source positions.
"""

import torch
from torch import Tensor

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID

NEVER_GENERATED = (PAD_ID, BOS_ID)


def smoothed_cross_entropy(logits: Tensor, target_ids: Tensor, *, label_smoothing: float) -> Tensor:
    """Cross-entropy with label smoothing (Szegedy et al. 2016, section 7), summed over positions.

    The target distribution is (1 - e) on the true symbol plus e uniform over the symbols that can be generated: PAD
    and BOS get nothing. loss = log sum exp(z) - (1 - e) z_y - e mean(z over those symbols).

    Args:
        logits: [N, V], without padding positions (see Seq2Seq.forward).
        target_ids: [N] int64.
        label_smoothing: e, in [0, 1).

    Returns:
        the sum in nats, a scalar; whoever divides knows the number of tokens over all batches and processes.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    losses = torch.logsumexp(logits, -1) - (1 - label_smoothing) * logits.gather(1, target_ids.unsqueeze(1)).squeeze(1)
    if label_smoothing > 0:
        losses = losses - torch.mv(logits, smoothing_shares(logits, label_smoothing))
    return losses.sum()


def repeated_attention(weights: Tensor, positions: Tensor) -> Tensor:
    """The coverage loss of See et al. (2017, eq. 12 and 13): attention that is given to what has had it already.

    Args:
        weights: [B, T, S] of attention.
        positions: [N] int64 places in the flattened [B, T] that count.

    Returns:
        the sum over them of sum_s min(a_ts, c_ts), c_ts being what position s got before step t; a scalar.
    """
    covered = weights.cumsum(1) - weights
    return torch.minimum(weights, covered).sum(-1).flatten().index_select(0, positions).sum()


def smoothing_shares(like: Tensor, label_smoothing: float) -> Tensor:
    """What label smoothing gives each symbol, [V]; nothing to PAD and BOS.

    Args:
        like: [..., V], whose type and device the shares get.
    """
    shares = torch.ones(like.shape[-1], dtype=like.dtype, device=like.device)
    shares[list(NEVER_GENERATED)] = 0
    return shares.mul_(label_smoothing / (len(shares) - len(NEVER_GENERATED)))
