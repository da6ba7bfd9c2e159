"""One update of the weights: the gradient of some batches' loss, and the step along it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attendant.training.data.batches import Batch
from attendant.training.kernels.loss import repeated_attention
from attendant.training.kernels.output_loss import output_loss
from attendant.training.kernels.precision import PrecisionName, make_autocast, make_scaler
from attendant.training.kernels.products import fast_products
from attendant.training.loop.processes import Processes
from attendant.training.loop.scheduled_sampling import sampled_inputs
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import TrainerConfig


@dataclass(frozen=True, slots=True)
class Gradient:
    """The outcome of a backward pass, before the weights change.

    Attributes:
        loss: of `Objective`, mean over all target tokens of all batches and processes, in nats.
        cross_entropy: likewise, of the true symbols alone: without label smoothing, teachers and coverage.
        norm: of the gradient before it is clipped.
        overflowed: the gradient left fp16's range, which is expected now and then: this update is left out, and the
            loss is scaled by less.
    """

    loss: float
    cross_entropy: float
    norm: float
    overflowed: bool


class Objective:
    """The loss that training minimizes."""

    def __init__(self, model: Seq2Seq, *, label_smoothing: float, coverage_loss: float = 0.0) -> None:
        """`coverage_loss`: the weight of attention that repeats itself; see `repeated_attention`."""
        self._model = model
        self._label_smoothing = label_smoothing
        self._coverage_loss = coverage_loss

    def __call__(self, batch: Batch, sampling: float = 0.0) -> tuple[Tensor, Tensor]:
        """The smoothed cross-entropy and the coverage loss (training/kernels/loss.py) of the batch's target tokens.

        Args:
            sampling: the probability that an input of the decoder is drawn from the model; see `sampled_inputs`.

        Returns:
            their sum in nats, a scalar; and the cross-entropy of the true symbols alone, of which there is no gradient.
        """
        forced = self._model.forced(
            batch.source_ids,
            batch.source_lengths,
            sampled_inputs(self._model, batch, sampling) if sampling else batch.previous_ids,
            batch.positions,
            keep_attention=self._coverage_loss > 0,
        )
        loss, true_loss = output_loss(
            forced.readouts,
            *self._model.output_layer(),
            batch.target_ids,
            label_smoothing=self._label_smoothing,
            soft_targets=batch.soft_targets,
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
        config: TrainerConfig,
        *,
        precision: PrecisionName,
        device: torch.device,
        processes: Processes,
    ) -> None:
        processes.broadcast(model)
        self._objective = Objective(model, label_smoothing=config.label_smoothing, coverage_loss=config.coverage_loss)
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._clip_norm = config.clip_norm or math.inf
        self._precision = precision
        self._device = device
        self._processes = processes
        self.scaler = make_scaler(precision, device)

    def gradient(self, batches: Sequence[Batch], num_tokens: int, *, sampling: float = 0.0) -> Gradient:
        """Leaves the clipped gradient in the parameters.

        Args:
            batches: this process's; may be none where others have some.
            num_tokens: target tokens of all batches of all processes.
            sampling: see `Objective.__call__`.
        """
        self._optimizer.zero_grad(set_to_none=True)
        totals = np.zeros(2)
        with fast_products(self._device):
            for batch in batches:
                totals += self._backward(batch.to(self._device), num_tokens, sampling)
        self._processes.sum_gradients(self._parameters)
        self.scaler.unscale_(self._optimizer)
        norm = self._clip()
        loss, cross_entropy = (total / num_tokens for total in self._processes.sums(totals.tolist()))
        # A scale that has come down to 1 protects from nothing any more: then the gradient itself is at fault.
        can_lower = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        overflowed = can_lower and math.isfinite(loss) and not math.isfinite(norm)
        return Gradient(loss, cross_entropy, norm, overflowed)

    def step(self, learning_rate: float) -> None:
        """Moves the weights along the gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def _clip(self) -> float:
        """Scales the gradient down to the largest norm allowed; returns its norm before that."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        total_norm = nn.utils.get_total_norm(gradients)
        norm = total_norm.item()
        if not norm <= self._clip_norm:  # too large, or not a number
            nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, total_norm)
        return norm

    def _backward(self, batch: Batch, num_tokens: int, sampling: float) -> tuple[float, float]:
        """Adds the batch's gradient to the parameters'; returns both values of `Objective`."""
        with make_autocast(self._precision, self._device):
            total, true_total = self._objective(batch, sampling)
        torch.autograd.backward(self.scaler.scale(total / num_tokens))
        loss, true_loss = torch.stack([total.detach(), true_total]).tolist()  # one transfer from a GPU, not two
        return loss, true_loss
