"""Saves and restores torch's random state, from which dropout draws, on any device."""

import torch
from torch import Tensor


def random_state(device: torch.device) -> Tensor:
    """Bytes for `restore_random_state`: the CPU's generator, and behind it the GPU's where training is on one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Sets torch's random state. A GPU's state is ignored on a CPU, and kept as it is where none was saved."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)
