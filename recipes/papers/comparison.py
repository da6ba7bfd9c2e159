"""A plan's results: a table and a picture of each variant's quality and cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import numpy as np

from attendant.recipes.papers.alignment import error_rate_of
from attendant.recipes.papers.costs import read_costs
from attendant.recipes.papers.pages import draw_runs, picture, spread, write_table
from attendant.recipes.papers.plan import Plan, Variant, ended_runs, load_plan
from attendant.runtime.errors import UserError
from attendant.training.evaluation.bootstrap import LengthBin
from attendant.training.evaluation.metrics import TextMetricName, perplexity
from attendant.training.report.curves import read_curves
from attendant.training.report.pictures import FAINT, METRIC_LABELS, series_color
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run

COLUMNS: Final = {
    **{name: (label, 1) for name, label in METRIC_LABELS.items()},
    "perplexity": ("perplexity", 3),
    "aer": ("AER (%)", 1),
}
"""Column -> heading and number of decimals."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ended runs of a variant.

    Attributes:
        values: column -> one value per run.
        by_length: bin of source lengths -> the plan's metric of each run; empty if the recipe has no bins.
        intervals: column or bin -> the 95 % interval of a single run; empty if there are several runs, whose spread is
            more informative.
        costs: tokens_per_second and step_ms; empty if they were not measured.
    """

    variant: Variant
    values: dict[str, list[float]]
    by_length: dict[str, list[float]] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    num_parameters: int = 0
    costs: dict[str, float] = field(default_factory=dict)


def show(name: str) -> None:
    """Writes the tables and the picture of a plan's page. Raises UserError: no run of the plan has ended."""
    plan, costs = load_plan(name), read_costs(name)
    outcomes = [
        _outcome(plan, variant, runs, costs.get(variant.name, {}))
        for variant in plan.variants
        if (runs := ended_runs(name, plan, variant))
    ]
    if not outcomes:
        raise UserError(f"{name}: none of its trainings has ended: python -m recipes.papers train {name}")
    write_results(name, plan, outcomes)
    bins = list(outcomes[0].by_length)
    if not bins:
        _draw(name, plan, outcomes)
        return
    rows = [
        [outcome.variant.what, *(spread(outcome.by_length[edge], 1, outcome.intervals.get(edge)) for edge in bins)]
        for outcome in outcomes
    ]
    write_table(plan.page, f"{name}-lengths", ["length of the source", *bins], rows)
    _draw_lengths(name, plan, outcomes)


def _outcome(plan: Plan, variant: Variant, runs: Sequence[Run], costs: dict[str, float]) -> Outcome:
    recipe = runs[0].recipe()
    metrics = [metric for metric in recipe.evaluation.metrics if metric in get_args(TextMetricName)]
    values: dict[str, list[float]] = {name: [] for name in (*metrics, "perplexity", "aer")}
    by_length: dict[str, list[float]] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for run in runs:
        entries = {entry["metric"]: entry for entry in run.evaluations()}
        for metric in metrics:
            values[metric].append(entries[metric]["value"])
            intervals[metric] = _interval(entries[metric])
        for entry in entries[plan.metric].get("by_length", ()):
            length = LengthBin(**entry).name
            by_length.setdefault(length, []).append(entry["value"])
            intervals[length] = _interval(entry)
        values["perplexity"].append(perplexity(-float(read_curves(run).validation["loss"].values[-1]), 1))
        if recipe.data.fetch == "cmudict" and recipe.model.has_attention:
            values["aer"].append(error_rate_of(run.path).error_rate)
    num_parameters = load_run(runs[0].path).model.num_parameters
    return Outcome(variant, values, by_length, intervals if len(runs) == 1 else {}, num_parameters, costs)


def _interval(entry: dict[str, Any]) -> tuple[float, float]:
    return entry["interval"]["low"], entry["interval"]["high"]


def write_results(name: str, plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """Writes a row per variant. A column that is empty for all variants is left out."""
    base = outcomes[0]
    columns = [column for column in base.values if any(outcome.values[column] for outcome in outcomes)]
    costs = ["training, tokens/s", "step, ms"] if any(outcome.costs for outcome in outcomes) else []
    headings = [
        "what differs from the first",
        "runs",
        *(COLUMNS[column][0] for column in columns),
        "parameters",
        *costs,
    ]
    rows = []
    for outcome in outcomes:
        variant, speeds = outcome.variant, ["", ""]
        if outcome.costs:
            speeds = [f"{outcome.costs['tokens_per_second']:,.0f}", f"{outcome.costs['step_ms']:.2f}"]
        rows.append(
            [
                f"**{variant.what}**" if outcome is base else f"{variant.group}: {variant.what}",
                str(len(outcome.values[plan.metric])),
                *(spread(outcome.values[name], COLUMNS[name][1], outcome.intervals.get(name)) for name in columns),
                f"{outcome.num_parameters:,}",
                *(speeds if costs else []),
            ]
        )
    write_table(plan.page, name, headings, rows)


def _draw(name: str, plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """Draws a point for each run and a bar at the mean; the band is the spread of the base."""
    groups = list(dict.fromkeys(outcome.variant.group for outcome in outcomes))
    heights = range(len(outcomes))[::-1]
    panels = [(METRIC_LABELS[plan.metric], [outcome.values[plan.metric] for outcome in outcomes])]
    if any(outcome.costs for outcome in outcomes):
        steps = [[outcome.costs["step_ms"]] if outcome.costs else [] for outcome in outcomes]
        panels.append(("decoder step of 32 rows, ms", steps))
    with picture(name, 7.5, 0.6 + 0.27 * len(outcomes), columns=len(panels)) as axes:
        for axis, (title, values_of) in zip(axes, panels, strict=True):
            for height, outcome, values in zip(heights, outcomes, values_of, strict=True):
                color = series_color(groups.index(outcome.variant.group))
                axis.plot(values, [height] * len(values), "o", color=color, alpha=0.7)
                if values:
                    axis.plot([np.mean(values)] * 2, [height - 0.3, height + 0.3], color=color)
            axis.set_title(title)
            axis.grid(axis="x")
            axis.set_yticks(list(heights), [outcome.variant.what if axis is axes[0] else "" for outcome in outcomes])
        base = panels[0][1][0]
        axes[0].axvspan(min(base), max(base), color=FAINT, alpha=0.15, linewidth=0)
        # A model without attention is far off.
        shown = [outcome.values[plan.metric] for outcome in outcomes if outcome.variant.name != "none"]
        axes[0].set_xlim(min(map(min, shown)) - 0.5, max(map(max, shown)) + 0.5)


def _draw_lengths(name: str, plan: Plan, outcomes: Sequence[Outcome]) -> None:
    bins = list(outcomes[0].by_length)
    with picture(name, 7.5, 3.4) as (axis,):
        for number, outcome in enumerate(outcomes):
            runs = list(zip(*outcome.by_length.values(), strict=True))
            band = [[outcome.intervals[name][edge] for name in bins] for edge in (0, 1)] if outcome.intervals else None
            draw_runs(axis, number, outcome.variant.what, range(len(bins)), runs, band)
        axis.set_xticks(range(len(bins)), bins)
        axis.set_xlabel("length of the source")
        axis.set_title(METRIC_LABELS[plan.metric])
        axis.legend(frameon=False, fontsize=7)
