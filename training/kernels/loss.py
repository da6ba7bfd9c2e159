"""What training minimizes.

Shapes: N target positions, V target vocabulary, K symbols of a teacher's; B pairs, T and S padded target and source
positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID

NEVER_GENERATED = (PAD_ID, BOS_ID)


class SoftTargets(NamedTuple):
    """The teachers' distribution at N target positions (Hinton et al. 2015): their K most probable symbols.

    Attributes:
        symbols: [N, K] int64.
        probabilities: [N, K] w q; each row's sum is w, the weight of the teachers in the loss.
    """

    symbols: Tensor
    probabilities: Tensor


def smoothed_cross_entropy(
    logits: Tensor, target_ids: Tensor, *, label_smoothing: float, soft_targets: SoftTargets | None = None
) -> Tensor:
    """Cross-entropy with label smoothing (Szegedy et al. 2016, section 7), summed over positions.

    The target distribution is (1 - e) on the true symbol plus e uniform over the symbols that can be generated: PAD
    and BOS get nothing. loss = log sum exp(z) - (1 - e) z_y - e mean(z over those symbols).

    With teachers it is (1 - w) of that and w of their distribution q: loss = (1 - w) loss_hard - w sum_k q_k log p_k
    (Hinton et al. 2015, at temperature 1; symbol by symbol, Kim and Rush 2016, eq. 6 and 8).

    Args:
        logits: [N, V], without padding positions (see Seq2Seq.forward).
        target_ids: [N] int64.
        label_smoothing: e, in [0, 1).
        soft_targets: w q; None: there are no teachers.

    Returns:
        the sum in nats, a scalar; whoever divides knows the number of tokens over all batches and processes.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    symbols, masses, rest = target_masses(target_ids, label_smoothing, soft_targets, like=logits)
    losses = torch.logsumexp(logits, -1) - (masses * logits.gather(1, symbols)).sum(1)
    if label_smoothing > 0:
        losses = losses - rest * torch.mv(logits, smoothing_shares(logits, label_smoothing))
    return losses.sum()


def target_masses(
    target_ids: Tensor, label_smoothing: float, soft_targets: SoftTargets | None, *, like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The target distribution but for what smoothing gives.

    Args:
        like: whose type and device the masses get.

    Returns:
        symbols [N, 1 + K], of which the true one may be there twice; how much of the distribution each has, [N, 1 + K];
        and 1 - w, [N].
    """
    true = target_ids.unsqueeze(1)
    if soft_targets is None:
        rest = like.new_ones(len(true))
        return true, (1 - label_smoothing) * rest.unsqueeze(1), rest
    probabilities = soft_targets.probabilities.to(like.dtype)
    rest = 1 - probabilities.sum(1)
    masses = torch.cat([(1 - label_smoothing) * rest.unsqueeze(1), probabilities], 1)
    return torch.cat([true, soft_targets.symbols], 1), masses, rest


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
