"""Small recurrent networks, in which nothing but the recurrent state carries what was read to the end.

Shapes: B sequences, T steps, V numbers read at each, O outputs, H states.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from experiments.memory.tasks import Task

HIDDEN_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of network.

    Attributes:
        radius: of a tanh network: its recurrent matrix is orthogonal times this, so that all its eigenvalues are so far
            from 0. None: PyTorch's own first weights; an LSTM's forget gates are biased by 1 (Jozefowicz et al. 2015).
    """

    name: str
    cell: Literal["tanh", "lstm", "gru"]
    radius: float | None = None


KINDS: Final = (
    Kind("tanh, radius 0.7", "tanh", 0.7),
    Kind("tanh, radius 1", "tanh", 1.0),
    Kind("tanh, radius 1.5", "tanh", 1.5),
    Kind("LSTM", "lstm"),
    Kind("GRU", "gru"),
)


class Network(nn.Module):
    """Reads [B, T, V] and gives outputs [B, O] after the last."""

    def __init__(self, kind: Kind, task: Task) -> None:
        super().__init__()
        cells = {"tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        self.recurrent = cells[kind.cell](task.num_inputs, HIDDEN_SIZE, batch_first=True)
        self.output = nn.Linear(HIDDEN_SIZE, task.num_outputs)
        self.losses = task.losses
        with torch.no_grad():
            if kind.radius is not None:
                nn.init.orthogonal_(self.recurrent.weight_hh_l0).mul_(kind.radius)
            if kind.cell == "lstm":
                self.recurrent.bias_ih_l0[HIDDEN_SIZE : 2 * HIDDEN_SIZE] = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrent(inputs)
        outputs: Tensor = self.output(states[:, -1])
        return outputs

    def gradient_norms(self, inputs: Tensor, wanted: Tensor) -> Tensor:
        """[B, T - 1] of each sequence's loss, at the state k = 0, ..., T - 2 steps before the last, an LSTM's cells
        included; relative to k = 0.
        """
        state, kept = None, []
        for step in torch.split(inputs, 1, 1):
            _, state = self.recurrent(step, state)
            parts = state if isinstance(state, tuple) else (state,)
            parts = tuple(part.requires_grad_() for part in parts)
            kept.append(parts)
            state = parts if isinstance(state, tuple) else parts[0]
        loss = self.losses(self.output(kept[-1][0][0]), wanted).sum()
        gradients = iter(torch.autograd.grad(loss, [part for parts in kept for part in parts], allow_unused=True))
        squares = torch.stack(
            [torch.stack([_squares(next(gradients), like=part) for part in parts]).sum(0) for parts in kept]
        )
        norms = squares.sqrt().flip(0)[:-1]
        return (norms / norms[0]).T

    def eigenvalues(self) -> Tensor:
        """[H] complex, of a tanh network's recurrent matrix."""
        values: Tensor = torch.linalg.eigvals(self.recurrent.weight_hh_l0.detach())
        return values


def _squares(gradient: Tensor | None, *, like: Tensor) -> Tensor:
    """[B] the sums of squares of a state's gradient [1, B, H]; 0 where the loss does not depend on it."""
    return (torch.zeros_like(like) if gradient is None else gradient).square().sum((0, 2))
