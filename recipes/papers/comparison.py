"""A plan's results: a table and a picture of each variant's quality and cost.

Costs are the speed of training and the time of a served decoder step. Both are processor time on one thread, which
other work on the machine changes little.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import exportable_run
from attendant.recipes.papers.alignment import error_rate_of
from attendant.recipes.papers.harness import RUNS, Plan, Variant, draw_runs, picture, read_results, spread, write_table
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.files import write_json
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.data.corpus import Corpus
from attendant.training.evaluation.bootstrap import LengthBin
from attendant.training.evaluation.metrics import TextMetricName, perplexity
from attendant.training.kernels.hardware import choose_precision
from attendant.training.loop.experiment import prepare
from attendant.training.loop.update import Processes, Updater
from attendant.training.optimization import make_optimizer
from attendant.training.report.curves import read_curves
from attendant.training.report.pictures import FAINT, METRIC_LABELS, series_color
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from benchmarks.harness import System, Visits, measure
from benchmarks.workload import SMALL_PLAN

COLUMNS: Final = {
    **{name: (label, 1) for name, label in METRIC_LABELS.items()},
    "perplexity": ("perplexity", 3),
    "aer": ("AER (%)", 1),
}
"""Column -> heading and number of decimals."""

CPU: Final = torch.device("cpu")
NUM_ROUNDS, NUM_BATCHES, NUM_STEPS = 5, 6, 200
NUM_ROWS: Final = 32
SOURCE_LENGTH: Final = 9  # Letters of an average word and its end, rounded up.


def measure_costs(plan: Plan) -> None:
    """Measures each variant that has a run, in turns, and writes the medians. Raises UserError: no run has ended."""
    variants = [variant for variant in plan.variants if plan.run(variant, plan.seeds[0]).evaluations()]
    if not variants:
        raise plan.without_runs()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(Run(Path(folder) / "run"), plan.resolved(plan.variants[0], plan.seeds[0])).corpus
    systems = [System(name=variant.name, start=partial(_visits, plan, variant, corpus)) for variant in variants]
    measured = measure(systems, NUM_ROUNDS)
    costs = {m.system.name: {figure: m.median(figure) for figure in ("tokens_per_second", "step_ms")} for m in measured}
    write_json(RUNS / f"{plan.name}-costs.json", costs)


def _visits(plan: Plan, variant: Variant, corpus: Corpus) -> Iterator[Visits]:
    """Yields a measurement of a variant, whose bundle is exported if it is not there yet.

    It trains on NUM_BATCHES batches: target tokens per second. Then it steps NUM_ROWS words in ONNX Runtime, fp32:
    milliseconds per step.
    """
    loaded = load_run(plan.run(variant, plan.seeds[0]).path)
    recipe, model = loaded.recipe, loaded.model.train()
    updater = Updater(
        model,
        make_optimizer(recipe.optimizer, model.parameters()),
        recipe.training,
        precision=choose_precision(recipe.training.precision, CPU),
        device=CPU,
        processes=Processes(),
    )
    epoch = BatchPlan(corpus, recipe.batches, seed=1).epoch(0)
    batches = [collate(corpus, indices, model.start_id) for indices in epoch[:NUM_BATCHES]]
    folder = RUNS / f"{plan.name}-bundles" / variant.name
    if not folder.exists():
        print(f"exporting {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(exportable_run(loaded), folder, precisions=("fp32",), plan=SMALL_PLAN)
    stepper = OnnxStepper(open_bundle(folder), "fp32", "cpu", num_threads=1)
    sources = [[5 + row % 20] * SOURCE_LENGTH for row in range(NUM_ROWS)]

    def visit(number: int) -> dict[str, float]:
        began = time.process_time()
        for batch in batches:
            updater.gradient([batch], batch.num_target_tokens)
            updater.step(1e-6)
        speed = sum(batch.num_target_tokens for batch in batches) / (time.process_time() - began)
        state = stepper.encode(sources)
        ids = state.row_sources * 0 + 5
        began = time.process_time()
        for _ in range(NUM_STEPS):
            _, state = stepper.step(state, ids, num_candidates=1)
        return {"tokens_per_second": speed, "step_ms": 1e3 * (time.process_time() - began) / NUM_STEPS}

    yield {"": visit}


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
    by_length: dict[str, list[float]]
    intervals: dict[str, tuple[float, float]]
    num_parameters: int
    costs: dict[str, float]


def show(plan: Plan) -> None:
    """Writes the tables and the picture of a plan's page. Raises UserError: no run of the plan has ended."""
    costs = read_results(RUNS / f"{plan.name}-costs.json", {})
    outcomes = [
        _outcome(plan, variant, runs, costs.get(variant.name, {}))
        for variant in plan.variants
        if (runs := plan.ended_runs(variant))
    ]
    if not outcomes:
        raise plan.without_runs()
    _write_results(plan, outcomes)
    bins = list(outcomes[0].by_length)
    if not bins:
        _draw(plan, outcomes)
        return
    rows = [
        [outcome.variant.label, *(spread(outcome.by_length[edge], 1, outcome.intervals.get(edge)) for edge in bins)]
        for outcome in outcomes
    ]
    write_table(plan.page, f"{plan.name}-lengths", ["length of the source", *bins], rows)
    _draw_lengths(plan, outcomes)


