"""One update of the weights, in one process or several: the gradient of the loss of some batches, and the step.

Shapes: B pairs, T target positions.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

# Imported before a group exists: the default arguments of its functions would keep a reference to the group.
import torch.distributed.nn.functional
from torch import Tensor, nn

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.runtime.errors import UserError
from attendant.training.data.batches import Batch
from attendant.training.kernels.hardware import PrecisionName, fast_products, make_autocast
from attendant.training.kernels.loss import output_loss, repeated_attention
from attendant.training.model import Seq2Seq
from attendant.training.recipe import TrainerConfig

# The other processes wait this long while the first one prepares data or validates. torchrun notices a dead process.
LONGEST_WAIT = timedelta(hours=12)


class Processes:
    """The group of processes of a data-parallel training, as `torchrun` starts them, and this one's place in it.

    Each holds the whole model and takes its share of every batch. The first one makes the decisions that depend on the
    clock, writes the run, and prints. With a single process, all methods do nothing.

    Attributes:
        rank: 0 is the first one.
        size: the number of processes on all machines.
        local_rank: the place on this machine, which is its GPU's number.
    """

    def __init__(self) -> None:
        """Reads torchrun's environment variables. Some clusters set the same ones for other purposes."""
        variables = os.environ if dist.is_torchelastic_launched() else {}
        self.rank = int(variables.get("RANK", "0"))
        self.size = int(variables.get("WORLD_SIZE", "1"))
        self.local_rank = int(variables.get("LOCAL_RANK", "0"))
        self._device = torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_many(self) -> bool:
        return self.size > 1

    def join(self, device: torch.device) -> None:
        """Connects the processes: by nccl if each has a GPU, by gloo on CPUs."""
        self._device = device
        if self.is_many and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)

    def leave(self) -> None:
        """Destroys the group and its threads.

        Nothing else may keep a reference to the group: dropping the last reference holds Python's global lock, and a
        thread of gloo that waits for this lock would never end.
        """
        if self.is_many and dist.is_initialized():
            dist.destroy_process_group()

    def broadcast(self, model: nn.Module) -> None:
        """Copies the first process's weights to all: machines may draw different numbers from the same seed."""
        if self.is_many:
            for weight in model.state_dict().values():
                dist.broadcast(weight, src=0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leaves in each parameter its gradient summed over the processes; one exchange for all parameters.

        `DistributedDataParallel` would exchange some while others are computed. But it keeps a reference to the group,
        which a training that fails would drop only after `leave`.
        """
        if not self.is_many:
            return
        gradients = []
        for weight in parameters:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        whole = nn.utils.parameters_to_vector(gradients)
        dist.all_reduce(whole)
        nn.utils.vector_to_parameters(whole, gradients)

    def wait(self) -> None:
        """Waits until all processes are here. Raises UserError: the first has ended; its own error has the reason."""
        try:
            self.sums([0.0])
        except RuntimeError:
            if self.is_first:
                raise
            raise UserError("the first process of the training has ended; its own error has the reason") from None

    def sums(self, values: Sequence[float]) -> list[float]:
        """Returns each value summed over the processes."""
        if not self.is_many:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        total: list[float] = tensor.tolist()
        return total

    def of_first(self, values: Sequence[float]) -> list[float]:
        """Returns the first process's values; the others pass the same number of values."""
        return self.sums([value if self.is_first else 0.0 for value in values])

    def any(self, flag: bool) -> bool:
        """Returns True if the flag is set in any process."""
        return self.sums([float(flag)])[0] > 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns every process's tensor, by rank; [...] of one shape and type in all processes."""
        if not self.is_many:
            return [tensor]
        tensors = [torch.empty_like(tensor, device=self._device) for _ in range(self.size)]
        dist.all_gather(tensors, tensor.to(self._device))
        return [each.to(tensor.device) for each in tensors]


@torch.no_grad()
def sampled_inputs(model: Seq2Seq, batch: Batch, probability: float) -> Tensor:
    """Returns the decoder's inputs [B, T] for scheduled sampling (Bengio et al. 2015, 2.4): each input except the first
    is drawn from the model with this probability, so that the decoder learns to continue its own outputs.

    y'_t ~ P(y_t | y_1, ..., y_{t-1}, x) is drawn after the true earlier symbols, for all t at once, instead of one
    pass for each t (Duckworth et al. 2019). If EOS is drawn, the true symbol stays, because nothing follows EOS.
    """
    places = batch.positions[batch.positions % batch.previous_ids.shape[1] > 0]
    chosen = places[torch.rand(places.shape, device=places.device) < probability]
    inputs = batch.previous_ids.flatten().clone()
    if len(chosen):
        logits = model(batch.source_ids, batch.source_lengths, batch.previous_ids, chosen - 1)
        drawn = torch.multinomial(torch.softmax(logits.float(), -1), 1).squeeze(1)
        inputs[chosen] = torch.where(drawn == EOS_ID, inputs[chosen], drawn)
    return inputs.view_as(batch.previous_ids)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The outcome of a backward pass, before the weights change.

    Attributes:
        loss: `training_loss`, mean over all target tokens of all batches and processes, in nats.
        cross_entropy: the same mean of the true symbols alone, without label smoothing, teachers and coverage.
        norm: norm of the gradient before it is clipped.
        overflowed: the gradient left fp16's range, which is expected now and then: this update is skipped, and the loss
            is scaled by less.
    """

    loss: float
    cross_entropy: float
    norm: float
    overflowed: bool


def training_loss(
    model: Seq2Seq, batch: Batch, *, label_smoothing: float, coverage_loss: float = 0.0, sampling: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Computes the loss of a batch's target tokens (training/kernels/loss.py).

    Args:
        coverage_loss: the weight of `repeated_attention`.
        sampling: the probability that an input of the decoder is drawn from the model; see `sampled_inputs`.

    Returns:
        the sum of smoothed cross-entropy and coverage loss in nats, a scalar; and the cross-entropy of the true symbols
        alone, which has no gradient.
    """
    forced = model.teacher_forcing(
        batch.source_ids,
        batch.source_lengths,
        sampled_inputs(model, batch, sampling) if sampling else batch.previous_ids,
        batch.positions,
        keep_attention=coverage_loss > 0,
    )
    loss, true_loss = output_loss(
        forced.readouts,
        *model.output_layer(),
        batch.target_ids,
        label_smoothing=label_smoothing,
        soft_targets=batch.soft_targets,
        copies=forced.copies,
    )
    if coverage_loss > 0 and forced.weights is not None:
        loss = loss + coverage_loss * repeated_attention(forced.weights, batch.positions)
    return loss, true_loss


class Updater:
    """Updates a model. In any number of batches and processes, the same pairs give the same gradient: the loss is
    normalized over all target tokens of an update.

    Attributes:
        scaler: fp16's, part of a checkpoint.
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
        self._loss = partial(
            training_loss, model, label_smoothing=config.label_smoothing, coverage_loss=config.coverage_loss
        )
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._clip_norm = config.clip_norm or math.inf
        self._precision = precision
        self._device = device
        self._processes = processes
        # Scales the loss so that small gradients stay in fp16's range; it does nothing in other precisions.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def gradient(self, batches: Sequence[Batch], num_tokens: int, *, sampling: float = 0.0) -> Gradient:
        """Leaves the clipped gradient in the parameters.

        Args:
            batches: batches of this process; may be empty if other processes have some.
            num_tokens: target tokens of all batches of all processes.
            sampling: see `training_loss`.
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
        # At a scale of 1, overflow is not the scale's fault: then the gradient itself is wrong.
        can_lower = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        overflowed = can_lower and math.isfinite(loss) and not math.isfinite(norm)
        return Gradient(loss, cross_entropy, norm, overflowed)

    def step(self, learning_rate: float) -> None:
        """Moves the weights along the gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def _backward(self, batch: Batch, num_tokens: int, sampling: float) -> list[float]:
        """Adds the batch's gradient to the parameters'; returns both values of `training_loss`."""
        with make_autocast(self._precision, self._device):
            total, true_total = self._loss(batch, sampling=sampling)
        torch.autograd.backward(self.scaler.scale(total / num_tokens))
        values: list[float] = torch.stack([total.detach(), true_total]).tolist()  # one transfer from a GPU, not two
        return values

    def _clip(self) -> float:
        """Scales the gradient down to the largest norm allowed; returns its norm before that."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        total_norm = nn.utils.get_total_norm(gradients)
        norm = total_norm.item()
        if not norm <= self._clip_norm:  # too large, or not a number
            nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, total_norm)
        return norm
