"""Measures the cost of a plan's variants: training speed, and the time of a served decoder step.

Both are processor time on one thread, which other work on the machine changes little.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import exportable_run
from attendant.export.verification.probes import VerificationPlan
from attendant.recipes.papers.plan import RUNS, load_plan, read_results, run_of
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.files import write_json
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.data.corpus import Corpus
from attendant.training.kernels.hardware import choose_precision
from attendant.training.loop.experiment import prepare
from attendant.training.loop.update import Processes, Updater
from attendant.training.model import Seq2Seq
from attendant.training.optimization import make_optimizer
from attendant.training.recipe import Recipe
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_run
from benchmarks.harness import System, Visits, measure

CPU: Final = torch.device("cpu")
NUM_ROUNDS: Final = 5
NUM_BATCHES: Final = 6
NUM_STEPS: Final = 200
NUM_ROWS: Final = 32
SOURCE_LENGTH: Final = 9
"""Letters of an average word and its end, rounded up."""

QUICK: Final = VerificationPlan(
    batch_sizes=(1, 3, 33), source_lengths=(8, 1, 5), num_steps=3, num_decoded=8, num_alone=4, max_length=12
)


def costs_path(name: str) -> Path:
    return RUNS / f"{name}-costs.json"


def read_costs(name: str) -> dict[str, dict[str, float]]:
    """Returns variant -> tokens_per_second and step_ms, as far as they were measured."""
    return read_results(costs_path(name), {})


def measure_costs(name: str) -> None:
    """Measures each variant that has a run, in turns, and writes the medians."""
    plan = load_plan(name)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(Run(Path(folder) / "run"), plan.resolved(plan.variants[0], plan.seeds[0])).corpus

    def system(variant: str, run: Run) -> System:
        def start() -> Iterator[Visits]:
            loaded = load_run(run.path)
            speed = training_speed(loaded.recipe, loaded.model, corpus)
            step = step_time(loaded, RUNS / f"{name}-bundles" / variant)
            yield {"": lambda number: {"tokens_per_second": speed(), "step_ms": step()}}

        return System(key=variant, name=variant, start=start)

    runs = {variant.name: run_of(name, variant, plan.seeds[0]) for variant in plan.variants}
    measured = measure([system(variant, run) for variant, run in runs.items() if run.evaluations()], NUM_ROUNDS)
    costs = {m.system.key: {figure: m.median(figure) for figure in ("tokens_per_second", "step_ms")} for m in measured}
    write_json(costs_path(name), costs)


def training_speed(recipe: Recipe, model: Seq2Seq, corpus: Corpus) -> Callable[[], float]:
    """Returns a measurement: it trains on some batches, and returns target tokens per second of processor time."""
    model.train()
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

    def measure() -> float:
        start = time.process_time()
        for batch in batches:
            updater.gradient([batch], batch.num_target_tokens)
            updater.step(1e-6)
        return sum(batch.num_target_tokens for batch in batches) / (time.process_time() - start)

    return measure


def step_time(loaded: LoadedRun, folder: Path) -> Callable[[], float]:
    """Returns a measurement: it steps NUM_ROWS words in ONNX Runtime, fp32, and returns milliseconds per step.

    The bundle is exported to `folder` if it is not there yet.
    """
    if not folder.exists():
        print(f"exporting {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(exportable_run(loaded), folder, precisions=("fp32",), plan=QUICK)
    stepper = OnnxStepper(open_bundle(folder), "fp32", "cpu", num_threads=1)
    sources = [[5 + row % 20] * SOURCE_LENGTH for row in range(NUM_ROWS)]

    def measure() -> float:
        state = stepper.encode(sources)
        ids = state.row_sources * 0 + 5
        start = time.process_time()
        for _ in range(NUM_STEPS):
            _, state = stepper.step(state, ids, num_candidates=1)
        return 1e3 * (time.process_time() - start) / NUM_STEPS

    return measure