def _outcome(plan: Plan, variant: Variant, runs: Sequence[Run], costs: dict[str, float]) -> Outcome:
    recipe = runs[0].recipe()
    metrics = [metric for metric in recipe.evaluation.metrics if metric in get_args(TextMetricName)]
    values: dict[str, list[float]] = {name: [] for name in (*metrics, "perplexity", "aer")}
    by_length: dict[str, list[float]] = defaultdict(list)
    intervals: dict[str, tuple[float, float]] = {}
    test = str(recipe.data.files("test"))
    for run in runs:
        # The training recorded its own first, before those of other searches.
        recorded = [entry for entry in reversed(load_run(run.path).evaluation) if entry["protocol"].startswith(test)]
        entries = {entry["metric"]: entry for entry in recorded}
        lengths = {LengthBin(**entry).name: entry for entry in entries[plan.metric].get("by_length", ())}
        chosen = {metric: entries[metric] for metric in metrics}
        for named, columns in ((chosen, values), (lengths, by_length)):
            for name, entry in named.items():
                columns[name].append(entry["value"])
                if len(runs) == 1 and entry["interval"]:
                    intervals[name] = entry["interval"]["low"], entry["interval"]["high"]
        values["perplexity"].append(perplexity(-float(read_curves(run).validation["loss"].values[-1]), 1))
        if recipe.data.fetch == "cmudict" and recipe.model.has_attention:
            values["aer"].append(error_rate_of(run.path))
    return Outcome(variant, values, by_length, intervals, load_run(runs[0].path).model.num_parameters, costs)


def _write_results(plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """Writes a row per variant. A column that is empty for all variants is left out."""
    base = outcomes[0]
    columns = [column for column in base.values if any(outcome.values[column] for outcome in outcomes)]
    costs = {"training, tokens/s": ("tokens_per_second", ",.0f"), "step, ms": ("step_ms", ".2f")}
    if not any(outcome.costs for outcome in outcomes):
        costs = {}
    rows = []
    for outcome in outcomes:
        variant, own = outcome.variant, outcome.costs
        name = f"**{variant.label}**" if outcome is base else f"{variant.group}: {variant.label}"
        spreads = [spread(outcome.values[name], COLUMNS[name][1], outcome.intervals.get(name)) for name in columns]
        shown = [f"{own[figure]:{form}}" if own else "" for figure, form in costs.values()]
        rows.append([name, str(len(outcome.values[plan.metric])), *spreads, f"{outcome.num_parameters:,}", *shown])
    headings = ["difference from the first", "runs", *(COLUMNS[name][0] for name in columns), "parameters", *costs]
    write_table(plan.page, plan.name, headings, rows)


def _draw(plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """Draws a point for each run and a bar at the mean; the band is the spread of the base."""
    groups = list(dict.fromkeys(outcome.variant.group for outcome in outcomes))
    heights = range(len(outcomes))[::-1]
    panels = [(METRIC_LABELS[plan.metric], [outcome.values[plan.metric] for outcome in outcomes])]
    if any(outcome.costs for outcome in outcomes):
        steps = [[outcome.costs["step_ms"]] if outcome.costs else [] for outcome in outcomes]
        panels.append(("decoder step of 32 rows, ms", steps))
    with picture(plan.name, 0.6 + 0.27 * len(outcomes), columns=len(panels)) as axes:
        for axis, (title, values_of) in zip(axes, panels, strict=True):
            for height, outcome, values in zip(heights, outcomes, values_of, strict=True):
                color = series_color(groups.index(outcome.variant.group))
                axis.plot(values, [height] * len(values), "o", color=color, alpha=0.7)
                if values:
                    axis.plot([np.mean(values)] * 2, [height - 0.3, height + 0.3], color=color)
            axis.set_title(title)
            axis.grid(axis="x")
            axis.set_yticks(list(heights), [outcome.variant.label if axis is axes[0] else "" for outcome in outcomes])
        base = panels[0][1][0]
        axes[0].axvspan(min(base), max(base), color=FAINT, alpha=0.15, linewidth=0)
        # A model without attention is far off.
        shown = [outcome.values[plan.metric] for outcome in outcomes if outcome.variant.name != "none"]
        axes[0].set_xlim(min(map(min, shown)) - 0.5, max(map(max, shown)) + 0.5)


def _draw_lengths(plan: Plan, outcomes: Sequence[Outcome]) -> None:
    bins = list(outcomes[0].by_length)
    with picture(plan.name, 3.4) as (axis,):
        for number, outcome in enumerate(outcomes):
            runs = list(zip(*outcome.by_length.values(), strict=True))
            means = {name: (values[0],) * 2 for name, values in outcome.by_length.items()}
            bounds = means | outcome.intervals
            band = [[bounds[name][edge] for name in bins] for edge in (0, 1)] if outcome.intervals else None
            draw_runs(axis, number, outcome.variant.label, range(len(bins)), runs, band)
        axis.set_xticks(range(len(bins)), bins)
        axis.set_xlabel("length of the source")
        axis.set_title(METRIC_LABELS[plan.metric])
        axis.legend(frameon=False, fontsize=7)
