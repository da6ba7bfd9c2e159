"""The output layer and the loss in one, with their gradients, so that no logits are kept for the way back.

Where the vocabulary is large, the two take most of a step's time and of its memory. Apart from each other, they would
leave autograd [N, V] values several times over. Here a block of rows goes from inputs to gradients before the next one
begins, and its logits are not kept.

Shapes: N target positions, H decoder size, V target vocabulary, S source positions.
"""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attendant.training.kernels.loss import SoftTargets, smoothed_cross_entropy, smoothing_shares, target_masses
from attendant.training.kernels.mixture import Copies, mixed, mixed_in
from attendant.training.kernels.precision import product_dtype, without_autocast

MIN_ROWS: Final = 256
"""Of a block: with fewer the products are slow."""

MAX_BYTES: Final = 24 * 2**20
"""Of a block's logits, where that leaves MIN_ROWS. glibc asks the kernel anew for every piece of memory of 32 MiB and
more, which takes as long as the work on it."""

MAX_CACHED_LOGITS: Final = 2**19
"""How many of a block's logits become gradients at a time on a CPU: within its cache."""


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
    """smoothed_cross_entropy of the logits W x + b, mixed with `copies`, for one backward pass.

    Within autocast the products are in its type, and everything else in the weights'.

    Args:
        inputs: x, [N, H].
        weight, bias: W, [V, H], and b, [V].
        target_ids: [N] int64.
        label_smoothing, soft_targets: see smoothed_cross_entropy.
        copies: what can be copied at each position; None: nothing.

    Returns:
        the sum in nats, a scalar; and that of the true symbols alone, without smoothing and teachers, of which there is
        no gradient.
    """
    dtype = product_dtype(weight)
    if dtype == torch.float16:
        # The gradients are outside its range as long as the loss is not scaled, and it is scaled only after this. The
        # bias comes on top in float32: float16 has no finite number for what can't be generated.
        logits = F.linear(inputs, weight).float() + bias
        logits = logits if copies is None else mixed(logits, copies)
        loss = smoothed_cross_entropy(logits, target_ids, label_smoothing=label_smoothing, soft_targets=soft_targets)
        return loss, F.cross_entropy(logits.detach(), target_ids, reduction="sum")
    wanted = target_masses(target_ids, label_smoothing, soft_targets, like=bias)
    given = (inputs, weight, bias, *wanted, label_smoothing, dtype)
    both: tuple[Tensor, Tensor] = _OutputLoss.apply(*given, *(copies or (None, None)))  # type: ignore[no-untyped-call]
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
                    logits = low.to(weight.dtype).add_(bias)  # where they are the same type, `low` is free for it
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
        shares: [V] what smoothing gives each symbol of a row whose rest is 1; None: nothing.
    """

    symbols: Tensor
    masses: Tensor
    rest: Tensor
    shares: Tensor | None


def _at_logits(logits: Tensor, targets: _Targets) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of some rows of logits [n, V], that of the true symbols alone, and the gradients [n, V] of the first."""
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
    """As `_at_logits` of the mixture u, with the gradients [n, S] of the scores.

    With L = log_softmax(z) and c = exp(score) / (exp L + exp(score)) at the source's symbols, du/dscore is c, du/dL is
    1 - c there and 1 elsewhere, and dL/dz = 1 - softmax(z).
    """
    symbols, scores = copies
    log_probs = torch.log_softmax(logits, 1)
    generated = log_probs.gather(1, symbols)
    copied = torch.sigmoid(scores - generated)
    mixture = mixed_in(log_probs, generated, copies)
    loss, true_loss, gradients = _at_logits(mixture, targets)
    # Of a symbol that stands several times, its first place gets all.
    earlier = (symbols.unsqueeze(2) == symbols.unsqueeze(1)).tril(-1).any(2)
    of_scores = (gradients.gather(1, symbols) * copied).masked_fill_(earlier, 0)
    gradients.scatter_add_(1, symbols, -of_scores)
    gradients -= log_probs.exp_() * gradients.sum(1, keepdim=True)
    return loss, true_loss, gradients, of_scores


def _even(number: int) -> int:
    """The even number below or at `number`, at least 2.

    Parts of other sizes would be added up in another order: a training would no longer have the same last bits.
    """
    return max(2, number // 2 * 2)
