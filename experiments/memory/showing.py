"""The tables and the pictures of docs/experiments/memory.md."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from attendant.training.report.pictures import FAINT, line_style, series_color
from experiments.memory.learning import results_path
from experiments.memory.networks import KINDS
from experiments.memory.tasks import Task
from experiments.pages import picture, write_table
from experiments.plan import read_results

PAGE = "memory"
NAMES = {"adam": "Adam", "sgd": "SGD"}


def show_memory(task: Task) -> None:
    results = read_results(results_path(task), [])
    ways = [(optimizer, clips) for optimizer in task.optimizers for clips in (True, False)]
    headings = ["network", *(f"{NAMES[optimizer]}, {'clipped' if clips else 'not'}" for optimizer, clips in ways)]
    rows = [[kind.name, *(_outcome(_of(results, kind.name, *way)) for way in ways)] for kind in KINDS]
    write_table(PAGE, task.name, headings, rows)
    _draw_gradients(task, results)
    _draw_eigenvalues(task, results)


def _of(results: Sequence[dict[str, Any]], kind: str, optimizer: str, clips: bool) -> list[dict[str, Any]]:
    return [one for one in results if (one["kind"], one["optimizer"], one["clips"]) == (kind, optimizer, clips)]


def _outcome(found: Sequence[dict[str, Any]]) -> str:
    """When each seed solved the task, or how often it was right; and the largest norm of a gradient."""
    ends = [str(one["solved_at"] or f"({100 * one['accuracy']:.0f} %)") for one in found]
    return f"{', '.join(ends)}; {max(one['largest_norm'] for one in found):.2g}" if ends else ""


def _draw_gradients(task: Task, results: Sequence[dict[str, Any]]) -> None:
    """Medians over the seeds; at the end of those alone that have solved the task."""
    with picture(f"{PAGE}-{task.name}-gradients", 7.5, 3.2, columns=2) as axes:
        for axis, when, title in zip(axes, ("before", "after"), ("at first", "once it is solved"), strict=True):
            for number, kind in enumerate(KINDS):
                runs = _of(results, kind.name, "adam", True)
                shown = [one[when]["norms"] for one in runs if when == "before" or one["solved_at"]]
                if not shown:
                    continue
                norms = np.median(shown, 0)
                axis.plot(norms, color=series_color(number), linestyle=line_style(number), label=kind.name)
            axis.axvline(task.lag, color=FAINT, linewidth=0.8)
            axis.set_yscale("log")
            axis.set_ylim(1e-8, 1e3)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_title(f"norm of the gradient, {title}")
            axis.set_xlabel("k, steps back from the loss")
        axes[0].legend(frameon=False, fontsize=7)


def _draw_eigenvalues(task: Task, results: Sequence[dict[str, Any]]) -> None:
    kinds = [kind for kind in KINDS if kind.cell == "tanh"]
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 100))
    runs = [_of(results, kind.name, "adam", True)[0] for kind in kinds]
    reach = 1.1 * max(float(np.abs(np.array(run["after"]["eigenvalues"])).max()) for run in runs)
    with picture(f"{PAGE}-{task.name}-eigenvalues", 7.5, 2.7, columns=len(kinds)) as axes:
        for axis, kind, first in zip(axes, kinds, runs, strict=True):
            axis.plot(circle.real, circle.imag, color=FAINT, linewidth=0.8)
            for number, (when, marker) in enumerate((("before", "o"), ("after", "x"))):
                values = np.array(first[when]["eigenvalues"])
                axis.plot(values[:, 0], values[:, 1], marker, color=series_color(number), markersize=3, label=when)
            axis.set_title(kind.name)
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes[0].legend(frameon=False, fontsize=7)
