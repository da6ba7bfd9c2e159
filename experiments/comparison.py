"""What a plan's runs have come to: a table and a picture of each variant's quality and cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from attendant.runtime.errors import UserError
from attendant.training.evaluation.bootstrap import LengthBin
from attendant.training.evaluation.metrics import TextMetricName, perplexity
from attendant.training.report.measuring import read_curves
from attendant.training.report.pictures import FAINT, METRIC_LABELS, series_color
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from experiments.alignment.error_rate import error_rate_of
from experiments.cost import read_costs
from experiments.pages import draw_runs, picture, spread, write_table
from experiments.plan import Plan, Variant, ended_runs, load_plan

COLUMNS = {"perplexity": ("perplexity", 3), "aer": ("AER (%)", 1)}
"""Beside the metrics: heading and digits."""


@dataclass(frozen=True, slots=True)
class Found:
    """A variant's finished runs.

    Attributes:
        values: by metric and by the names of COLUMNS, one value per run.
        by_length: of the plan's metric, by the name of each bin of source lengths; empty where the recipe has none.
        intervals: of a single run, 95 %, by metric and by the name of each bin; empty where there are several runs,
            whose spread says more.
        num_parameters: of one.
        costs: what `cost` has measured: tokens_per_second, step_ms; may be empty.
    """

    variant: Variant
    values: dict[str, list[float]]
    by_length: dict[str, list[float]]
    intervals: dict[str, tuple[float, float]]
    num_parameters: int
    costs: dict[str, float]


def show(name: str) -> None:
    """Writes the table and the picture of a plan's page. Raises UserError: no run of the plan has ended."""
    plan, costs = load_plan(name), read_costs(name)
    found = [
        _found(plan, variant, runs, costs.get(variant.name, {}))
        for variant in plan.variants
        if (runs := ended_runs(name, plan, variant))
    ]
    if not found:
        raise UserError(f"{name}: none of its trainings has ended: python -m experiments train {name}")
    _write(name, plan, found)
    if found[0].by_length:
        rows = [
            [one.variant.what, *(spread(values, 1, one.intervals.get(name)) for name, values in one.by_length.items())]
            for one in found
        ]
        write_table(plan.page, f"{name}-lengths", ["length of the source", *found[0].by_length], rows)
        _draw_lengths(name, plan, found)
    else:
        _draw(name, plan, found)


def _found(plan: Plan, variant: Variant, runs: Sequence[Run], costs: dict[str, float]) -> Found:
    recipe = runs[0].recipe()
    metrics = tuple(metric for metric in recipe.evaluation.metrics if metric in get_args(TextMetricName))
    values: dict[str, list[float]] = {name: [] for name in (*metrics, *COLUMNS)}
    by_length: dict[str, list[float]] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for run in runs:
        entries: dict[str, dict[str, Any]] = {entry["metric"]: entry for entry in run.evaluations()}
        for metric in metrics:
            values[metric].append(entries[metric]["value"])
            intervals[metric] = _interval(entries[metric])
        for one in entries[plan.metric].get("by_length", ()):
            length = LengthBin(**one)
            by_length.setdefault(length.name, []).append(one["value"])
            intervals[length.name] = _interval(one)
        values["perplexity"].append(perplexity(-float(read_curves(run).validation["loss"].values[-1]), 1))
        if recipe.data.fetch == "cmudict" and recipe.model.has_attention:
            values["aer"].append(error_rate_of(run.path).error_rate)
    num_parameters = load_run(runs[0].path).model.num_parameters
    return Found(variant, values, by_length, intervals if len(runs) == 1 else {}, num_parameters, costs)


def _interval(entry: dict[str, Any]) -> tuple[float, float]:
    return entry["interval"]["low"], entry["interval"]["high"]


def _write(name: str, plan: Plan, found: Sequence[Found]) -> None:
    """A column that no variant has anything in is left out."""
    base = found[0]
    columns = {metric: (METRIC_LABELS[metric], 1) for metric in base.values if metric not in COLUMNS} | COLUMNS
    shown = [column for column in columns if any(one.values[column] for one in found)]
    has_costs = any(one.costs for one in found)
    costs = ["training, tokens/s", "step, ms"] if has_costs else []
    headings = ["what differs from the first", "runs", *(columns[one][0] for one in shown), "parameters", *costs]
    rows = []
    for one in found:
        what = f"**{one.variant.what}**" if one is base else f"{one.variant.group}: {one.variant.what}"
        qualities = [spread(one.values[column], columns[column][1], one.intervals.get(column)) for column in shown]
        rows.append([what, str(len(one.values[plan.metric])), *qualities, f"{one.num_parameters:,}"])
        if has_costs:
            rows[-1] += (
                [f"{one.costs['tokens_per_second']:,.0f}", f"{one.costs['step_ms']:.2f}"] if one.costs else ["", ""]
            )
    write_table(plan.page, name, headings, rows)


def _draw(name: str, plan: Plan, found: Sequence[Found]) -> None:
    """A point for each run, a bar at the mean; the band is the base's own spread."""
    groups = list(dict.fromkeys(one.variant.group for one in found))
    places = range(len(found))[::-1]
    drawn = {one.variant.name: one.values[plan.metric] for one in found}
    panels = [(METRIC_LABELS[plan.metric], list(drawn.values()))]
    if any(one.costs for one in found):
        steps = [[one.costs["step_ms"]] if one.costs else [] for one in found]
        panels.append(("decoder step of 32 rows, ms", steps))
    with picture(name, 7.5, 0.6 + 0.27 * len(found), columns=len(panels)) as axes:
        for axis, (title, values_of) in zip(axes, panels, strict=True):
            for place, one, values in zip(places, found, values_of, strict=True):
                color = series_color(groups.index(one.variant.group))
                axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
                if values:
                    axis.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color=color)
            axis.set_title(title)
            axis.grid(axis="x")
            axis.set_yticks(list(places), [one.variant.what for one in found] if axis is axes[0] else [""] * len(found))
        of_base = drawn[found[0].variant.name]
        axes[0].axvspan(min(of_base), max(of_base), color=FAINT, alpha=0.15, linewidth=0)
        shown = [values for variant, values in drawn.items() if variant != "none"]
        axes[0].set_xlim(min(map(min, shown)) - 0.5, max(map(max, shown)) + 0.5)


def _draw_lengths(name: str, plan: Plan, found: Sequence[Found]) -> None:
    bins = list(found[0].by_length)
    with picture(name, 7.5, 3.4) as (axis,):
        for number, one in enumerate(found):
            runs = list(zip(*one.by_length.values(), strict=True))
            edges = [[one.intervals[name][edge] for name in bins] for edge in (0, 1)] if one.intervals else None
            draw_runs(axis, number, one.variant.what, range(len(bins)), runs, edges)
        axis.set_xticks(range(len(bins)), bins)
        axis.set_xlabel("length of the source")
        axis.set_title(METRIC_LABELS[plan.metric])
        axis.legend(frameon=False, fontsize=7)
