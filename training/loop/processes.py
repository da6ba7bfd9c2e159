"""The processes of a data-parallel training, as `torchrun` starts them; alone, all of this does nothing.

Each holds the whole model and takes its share of every batch. The first one decides what depends on the clock, writes
the run, and speaks.
"""

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

# Imported before there is a group: its functions take the group of that moment as their default argument, and keep it.
import torch.distributed.nn.functional
from torch import Tensor, nn

LONGEST_WAIT = timedelta(hours=12)
"""How long the others wait while the first one prepares data or validates. torchrun notices a dead process at once."""


class Processes:
    """The group of processes that train together, and this one's place in it.

    Attributes:
        rank: 0 is the first one.
        size: how many there are, on all machines together.
        local_rank: the place on this machine, which is its GPU's number.
    """

    def __init__(self) -> None:
        """Reads what torchrun says by its environment variables. Some clusters set the same ones for others."""
        said = os.environ if dist.is_torchelastic_launched() else {}
        self.rank = int(said.get("RANK", "0"))
        self.size = int(said.get("WORLD_SIZE", "1"))
        self.local_rank = int(said.get("LOCAL_RANK", "0"))
        self._device = torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_many(self) -> bool:
        return self.size > 1

    def join(self, device: torch.device) -> None:
        """Meets the others: by nccl where each has a GPU, by gloo on CPUs."""
        self._device = device
        if self.is_many and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)

    def leave(self) -> None:
        """Destroys the group and its threads.

        Nobody else may keep a reference to the group: whoever drops the last one does so while it holds Python's global
        lock. A thread of gloo that waits for this lock would then never end, and never be joined.
        """
        if self.is_many and dist.is_initialized():
            dist.destroy_process_group()

    def broadcast(self, model: nn.Module) -> None:
        """Gives all processes the first one's weights: their machines may have drawn others from the same seed."""
        if self.is_many:
            for weight in model.state_dict().values():
                dist.broadcast(weight, src=0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leaves in each parameter its gradient summed over the processes; one exchange for all of them.

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
        """Waits until all processes are here. Ends this one where the first has ended, which has then said why."""
        try:
            self.sums([0.0])
        except RuntimeError:
            if self.is_first:
                raise
            raise SystemExit(1) from None

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        if not self.is_many:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        found: list[float] = tensor.tolist()
        return found

    def of_first(self, values: Sequence[float]) -> list[float]:
        """The first process's values. The others give as many."""
        return self.sums([value if self.is_first else 0.0 for value in values])

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.sums([float(flag)])[0] > 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor, by rank; [...] of one shape and type in all."""
        if not self.is_many:
            return [tensor]
        found = [torch.empty_like(tensor, device=self._device) for _ in range(self.size)]
        dist.all_gather(found, tensor.to(self._device))
        return [each.to(tensor.device) for each in found]
