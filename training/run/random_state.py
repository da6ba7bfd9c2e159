"""torch's random numbers where they stand: dropout's, on whatever device."""

import torch
from torch import Tensor


def random_state(device: torch.device) -> Tensor:
    """Bytes for `restore_random_state`: the CPU's generator, and behind it the GPU's where training is on one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """A GPU's part is left out where training goes on without one, and missing where it began without."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)
