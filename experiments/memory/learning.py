"""Trains the networks, and measures their gradients and eigenvalues before and after."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from attendant.runtime.files import write_json
from experiments.memory.networks import KINDS, Kind, Network
from experiments.memory.tasks import Task
from experiments.plan import RUNS, read_results

BATCH_SIZE: Final = 32
SEEDS: Final = (1, 2, 3)
CLIP_NORM: Final = 1.0
SOLVED: Final = 0.98
"""Of the answers of WINDOW batches; then the training ends."""

WINDOW: Final = 20
NUM_MEASURED: Final = 64


def learn_all(task: Task) -> None:
    """Trains what is missing in the task's results, and writes each there as soon as it is there."""
    torch.set_num_threads(1)
    path = results_path(task)
    results = read_results(path, [])
    done = {result["key"] for result in results}
    wanted = list(product(SEEDS, task.optimizers, (True, False), KINDS))
    for place, (seed, optimizer, clips, kind) in enumerate(wanted, 1):
        key = f"{kind.name}; {optimizer}; {'clipped' if clips else 'not clipped'}; seed {seed}"
        if key not in done:
            results.append({"key": key, **learn(task, kind, optimizer, clips=clips, seed=seed)})
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, results)
        print(f"{task.name}, {place} of {len(wanted)}: {key}", flush=True)


def results_path(task: Task) -> Path:
    return RUNS / f"memory-{task.name}.json"


def learn(task: Task, kind: Kind, optimizer_name: str, *, clips: bool, seed: int) -> dict[str, Any]:
    """One training: how many steps until the task was solved, if it was, and what the network was like.

    Returns:
        what the task's results have of it. `solved_at` is None where its steps were not enough; `norms` are medians by
        distance; `eigenvalues` are [H, 2], None where the network has gates.
    """
    torch.manual_seed(seed)
    network = Network(kind, task)
    generator = torch.Generator().manual_seed(seed)
    before = _measured(task, network, kind, seed)
    optimizer: torch.optim.Optimizer
    if optimizer_name == "adam":
        optimizer = torch.optim.Adam(network.parameters(), 0.005)
    else:
        optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    right, solved_at, largest = list[float](), None, 0.0
    for step in range(1, task.num_steps + 1):
        inputs, wanted = task.draw(BATCH_SIZE, task.lag, generator)
        outputs = network(inputs)
        optimizer.zero_grad()
        task.losses(outputs, wanted).mean().backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM if clips else torch.inf))
        largest = max(largest, norm)
        optimizer.step()
        right.append(float(task.right(outputs, wanted).float().mean()))
        if step >= WINDOW and sum(right[-WINDOW:]) >= SOLVED * WINDOW:
            solved_at = step
            break
    return {
        "kind": kind.name,
        "optimizer": optimizer_name,
        "clips": clips,
        "seed": seed,
        "solved_at": solved_at,
        "accuracy": sum(right[-WINDOW:]) / WINDOW,
        "largest_norm": largest,
        "before": before,
        "after": _measured(task, network, kind, seed),
    }


def _measured(task: Task, network: Network, kind: Kind, seed: int) -> dict[str, Any]:
    inputs, wanted = task.draw(NUM_MEASURED, 2 * task.lag, torch.Generator().manual_seed(seed))
    norms = network.gradient_norms(inputs, wanted).median(0).values
    return {"norms": [float(f"{norm:.4g}") for norm in norms], "eigenvalues": list(_eigenvalues(network, kind)) or None}


def _eigenvalues(network: Network, kind: Kind) -> Iterator[tuple[float, float]]:
    if kind.cell == "tanh":
        for value in network.eigenvalues().tolist():
            yield round(value.real, 4), round(value.imag, 4)
