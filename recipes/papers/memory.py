"""Small recurrent networks that must remember: how far back their loss reaches, before and after they have learned it.

Only the recurrent state carries information to the end.

Shapes: B sequences, T steps, V numbers read at each step, O outputs, H states.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
import torch
from matplotlib.ticker import FuncFormatter
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.recipes.papers.harness import RUNS, picture, read_results, write_table
from attendant.runtime.files import write_json
from attendant.training.kernels.cells import RNN_CLASSES, CellKind, weights_of
from attendant.training.report.pictures import FAINT, line_of, series_color

PAGE: Final = "memory"
NUM_SYMBOLS: Final = 8
NUM_NOISE: Final = 2
MAX_SUM_ERROR: Final = 0.04
"""An answer to the adding problem is right within this error (Hochreiter and Schmidhuber 1997)."""

HIDDEN_SIZE: Final = 64
BATCH_SIZE: Final = 32
SEEDS: Final = (1, 2, 3)
CLIP_NORM: Final = 1.0
SOLVED_ACCURACY: Final = 0.98  # Accuracy over WINDOW batches at which a training ends.
WINDOW: Final = 20
NUM_MEASURED: Final = 64
OPTIMIZERS: Final[dict[str, tuple[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]]]] = {
    "adam": ("Adam", partial(torch.optim.Adam, lr=0.005)),
    "sgd": ("SGD", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its loss after the last step.

    Attributes:
        lag: the least number of steps between the information and the end; measurements use twice as many.
        num_steps: the most updates of a training.
        draw: returns inputs [B, T, V] and wanted answers [B] for a number of sequences and a lag.
        losses: returns [B] for outputs [B, O] and wanted answers.
        right: returns [B], true for the right outputs.
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
    """Draws a symbol and then a lag of noise: other symbols at random. After the noise the network must output the
    first symbol: the latch problem of Bengio, Simard and Frasconi (1994).
    """
    symbols = torch.randint(NUM_SYMBOLS, (number,), generator=generator)
    noise = torch.randint(NUM_NOISE, (number, lag), generator=generator) + NUM_SYMBOLS
    ids = torch.cat([symbols.unsqueeze(1), noise], 1)
    return F.one_hot(ids, NUM_SYMBOLS + NUM_NOISE).float(), symbols


def draw_adding(number: int, lag: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws the adding problem (Hochreiter and Schmidhuber 1997, section 5.4): 2 * lag pairs of a number in [-1, 1] and
    a mark. Two pairs are marked by 1: one of the first ten, and another one of the first half. The first and the last
    pair are otherwise marked by -1. Wanted is 0.5 + (X1 + X2) / 4 of the two numbers.
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
    right=lambda outputs, wanted: (outputs.squeeze(1) - wanted).abs() <= MAX_SUM_ERROR,
)
TASKS: Final = {task.name: task for task in (COPYING, ADDING)}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of network.

    Attributes:
        radius: a tanh network's recurrent matrix is orthogonal times this, so all its eigenvalues have this absolute
            value. If None, PyTorch's initial weights; an LSTM's forget gates have a bias of 1 (Jozefowicz et al. 2015).
    """

    name: str
    cell: CellKind
    radius: float | None = None


KINDS: Final = (
    Kind("tanh, radius 0.7", "rnn", 0.7),
    Kind("tanh, radius 1", "rnn", 1.0),
    Kind("tanh, radius 1.5", "rnn", 1.5),
    Kind("LSTM", "lstm"),
    Kind("GRU", "gru"),
)


