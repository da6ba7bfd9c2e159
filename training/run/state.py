"""The state of a training, and torch's random state, from which dropout draws, on any device."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class TrainingState:
    """Where a training stands, between two steps.

    Attributes:
        step: updates done.
        epoch: epochs finished.
        batch: batches of the running epoch that are done.
        seconds: spent in training and validation so far, over all resumptions.
        validated_step: the step of the last validation; None: there was none.
        best_step, best_value, best_loss: the best validation so far; among equal values the lower loss is better.
        num_validations_without_best: in a row.
        plateau_factor: the schedule's (training/optimization/schedule.py).
        smoothed_loss, lowest_loss, num_high_losses: the guard's (training/loop/guard.py).
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    validated_step: int | None = None
    best_step: int | None = None
    best_value: float | None = None
    best_loss: float | None = None
    num_validations_without_best: int = 0
    plateau_factor: float = 1.0
    smoothed_loss: float | None = None
    lowest_loss: float | None = None
    num_high_losses: int = 0


def random_state(device: torch.device) -> Tensor:
    """The state [n] uint8 for `restore_random_state`: the CPU's generator, then the GPU's where training is on one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Sets torch's random state from [n] uint8.

    A GPU's state is ignored on a CPU. Where none was saved, the GPU keeps its own.
    """
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)
