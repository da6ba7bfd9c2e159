"""The tasks of long lag that small recurrent networks are given: what they read, and what they have to say at the end.

Shapes: B sequences, T steps, V numbers read at each, O outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

NUM_SYMBOLS: Final = 8
NUM_NOISE: Final = 2
ERROR: Final = 0.04
"""Of a sum, at most: the paper's."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task, whose loss is after the last step.

    Attributes:
        lag: steps between what is to be known and the end, at least; what is measured has twice as many.
        optimizers: that it is trained with.
        num_steps: of a training, at most.
        draw: inputs [B, T, V] and what is wanted [B], of a number of sequences and a lag.
        losses: [B] of outputs [B, O] and what is wanted.
        right: [B] which of these outputs are.
    """

    name: str
    num_inputs: int
    num_outputs: int
    lag: int
    optimizers: tuple[str, ...]
    num_steps: int
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
    losses: Callable[[Tensor, Tensor], Tensor]
    right: Callable[[Tensor, Tensor], Tensor]


def draw_copying(number: int, lag: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One of NUM_SYMBOLS symbols, then a lag of noise: NUM_NOISE other symbols at random. After the last of them the
    network has to say the first symbol: the latch problem of Bengio, Simard and Frasconi (1994).
    """
    symbols = torch.randint(NUM_SYMBOLS, (number,), generator=generator)
    noise = torch.randint(NUM_NOISE, (number, lag), generator=generator) + NUM_SYMBOLS
    ids = torch.cat([symbols.unsqueeze(1), noise], 1)
    return F.one_hot(ids, NUM_SYMBOLS + NUM_NOISE).float(), symbols


def draw_adding(number: int, lag: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The adding problem (Hochreiter and Schmidhuber 1997, section 5.4): 2 * lag pairs of a number in [-1, 1] and a
    mark. Two pairs are marked by 1, one of the first ten and another of the first half; the first and the last pair by
    -1 where they are not. Wanted is 0.5 + (X1 + X2) / 4 of the two numbers.
    """
    num_pairs = 2 * lag
    numbers = 2 * torch.rand(number, num_pairs, generator=generator) - 1
    first = torch.randint(min(10, lag - 1), (number,), generator=generator)
    second = torch.randint(lag - 2, (number,), generator=generator)
    second += second >= first
    rows = torch.arange(number)
    marks = torch.zeros(number, num_pairs)
    marks[:, 0] = marks[:, -1] = -1
    marks[rows, first] = marks[rows, second] = 1
    return torch.stack([numbers, marks], 2), 0.5 + (numbers[rows, first] + numbers[rows, second]) / 4


COPYING: Final = Task(
    name="copying",
    num_inputs=NUM_SYMBOLS + NUM_NOISE,
    num_outputs=NUM_SYMBOLS,
    lag=30,
    optimizers=("adam", "sgd"),
    num_steps=800,
    draw=draw_copying,
    losses=lambda outputs, wanted: F.cross_entropy(outputs, wanted, reduction="none"),
    right=lambda outputs, wanted: outputs.argmax(1) == wanted,
)
ADDING: Final = Task(
    name="adding",
    num_inputs=2,
    num_outputs=1,
    lag=15,
    optimizers=("adam",),
    num_steps=1500,
    draw=draw_adding,
    losses=lambda outputs, wanted: (outputs.squeeze(1) - wanted).square(),
    right=lambda outputs, wanted: (outputs.squeeze(1) - wanted).abs() <= ERROR,
)
TASKS: Final = {task.name: task for task in (COPYING, ADDING)}
