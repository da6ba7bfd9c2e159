"""What the variants of a plan cost: training speed, and the time of a decoder step as it is served.

Processor time on one thread, so that whatever else the machine does takes nothing from it but cache; variants in turns,
the median of all rounds.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import exportable_run
from attendant.export.verification.probes import VerificationPlan
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
from experiments.plan import RUNS, load_plan, read_results, run_of

CPU = torch.device("cpu")
NUM_ROUNDS = 5
NUM_BATCHES = 6
NUM_STEPS = 200
NUM_ROWS = 32
SOURCE_LENGTH = 9
"""Letters of a word and its end, rounded up."""

QUICK = VerificationPlan(
    batch_sizes=(1, 3, 33), source_lengths=(8, 1, 5), num_steps=3, num_decoded=8, num_alone=4, max_length=12
)


def measure_costs(name: str) -> None:
    """Measures every variant that has a run, and writes runs/experiments/NAME-costs.json."""
    plan = load_plan(name)
    torch.set_num_threads(1)
    visits: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(Run(Path(folder) / "data"), plan.resolved(plan.variants[0], plan.seeds[0]))
        for variant in plan.variants:
            run = run_of(name, variant, plan.seeds[0])
            if run.evaluations():
                loaded = load_run(run.path)
                step = stepping(loaded, RUNS / f"{name}-bundles" / variant.name)
                visits[variant.name] = training_of(loaded.recipe, loaded.model, experiment.corpus), step
        rounds = [{variant: (train(), step()) for variant, (train, step) in visits.items()} for _ in range(NUM_ROUNDS)]
    costs = {
        variant: {
            "tokens_per_second": statistics.median(one[variant][0] for one in rounds),
            "step_ms": statistics.median(one[variant][1] for one in rounds),
        }
        for variant in visits
    }
    write_json(_path(name), costs)


def read_costs(name: str) -> dict[str, dict[str, float]]:
    """By variant; empty where nothing was measured."""
    return read_results(_path(name), {})


def training_of(recipe: Recipe, model: Seq2Seq, corpus: Corpus) -> Callable[[], float]:
    """What trains on some batches, and returns target tokens per second of processor time."""
    model.train()
    updater = Updater(
        model,
        make_optimizer(recipe.optimizer, model.parameters()),
        recipe.training,
        precision=choose_precision(recipe.training.precision, CPU),
        device=CPU,
        processes=Processes(),
    )
    batches = [
        collate(corpus, indices, model.start_id)
        for indices in BatchPlan(corpus, recipe.batches, seed=1).epoch(0)[:NUM_BATCHES]
    ]

    def train() -> float:
        began = time.process_time()
        for batch in batches:
            updater.gradient([batch], batch.num_target_tokens)
            updater.step(1e-6)
        return sum(batch.num_target_tokens for batch in batches) / (time.process_time() - began)

    return train


def stepping(loaded: LoadedRun, folder: Path) -> Callable[[], float]:
    """What steps NUM_ROWS rows of NUM_ROWS words in ONNX Runtime, fp32, and returns milliseconds of a step.

    The bundle stays in `folder`, and is made where there is none.
    """
    if not folder.exists():
        print(f"exporting {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(exportable_run(loaded), folder, precisions=("fp32",), plan=QUICK)
    stepper = OnnxStepper(open_bundle(folder), "fp32", "cpu", num_threads=1)
    sources = [[5 + place % 20] * SOURCE_LENGTH for place in range(NUM_ROWS)]

    def step() -> float:
        state = stepper.encode(sources)
        ids = state.row_sources * 0 + 5
        began = time.process_time()
        for _ in range(NUM_STEPS):
            _, state = stepper.step(state, ids, num_candidates=1)
        return 1e3 * (time.process_time() - began) / NUM_STEPS

    return step


def _path(name: str) -> Path:
    return RUNS / f"{name}-costs.json"
