"""One update of the weights: the gradient of some batches' loss, and the step along it."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attendant.training.data.batches import Batch
from attendant.training.kernels.loss import repeated_attention
from attendant.training.kernels.output_loss import output_loss
from attendant.training.kernels.precision import PrecisionName, make_autocast, make_scaler
from attendant.training.kernels.products import fast_products
from attendant.training.loop.processes import Processes
from attendant.training.loop.scheduled_sampling import sampled_inputs
from attendant.training.model import Seq2Seq


@dataclass(frozen=True, slots=True)
class Gradient:
    """The outcome of a backward pass, before the weights change.

    Attributes:
        loss: of `Objective`, mean over all target tokens of all batches and processes, in nats.
        cross_entropy: likewise, of the true symbols alone: without label smoothing, teachers and coverage.
        norm: of the gradient before it is clipped.
        overflowed: fp16's range was left, as it happens now and then; the update is left out and the scale lowered.
    """

    loss: float
    cross_entropy: float
    norm: float
    overflowed: bool


class Objective(nn.Module):
    """A model and its loss as one module, which is what data-parallel processes share.

    Attributes:
        model: what is trained.
    """

    def __init__(self, model: Seq2Seq, *, label_smoothing: float, coverage_loss: float = 0.0) -> None:
        """`coverage_loss`: the weight of attention that repeats itself; see `repeated_attention`."""
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._coverage_loss = coverage_loss

    def forward(self, batch: Batch, sampling: float = 0.0) -> tuple[Tensor, Tensor]:
        """The smoothed cross-entropy and the coverage loss (training/kernels/loss.py) of the batch's target tokens.

        Args:
            sampling: the probability of an input of the decoder to be its own; see `sampled_inputs`.

        Returns:
            their sum in nats, a scalar; and the cross-entropy of the true symbols alone, of which there is no gradient.
        """
        forced = self.model.forced(
            batch.source_ids,
            batch.source_lengths,
            sampled_inputs(self.model, batch, sampling) if sampling else batch.previous_ids,
            batch.positions,
            keep_attention=self._coverage_loss > 0,
        )
        loss, true_loss = output_loss(
            forced.readouts,
            *self.model.output_layer(),
            batch.target_ids,
            label_smoothing=self._label_smoothing,
            taught=batch.taught,
            copies=forced.copies,
        )
        if self._coverage_loss > 0 and forced.weights is not None:
            loss = loss + self._coverage_loss * repeated_attention(forced.weights, batch.positions)
        return loss, true_loss


class Updater:
    """Updates a model. In any number of batches and processes, the same pairs give the same gradient: the loss is
    normalized over all target tokens of an update.

    Attributes:
        scaler: fp16's, part of what a checkpoint keeps.
    """

    def __init__(
        self,
        model: Seq2Seq,
        optimizer: torch.optim.Optimizer,
        *,
        label_smoothing: float,
        coverage_loss: float,
        clip_norm: float,
        precision: PrecisionName,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self._objective = processes.share(
            Objective(model, label_smoothing=label_smoothing, coverage_loss=coverage_loss)
        )
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._clip_norm = clip_norm or math.inf
        self._precision = precision
        self._device = device
        self._processes = processes
        self.scaler = make_scaler(precision, device)

    def gradient(self, batches: Sequence[Batch], num_tokens: int, *, sampling: float = 0.0) -> Gradient:
        """Leaves the clipped gradient in the parameters.

        Args:
            batches: this process's; every process gives as many.
            num_tokens: target tokens of all batches of all processes.
            sampling: see Objective.forward.
        """
        self._optimizer.zero_grad(set_to_none=True)
        totals = np.zeros(2)
        with fast_products(self._device):
            for place, batch in enumerate(batches, 1):
                is_last = place == len(batches)
                totals += self._backward(batch.to(self._device), num_tokens, sampling, is_last=is_last)
        self.scaler.unscale_(self._optimizer)
        norm = self._clip()
        loss, cross_entropy = (total / num_tokens for total in self._processes.sums(totals.tolist()))
        # A scale that has come down to 1 protects from nothing any more: then the gradient itself is at fault.
        can_lower = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        overflowed = can_lower and math.isfinite(loss) and not math.isfinite(norm)
        return Gradient(loss, cross_entropy, norm, overflowed)

    def step(self, rate: float) -> None:
        """Moves the weights along the gradient, at this learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def _clip(self) -> float:
        """Returns the norm of the gradient as it was."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        total_norm = nn.utils.get_total_norm(gradients)
        norm = total_norm.item()
        if not norm <= self._clip_norm:  # too large, or not a number
            nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, total_norm)
        return norm

    def _backward(self, batch: Batch, num_tokens: int, sampling: float, *, is_last: bool) -> tuple[float, float]:
        """Returns the sums of `Objective`."""
        # The processes exchange gradients once, with the last batch's.
        waits = isinstance(self._objective, DistributedDataParallel) and not is_last
        with self._objective.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with make_autocast(self._precision, self._device):
                total, true_total = self._objective(batch, sampling)
            # Their exchange takes the mean over the processes; the sum is wanted.
            loss = total / num_tokens * self._processes.size
            self.scaler.scale(loss).backward()
        return float(total.item()), float(true_total.item())
