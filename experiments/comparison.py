"""What a plan's runs have come to: a table and a picture of each variant's quality and cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendant.runtime.errors import UserError
from attendant.runtime.perplexity import perplexity
from attendant.training.report.findings.curves import read_curves
from attendant.training.report.pictures.colors import FAINT, series_color
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from experiments.alignment.error_rate import error_rate_of
from experiments.cost import read_costs
from experiments.pages import picture, write_table
from experiments.plan import Variant, load_plan, run_of

METRICS = ("wer", "per")


@dataclass(frozen=True, slots=True)
class Found:
    """A variant's finished runs.

    Attributes:
        values: by metric, one value per run.
        num_parameters: of one.
        costs: what `cost` has measured: tokens_per_second, step_ms; may be empty.
    """

    variant: Variant
    values: dict[str, list[float]]
    num_parameters: int
    costs: dict[str, float]

    @property
    def num_runs(self) -> int:
        return len(self.values[METRICS[0]])


def show(name: str) -> None:
    """Writes the table and the picture of docs/experiments/NAME.md. Raises UserError: no run of the plan has ended."""
    plan, costs = load_plan(name), read_costs(name)
    found = [
        _found(variant, runs, costs.get(variant.name, {}))
        for variant in plan.variants
        if (runs := [run for seed in plan.seeds if (run := run_of(name, variant, seed)).evaluations()])
    ]
    if not found:
        raise UserError(f"{name}: none of its trainings has ended: python -m experiments train {name}")
    write_table(name, "table", HEADINGS, [_row(one, found[0]) for one in found])
    _draw(name, found)


def _found(variant: Variant, runs: Sequence[Run], costs: dict[str, float]) -> Found:
    values: dict[str, list[float]] = {metric: [] for metric in (*METRICS, "perplexity", "aer")}
    for run in runs:
        entries: dict[str, dict[str, Any]] = {entry["metric"]: entry for entry in run.evaluations()}
        for metric in METRICS:
            values[metric].append(entries[metric]["value"])
        values["perplexity"].append(perplexity(-float(read_curves(run).validation["loss"].values[-1]), 1))
        if run.recipe().model.has_attention:
            values["aer"].append(error_rate_of(run.path).error_rate)
    parameters = load_run(runs[0].path).model.parameters()
    return Found(variant, values, sum(parameter.numel() for parameter in parameters), costs)


HEADINGS = (
    "what differs from the first",
    "runs",
    "WER %",
    "PER %",
    "perplexity",
    "AER %",
    "parameters",
    "training, tokens/s",
    "step, ms",
)


def _row(one: Found, base: Found) -> list[str]:
    costs = one.costs
    return [
        f"{one.variant.group}: {one.variant.what}" if one is not base else f"**{one.variant.what}**",
        str(one.num_runs),
        *(_spread(one.values[metric], digits) for metric, digits in zip(COLUMNS, (1, 1, 3, 1), strict=True)),
        f"{one.num_parameters:,}",
        f"{costs['tokens_per_second']:,.0f}" if costs else "",
        f"{costs['step_ms']:.2f}" if costs else "",
    ]


COLUMNS = ("wer", "per", "perplexity", "aer")


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the lowest and the highest."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else mean


def _draw(name: str, found: Sequence[Found]) -> None:
    """A point for each run, a bar at the mean; the band is the base's own spread."""
    groups = list(dict.fromkeys(one.variant.group for one in found))
    places = range(len(found))[::-1]
    with picture(name, 7.5, 0.6 + 0.27 * len(found), columns=2) as (left, right):
        for axis, metric, title in ((left, "per", "PER, %"), (right, "step_ms", "decoder step of 32 rows, ms")):
            for place, one in zip(places, found, strict=True):
                values = one.values.get(metric) or ([one.costs[metric]] if one.costs else [])
                color = series_color(groups.index(one.variant.group))
                axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
                if values:
                    axis.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color=color)
            axis.set_title(title)
            axis.grid(axis="x")
            axis.set_yticks(list(places), [one.variant.what for one in found] if axis is left else [""] * len(found))
        spread = found[0].values["per"]
        left.axvspan(min(spread), max(spread), color=FAINT, alpha=0.15, linewidth=0)
        shown = [one.values["per"] for one in found if one.variant.name != "none"]
        left.set_xlim(min(map(min, shown)) - 0.5, max(map(max, shown)) + 0.5)
