"""The training loss: smoothed cross-entropy, teachers' targets, coverage loss, and the mixture with copies.

`smoothed_cross_entropy` states the loss plainly. `output_loss` computes the output layer and this loss together: where
the vocabulary is large, the two take most of a step's time and memory. It goes block by block from inputs to gradients
and keeps no logits, where autograd would keep [N, V] values several times.

Shapes: N target positions, V target vocabulary, H decoder size, K symbols of a teacher's, B pairs, T and S padded
target and source positions.
"""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.kernels.hardware import at_least_float32, product_dtype, without_autocast

NEVER_GENERATED = (PAD_ID, BOS_ID)


def logits_of(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns W x + b [..., V] of inputs [..., H], for W [V, H] and b [V], which is -1e9 where nothing is generated."""
    if product_dtype(weight) == torch.float16:
        return F.linear(inputs, weight).float() + bias  # -1e9 is beyond float16
    return F.linear(inputs, weight, bias)


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
    """Returns the cross-entropy with label smoothing (Szegedy et al. 2016, section 7), summed over positions.

    The target distribution is (1 - e) on the true symbol plus e uniform over the symbols that can be generated: PAD
    and BOS get nothing. loss = log sum exp(z) - (1 - e) z_y - e mean(z over those symbols).

    With teachers it is (1 - w) of that and w of their distribution q: loss = (1 - w) loss_hard - w sum_k q_k log p_k
    (Hinton et al. 2015, at temperature 1; symbol by symbol, Kim and Rush 2016, eq. 6 and 8).

    Args:
        logits: [N, V], without padding positions (see Seq2Seq.forward).
        target_ids: [N] int64.
        label_smoothing: e, in [0, 1).
        soft_targets: w q. If None, there are no teachers.

    Returns:
        the sum in nats, a scalar; the caller divides by the number of tokens over all batches and processes.
    """
    logits = at_least_float32(logits)
    symbols, masses, rest = target_masses(target_ids, label_smoothing, soft_targets, like=logits)
    losses = torch.logsumexp(logits, -1) - (masses * logits.gather(1, symbols)).sum(1)
    if label_smoothing > 0:
        losses = losses - rest * torch.mv(logits, smoothing_shares(logits, label_smoothing))
    return losses.sum()


def target_masses(
    target_ids: Tensor, label_smoothing: float, soft_targets: SoftTargets | None, *, like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the target distribution without the shares of smoothing.

    Args:
        like: a tensor with the type and device of the masses.

    Returns:
        symbols [N, 1 + K], which may contain the true one twice; the share of each in the distribution, [N, 1 + K]; and
        1 - w, [N].
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
    """Returns the coverage loss of See et al. (2017, eq. 12 and 13): repeated attention to the same positions.

    Args:
        weights: [B, T, S] of attention.
        positions: [N] int64 indices of the counted places in the flattened [B, T].

    Returns:
        the sum over them of sum_s min(a_ts, c_ts), c_ts being the attention on position s before step t; a scalar.
    """
    covered = weights.cumsum(1) - weights
    return torch.minimum(weights, covered).sum(-1).flatten().index_select(0, positions).sum()


def smoothing_shares(like: Tensor, label_smoothing: float) -> Tensor:
    """Returns the share of label smoothing of each symbol, [V]; 0 for PAD and BOS.

    Args:
        like: [..., V], with the type and device of the shares.
    """
    shares = torch.ones(like.shape[-1], dtype=like.dtype, device=like.device)
    shares[list(NEVER_GENERATED)] = 0
    return shares.mul_(label_smoothing / (len(shares) - len(NEVER_GENERATED)))


class Copies(NamedTuple):
    """The symbols that can be copied at each of N predictions.

    Attributes:
        symbols: [N, S] int64, the source's; PAD for none.
        scores: [N, S] log((1 - g) / g) + log of the attention on all positions that have this symbol, g being the
            probability of generating; so low for PAD that it has no effect. Symbols that occur several times have
            the same score each time.
    """

    symbols: Tensor
    scores: Tensor


def mixed(logits: Tensor, copies: Copies) -> Tensor:
    """Returns logits [N, V] whose softmax is the mixture of that of `logits` [N, V] and of the copies."""
    log_probs = torch.log_softmax(at_least_float32(logits), -1)
    return mixed_in(log_probs, log_probs.gather(1, copies.symbols), copies)


def mixed_in(log_probs: Tensor, generated: Tensor, copies: Copies) -> Tensor:
    """Returns the result of `mixed`, from L = log_softmax(logits) [N, V] and L of the source's symbols [N, S].

    The mixture's log-probabilities minus log g are L itself, except for the source's symbols: log(exp L + exp score).
    """
    # A symbol that occurs in the source several times is written several times, with the same value.
    return log_probs.scatter_reduce(1, copies.symbols, generated + F.softplus(copies.scores - generated), "amax")


MIN_ROWS: Final = 256  # Rows of a block: with fewer the products are slow.
# Bytes of a block's logits, unless MIN_ROWS needs more. glibc requests each piece of memory of 32 MiB and more from the
# kernel again, which takes as long as the work on it.
MAX_BYTES: Final = 24 * 2**20
MAX_CACHED_LOGITS: Final = 2**19  # Logits of a block that become gradients together on a CPU: they fit its cache.


def output_loss(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    target_ids: Tensor,
    *,
    label_smoothing: float,
    soft_targets: SoftTargets | None = None,
    copies: Copies | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns smoothed_cross_entropy of the logits W x + b, mixed with `copies`, for one backward pass.

    Within autocast the products are in its type, and everything else in the weights'.

    Args:
        inputs: x, [N, H].
        weight, bias: W, [V, H], and b, [V].
        target_ids: [N] int64.
        label_smoothing, soft_targets: see smoothed_cross_entropy.
        copies: the symbols that can be copied at each position. If None, the model does not copy.

    Returns:
        the sum in nats, a scalar; and that of the true symbols alone, without smoothing and teachers, which has no
        gradient.
    """
    dtype = product_dtype(weight)
    if dtype == torch.float16:
        # The gradients are outside its range as long as the loss is not scaled, and it is scaled only after this.
        logits = logits_of(inputs, weight, bias)
        logits = logits if copies is None else mixed(logits, copies)
        loss = smoothed_cross_entropy(logits, target_ids, label_smoothing=label_smoothing, soft_targets=soft_targets)
        return loss, F.cross_entropy(logits.detach(), target_ids, reduction="sum")
    wanted = target_masses(target_ids, label_smoothing, soft_targets, like=bias)
    tensors = (inputs, weight, bias, *wanted, label_smoothing, dtype)
    both: tuple[Tensor, Tensor] = _OutputLoss.apply(*tensors, *(copies or (None, None)))  # type: ignore[no-untyped-call]
    return both


class _OutputLoss(torch.autograd.Function):
    """dloss/dz = softmax(z) - q, q being the target distribution (see smoothed_cross_entropy)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        wanted: Tensor,
        masses: Tensor,
        rest: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        symbols: Tensor | None,
        scores: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(inputs.device):
            low_weight = weight.to(dtype)
            shares = smoothing_shares(bias, label_smoothing) if label_smoothing > 0 else None
            total, true_total = bias.new_zeros(()), bias.new_zeros(())
            of_inputs, of_weight, of_bias = [], None, torch.zeros_like(bias)
            copies = None if symbols is None or scores is None else Copies(symbols, scores)
            of_scores = None if scores is None else torch.empty_like(scores)
            num_rows = _even(max(MIN_ROWS, MAX_BYTES // (len(bias) * dtype.itemsize)))
            num_cached = _even(MAX_CACHED_LOGITS // len(bias)) if inputs.device.type == "cpu" else num_rows
            num_done = 0
            for part in torch.split(inputs.to(dtype), num_rows):
                low_logits = torch.mm(part, low_weight.T)
                for low in torch.split(low_logits, num_cached):
                    rows = slice(num_done, num_done + len(low))
                    num_done = rows.stop
                    logits = low.to(weight.dtype).add_(bias)  # if they have the same type, this overwrites `low`
                    targets = _Targets(wanted[rows], masses[rows], rest[rows], shares)
                    if copies is None or of_scores is None:
                        loss, true_loss, gradients = _at_logits(logits, targets)
                    else:
                        here = Copies(*(each[rows] for each in copies))
                        loss, true_loss, gradients, of_scores[rows] = _at_mixture(logits, here, targets)
                    total += loss
                    true_total += true_loss
                    of_bias += gradients.sum(0)
                    low.copy_(gradients)
                of_inputs.append(torch.mm(low_logits, low_weight).to(inputs.dtype))
                of_weight_here = torch.mm(low_logits.T, part).to(weight.dtype)
                of_weight = of_weight_here if of_weight is None else of_weight.add_(of_weight_here)
        ctx.gradients = torch.cat(of_inputs), of_weight, of_bias, of_scores
        ctx.mark_non_differentiable(true_total)
        return total, true_total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # used up: they are multiplied in place
        of_inputs, of_weight, of_bias, of_scores = (None if each is None else each.mul_(gradient) for each in gradients)
        return of_inputs, of_weight, of_bias, None, None, None, None, None, None, of_scores


class _Targets(NamedTuple):
    """The target distribution q of some rows; see target_masses.

    Attributes:
        symbols, masses: [n, M].
        rest: [n].
        shares: [V] of label smoothing, for a row whose rest is 1; None without smoothing.
    """

    symbols: Tensor
    masses: Tensor
    rest: Tensor
    shares: Tensor | None


def _at_logits(logits: Tensor, targets: _Targets) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss of logits [n, V], that of the true symbols alone, and the gradients [n, V] of the first."""
    symbols, masses, rest, shares = targets
    gradients = torch.softmax(logits, 1)
    # log sum exp(z), from the largest of both: logarithms of all probabilities would take exp() twice.
    log_normalizers = logits.amax(1, keepdim=True) - gradients.amax(1, keepdim=True).log_()
    wanted = logits.gather(1, symbols)  # the true symbol first
    losses = log_normalizers.squeeze(1) - (masses * wanted).sum(1)
    true_loss = log_normalizers.sum() - wanted[:, 0].sum()
    if shares is not None:
        losses -= rest * torch.mv(logits, shares)
        gradients.addr_(rest, shares, alpha=-1)
    return losses.sum(), true_loss, gradients.scatter_add_(1, symbols, -masses)


def _at_mixture(logits: Tensor, copies: Copies, targets: _Targets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the results of `_at_logits` for the mixture u, and the gradients [n, S] of the scores.

    With L = log_softmax(z) and c = exp(score) / (exp L + exp(score)) at the source's symbols, du/dscore is c, du/dL is
    1 - c there and 1 elsewhere, and dL/dz = 1 - softmax(z).
    """
    symbols, scores = copies
    log_probs = torch.log_softmax(logits, 1)
    generated = log_probs.gather(1, symbols)
    copied = torch.sigmoid(scores - generated)
    mixture = mixed_in(log_probs, generated, copies)
    loss, true_loss, gradients = _at_logits(mixture, targets)
    # The first place of a symbol that occurs several times gets all.
    earlier = (symbols.unsqueeze(2) == symbols.unsqueeze(1)).tril(-1).any(2)
    of_scores = (gradients.gather(1, symbols) * copied).masked_fill_(earlier, 0)
    gradients.scatter_add_(1, symbols, -of_scores)
    gradients -= log_probs.exp_() * gradients.sum(1, keepdim=True)
    return loss, true_loss, gradients, of_scores


def _even(number: int) -> int:
    """Returns the largest even number up to `number`, at least 2.

    Parts of other sizes would be added up in another order: a training would no longer have the same last bits.
    """
    return max(2, number // 2 * 2)
