"""The device to compute on, and the threads of a CPU."""

from typing import Literal

import torch

from attendant.runtime.errors import UserError
from attendant.runtime.process import available_cpus

WantedDevice = Literal["auto", "cpu", "cuda"]


def choose_device(wanted: WantedDevice, local_rank: int | None = None) -> torch.device:
    """The device that a recipe asks for.

    Args:
        wanted: "auto": CUDA where there is a device, else the CPU.
        local_rank: of several processes on this machine, each with a GPU of its own, the number of this one; None:
            there is one process.

    Raises:
        UserError: CUDA is asked for and absent, or has fewer devices than processes here.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda", and torch finds no CUDA device here: set it to "cpu" or "auto"')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"a process for each GPU, and there are {torch.cuda.device_count()} here: lower --nproc_per_node, or set "
            'training.device to "cpu"'
        )
    return torch.device("cuda", local_rank)


def use_threads(wanted: int | None) -> None:
    """Sets torch's threads on the CPU.

    Args:
        wanted: how many; None: torch's own choice (OMP_NUM_THREADS, or the machine's cores), but no more than the
            CPUs that the process's affinity and its container's quota grant. More would wait for each other.
    """
    torch.set_num_threads(min(torch.get_num_threads(), available_cpus()) if wanted is None else wanted)