class Network(nn.Module):
    """Reads [B, T, V] and returns outputs [B, O] after the last step."""

    def __init__(self, kind: Kind, task: Task) -> None:
        super().__init__()
        self.recurrent: nn.RNNBase = RNN_CLASSES[kind.cell](task.num_inputs, HIDDEN_SIZE, batch_first=True)
        self.output = nn.Linear(HIDDEN_SIZE, task.num_outputs)
        self.losses = task.losses
        weights = weights_of(self.recurrent)
        with torch.no_grad():
            if kind.radius is not None:
                nn.init.orthogonal_(weights.of_hidden).mul_(kind.radius)
            if kind.cell == "lstm":
                weights.input_bias[HIDDEN_SIZE : 2 * HIDDEN_SIZE] = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrent(inputs)
        outputs: Tensor = self.output(states[:, -1])
        return outputs

    def gradient_norms(self, inputs: Tensor, wanted: Tensor) -> Tensor:
        """Returns [B, T - 1]: norms of each sequence's gradient at the states k = 0, ..., T - 2 steps before the last,
        an LSTM's cells included, relative to k = 0.
        """
        state, steps = None, []
        for step in torch.split(inputs, 1, 1):
            _, state = self.recurrent(step, state)
            parts = state if isinstance(state, tuple) else (state,)
            parts = tuple(part.requires_grad_() for part in parts)
            steps.append(parts)
            state = parts if isinstance(state, tuple) else parts[0]
        loss = self.losses(self.output(steps[-1][0][0]), wanted).sum()
        states = [part for parts in steps for part in parts]
        # The last cells of an LSTM have no gradient.
        gradients = torch.autograd.grad(loss, states, allow_unused=True, materialize_grads=True)
        squares = torch.stack([gradient.square().sum((0, 2)) for gradient in gradients])
        norms = squares.view(len(steps), -1, len(inputs)).sum(1).sqrt().flip(0)[:-1]
        return (norms / norms[0]).T


def study_memory(names: Iterable[str]) -> None:
    """Trains the missing networks of each task, then writes its table and pictures in docs/experiments/memory.md."""
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    for task in (TASKS[name] for name in names):
        path = RUNS / f"memory-{task.name}.json"
        results = read_results(path, [])
        done = {result["key"] for result in results}
        trainings = list(product(SEEDS, task.optimizers, (True, False), KINDS))
        for number, (seed, optimizer, clips, kind) in enumerate(trainings, 1):
            key = f"{kind.name}; {optimizer}; {'clipped' if clips else 'not clipped'}; seed {seed}"
            if key not in done:
                results.append({"key": key, **learn(task, kind, optimizer, clips=clips, seed=seed)})
                write_json(path, results)
            print(f"{task.name}, {number} of {len(trainings)}: {key}", flush=True)
        _show(task, results)


def learn(task: Task, kind: Kind, optimizer_name: str, *, clips: bool, seed: int) -> dict[str, Any]:
    """Trains a network until it has solved the task, and measures it before and after.

    Returns:
        its entry in the task's results. `solved_at` is None if the steps were not enough; `norms` are medians by
        distance; `eigenvalues` are [H, 2], None for networks with gates.
    """
    torch.manual_seed(seed)
    network = Network(kind, task)
    generator = torch.Generator().manual_seed(seed)
    before = _measure(task, network, kind, seed)
    optimizer = OPTIMIZERS[optimizer_name][1](network.parameters())
    accuracies, solved_at, largest = list[float](), None, 0.0
    for step in range(1, task.num_steps + 1):
        inputs, wanted = task.draw(BATCH_SIZE, task.lag, generator)
        outputs = network(inputs)
        optimizer.zero_grad()
        task.losses(outputs, wanted).mean().backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM if clips else torch.inf))
        largest = max(largest, norm)
        optimizer.step()
        accuracies.append(float(task.right(outputs, wanted).float().mean()))
        if step >= WINDOW and sum(accuracies[-WINDOW:]) >= SOLVED_ACCURACY * WINDOW:
            solved_at = step
            break
    return {
        "kind": kind.name,
        "optimizer": optimizer_name,
        "clips": clips,
        "seed": seed,
        "solved_at": solved_at,
        "accuracy": sum(accuracies[-WINDOW:]) / WINDOW,
        "largest_norm": largest,
        "before": before,
        "after": _measure(task, network, kind, seed),
    }


