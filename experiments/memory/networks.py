"""Small recurrent networks, and the task of copying after a delay.

A sequence is one of NUM_SYMBOLS symbols, then noise: NUM_NOISE other symbols at random. After the last of them the
network has to say the first symbol: the latch problem of Bengio, Simard and Frasconi (1994). Nothing but the recurrent
state can carry it there.

Shapes: B sequences, K + 1 steps (the symbol and a delay of K), H states.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_SYMBOLS: Final = 8
NUM_NOISE: Final = 2
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
    """Reads one-hot symbols [B, K + 1, V] and gives logits [B, NUM_SYMBOLS] after the last."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        cells = {"tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        self.recurrent = cells[kind.cell](NUM_SYMBOLS + NUM_NOISE, HIDDEN_SIZE, batch_first=True)
        self.output = nn.Linear(HIDDEN_SIZE, NUM_SYMBOLS)
        with torch.no_grad():
            if kind.radius is not None:
                nn.init.orthogonal_(self.recurrent.weight_hh_l0).mul_(kind.radius)
            if kind.cell == "lstm":
                self.recurrent.bias_ih_l0[HIDDEN_SIZE : 2 * HIDDEN_SIZE] = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrent(inputs)
        logits: Tensor = self.output(states[:, -1])
        return logits

    def gradient_norms(self, inputs: Tensor, symbols: Tensor) -> Tensor:
        """[B, K] of each sequence's loss, at the state k = 0, ..., K - 1 steps before the last, an LSTM's cells
        included; relative to k = 0.
        """
        state, kept = None, []
        for step in torch.split(inputs, 1, 1):
            _, state = self.recurrent(step, state)
            parts = state if isinstance(state, tuple) else (state,)
            parts = tuple(part.requires_grad_() for part in parts)
            kept.append(parts)
            state = parts if isinstance(state, tuple) else parts[0]
        loss = F.cross_entropy(self.output(kept[-1][0][0]), symbols, reduction="sum")
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


def sequences(number: int, delay: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs [B, K + 1, V] and the symbols [B] that are to be said after them."""
    symbols = torch.randint(NUM_SYMBOLS, (number,), generator=generator)
    noise = torch.randint(NUM_NOISE, (number, delay), generator=generator) + NUM_SYMBOLS
    ids = torch.cat([symbols.unsqueeze(1), noise], 1)
    return F.one_hot(ids, NUM_SYMBOLS + NUM_NOISE).float(), symbols