def _measure(task: Task, network: Network, kind: Kind, seed: int) -> dict[str, Any]:
    inputs, wanted = task.draw(NUM_MEASURED, 2 * task.lag, torch.Generator().manual_seed(seed))
    norms = network.gradient_norms(inputs, wanted).median(0).values
    matrix = weights_of(network.recurrent).of_hidden.detach()
    values = torch.linalg.eigvals(matrix).tolist() if kind.cell == "rnn" else []
    return {
        "norms": [float(f"{norm:.4g}") for norm in norms],
        "eigenvalues": [(round(value.real, 4), round(value.imag, 4)) for value in values] or None,
    }


def _show(task: Task, results: Sequence[dict[str, Any]]) -> None:
    settings = list(product(task.optimizers, (True, False)))
    headings = [f"{OPTIMIZERS[optimizer][0]}, {'clipped' if clips else 'not'}" for optimizer, clips in settings]
    rows = [[kind.name, *(_result_text(_select(results, kind, *setting)) for setting in settings)] for kind in KINDS]
    write_table(PAGE, task.name, ["network", *headings], rows)
    _draw_gradients(task, results)
    _draw_eigenvalues(task, results)


def _select(results: Sequence[dict[str, Any]], kind: Kind, optimizer: str, clips: bool) -> list[dict[str, Any]]:
    wanted = (kind.name, optimizer, clips)
    return [result for result in results if (result["kind"], result["optimizer"], result["clips"]) == wanted]


def _result_text(runs: Sequence[dict[str, Any]]) -> str:
    """Returns the step at which each seed solved the task, or its accuracy; and the largest norm of a gradient."""
    ends = [str(run["solved_at"] or f"({100 * run['accuracy']:.0f} %)") for run in runs]
    return f"{', '.join(ends)}; {max(run['largest_norm'] for run in runs):.2g}" if ends else ""


def _draw_gradients(task: Task, results: Sequence[dict[str, Any]]) -> None:
    """Draws medians over the seeds; on the right, over the seeds that have solved the task."""
    with picture(f"{PAGE}-{task.name}-gradients", 3.2, columns=2) as axes:
        for axis, moment, title in zip(axes, ("before", "after"), ("at first", "once it is solved"), strict=True):
            for number, kind in enumerate(KINDS):
                runs = _select(results, kind, "adam", True)
                shown = [run[moment]["norms"] for run in runs if moment == "before" or run["solved_at"]]
                if shown:
                    axis.plot(np.median(shown, 0), label=kind.name, **line_of(number))
            axis.axvline(task.lag, color=FAINT, linewidth=0.8)
            axis.set_yscale("log")
            axis.set_ylim(1e-8, 1e3)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_title(f"norm of the gradient, {title}")
            axis.set_xlabel("k, steps back from the loss")
        axes[0].legend(frameon=False, fontsize=7)


def _draw_eigenvalues(task: Task, results: Sequence[dict[str, Any]]) -> None:
    kinds = [kind for kind in KINDS if kind.cell == "rnn"]
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 100))
    runs = [_select(results, kind, "adam", True)[0] for kind in kinds]
    reach = 1.1 * max(float(np.abs(np.array(run["after"]["eigenvalues"])).max()) for run in runs)
    with picture(f"{PAGE}-{task.name}-eigenvalues", 2.7, columns=len(kinds)) as axes:
        for axis, kind, run in zip(axes, kinds, runs, strict=True):
            axis.plot(circle.real, circle.imag, color=FAINT, linewidth=0.8)
            for number, (moment, marker) in enumerate((("before", "o"), ("after", "x"))):
                values = np.array(run[moment]["eigenvalues"])
                axis.plot(values[:, 0], values[:, 1], marker, color=series_color(number), markersize=3, label=moment)
            axis.set_title(kind.name)
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes[0].legend(frameon=False, fontsize=7)
