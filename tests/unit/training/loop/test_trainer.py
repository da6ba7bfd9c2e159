"""Tests of the trainer: it learns, stops at its limits and at divergence, and a run that was killed and resumed equals
an uninterrupted one.
"""

import functools
import itertools
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.data.batches import Batch, collate
from attendant.training.loop import trainer
from attendant.training.loop.callbacks import StepProgress, TrainingProgress
from attendant.training.loop.experiment import prepare
from attendant.training.loop.trainer import Guard, Trainer
from attendant.training.loop.update import Gradient
from attendant.training.recipe import TrainerConfig, load_recipe
from attendant.training.run.checkpoint import TrainingState, checkpoint_path, save_checkpoint
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.unit.training.comparing import assert_same_weights, events, steps_of, weights
from tests.unit.training.conftest import write_recipe


def watch(guard: Guard, *losses: float) -> None:
    for number, loss in enumerate(losses):
        guard.check(Gradient(loss, loss, 1.0, overflowed=False), 0.01, f"step {number} (epoch 1, batch {number})")


def guard(state: TrainingState | None = None, **config: object) -> Guard:
    return Guard(TrainerConfig.model_validate({"divergence_updates": 50} | config), state or TrainingState())


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_loss_or_norm_that_is_not_finite_stops_at_once(loss: float, norm: float) -> None:
    with pytest.raises(
        UserError, match=r"^step 7: the loss is .* at a learning rate of 0\.01\. Lower optimizer\.learning_rate"
    ):
        guard().check(Gradient(loss, loss, norm, overflowed=False), 0.01, "step 7")


def test_an_overflow_of_fp16_is_no_fault_of_the_training() -> None:
    guard().check(Gradient(1.0, 1.0, math.inf, overflowed=True), 0.01, "step 7")


def test_a_loss_far_above_its_lowest_for_long_stops_the_training() -> None:
    watching = guard()
    watch(watching, *[5.0] * 20, *[1.0] * 200)
    with pytest.raises(UserError) as caught:
        watch(watching, *[9.0] * 200)
    message = str(caught.value)
    # The smoothed loss exceeds 1 + 2 from the sixth 9 on, which is step 5. Step 54 is the fiftieth such update.
    assert message.startswith("step 54 (epoch 1, batch 54): the loss, 8.5")
    assert "2 nats or more above its lowest, 1, for 50 updates: the training diverges" in message
    assert "Lower optimizer.learning_rate" in message and "\n" not in message


def test_short_peaks_of_the_loss_do_not_stop_the_training() -> None:
    watch(guard(), *([1.0] * 100 + [30.0] * 3) * 5)
    watch(guard(), *[1.0] * 200, *[2.9] * 500)
    watch(guard(divergence_updates=0), *[1.0] * 200, *[9.0] * 500)


def test_the_divergence_guard_continues_from_the_state() -> None:
    state = TrainingState()
    watch(guard(state), *[1.0] * 100, *[9.0] * 30)
    with pytest.raises(UserError, match="for 50 updates"):
        watch(guard(state), *[9.0] * 30)


class Watcher(TrainingProgress):
    """A progress that records its lines and steps, and can run an action at a step."""

    def __init__(self, at: dict[int, object] | None = None) -> None:
        self.lines: list[str] = []
        self.steps: list[StepProgress] = []
        self._at = at or {}
        super().__init__(self.lines.append)

    def step(self, progress: StepProgress) -> None:
        self.steps.append(progress)
        action = self._at.get(len(self.steps))
        if callable(action):
            action()


def train(
    recipe: Path, output: Path, *overrides: str, watcher: Watcher | None = None, clock=time.monotonic
) -> TrainingState:
    experiment = prepare(Run(output), load_recipe(recipe, overrides))
    return Trainer(experiment, callbacks=[watcher] if watcher else [], clock=clock).train()


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


Straight = Callable[..., tuple[TrainingState, Path]]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Trains without an interruption, once for each tuple of options; returns the last state and the run."""

    @functools.cache
    def run(*options: str) -> tuple[TrainingState, Path]:
        folder = tmp_path_factory.mktemp("straight")
        return train(write_recipe(folder), folder / "run", *options), folder / "run"

    return run


def test_a_training_learns_to_copy(tmp_path: Path, tiny_recipe: Path) -> None:
    watcher = Watcher()
    state = train(tiny_recipe, tmp_path / "run", "training.max_epochs=30", watcher=watcher)
    assert state.best_value is not None and state.best_value >= 90.0
    assert watcher.steps[-1].loss < watcher.steps[0].loss / 3
    assert watcher.steps[-1].seconds_left == 0.0


SGD = "optimizer.kind=sgd", "optimizer.momentum=0.9"
ADAMW = "optimizer.kind=adamw", "optimizer.weight_decay=0.1"
COSINE = "schedule.kind=cosine", "schedule.warmup_steps=3"


@pytest.mark.parametrize(
    ("stop", "options"),
    [
        (4, ()),
        (11, (*SGD, "schedule.kind=plateau", "validation.metric=loss", "training.scheduled_sampling=0.5")),
        (
            7,
            (*ADAMW, *COSINE, "training.accumulate_batches=3", "training.ema_decay=0.9", "training.keep_checkpoints=2"),
        ),
    ],
    ids=["adam", "sgd-plateau-scheduled-sampling", "adamw-cosine-accumulation-ema"],
)
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, tiny_recipe: Path, straight: Straight, stop: int, options: tuple[str, ...]
) -> None:
    options = (*options, "training.max_epochs=3")
    expected, run = straight(*options)
    watcher = Watcher({stop: terminate})
    with pytest.raises(KeyboardInterrupt, match=f"stopped at step {stop};"):
        train(tiny_recipe, tmp_path / "stopped", *options, watcher=watcher)
    assert load_run(tmp_path / "stopped", "last").state.step == stop
    torch.manual_seed(99)  # another process has another random state
    resumed = train(tiny_recipe, tmp_path / "stopped", *options)
    assert_same_weights(run, tmp_path / "stopped")
    resumed.seconds = expected.seconds
    assert resumed == expected


ACCUMULATED = ("training.accumulate_batches=3", "training.ema_decay=0.9", "training.checkpoint_every_steps=2")


class Killed(BaseException): ...


@pytest.mark.parametrize(
    ("options", "num_batches"),
    [((), 1), ((), 4), ((), 9), (ACCUMULATED, 8)],
    ids=lambda value: value if isinstance(value, int) else "accumulation-ema" if value else "plain",
)
def test_a_run_that_died_at_any_batch_resumes_to_the_same_weights(
    tmp_path: Path,
    tiny_recipe: Path,
    straight: Straight,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    num_batches: int,
) -> None:
    """Raises in the middle of a step, and of an accumulation, so that nothing is saved at the end."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "collate", dying_at(num_batches))
        with pytest.raises(Killed):
            train(tiny_recipe, tmp_path / "killed", *options)
    torch.manual_seed(99)
    train(tiny_recipe, tmp_path / "killed", *options)
    _, run = straight(*options)
    assert_same_weights(run, tmp_path / "killed")
    assert steps_of(tmp_path / "killed") == steps_of(run), "the journal has each step once"


def dying_at(num_batches: int) -> Callable[..., Batch]:
    """Returns a `collate` that raises Killed at batch `num_batches` of the training."""
    calls = itertools.count(1)

    def result(*arguments: Any) -> Batch:
        if next(calls) == num_batches:
            raise Killed
        return collate(*arguments)

    return result


def test_a_run_killed_after_saving_a_validation_logs_it_once(
    tmp_path: Path, tiny_recipe: Path, straight: Straight, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_die(*arguments: Any, best: bool, **options: Any) -> None:
        save_checkpoint(*arguments, best=best, **options)
        if best:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer.checkpoint, "save_checkpoint", save_and_die)
        with pytest.raises(Killed):
            train(tiny_recipe, tmp_path / "killed")
    train(tiny_recipe, tmp_path / "killed")
    assert steps_of(tmp_path / "killed") == steps_of(straight()[1])


def test_an_epoch_of_accumulated_batches_is_a_whole_epoch(tmp_path: Path, tiny_recipe: Path) -> None:
    """Divides 8 batches by 3 per update: 3 updates, the last of 2 batches."""
    watcher = Watcher()
    state = train(tiny_recipe, tmp_path / "run", "training.accumulate_batches=3", watcher=watcher)
    assert (state.step, state.epoch, state.batch) == (6, 2, 0)
    assert [at.batch for at in watcher.steps] == [3, 6, 8, 3, 6, 8]


def test_the_moving_average_is_validated_and_published(tmp_path: Path, tiny_recipe: Path, straight: Straight) -> None:
    (_, plain), averaged = straight(), tmp_path / "averaged"
    train(tiny_recipe, averaged, "training.ema_decay=0.99")
    # The average does not change the training itself.
    losses = [[event["loss"] for event in events(path) if event["event"] == "train"] for path in (plain, averaged)]
    assert losses[0] == losses[1]
    validated = [
        [event["loss"] for event in events(path) if event["event"] == "validation"] for path in (plain, averaged)
    ]
    assert validated[0] != validated[1]
    assert not torch.equal(weights(plain)["output.weight"], weights(averaged)["output.weight"])


def test_a_training_learns_in_bfloat16(tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that the CPU has bfloat16: emulation is refused. The cell is a GRU: bfloat16 LSTMs need AVX-512."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    options, watcher = ("model.cell=gru", "training.max_epochs=8", "training.precision=bf16"), Watcher()
    train(tiny_recipe, tmp_path / "run", *options, watcher=watcher)
    assert watcher.steps[-1].loss < watcher.steps[0].loss / 1.5
    assert {weight.dtype for weight in weights(tmp_path / "run").values()} == {torch.float32}


def test_the_lower_loss_is_best_at_equal_values(tmp_path: Path, tiny_recipe: Path) -> None:
    """Trains only a few steps, in which no output is right and the loss falls."""
    options = ("validation.every_steps=2", "training.max_steps=6", "optimizer.learning_rate=0.001")
    state = train(tiny_recipe, tmp_path / "run", *options)
    assert state.best_value == 0.0 and state.best_step == 6


def test_a_training_stops_early_without_a_new_best(tmp_path: Path, tiny_recipe: Path) -> None:
    options = (
        "validation.patience=2",
        "validation.every_steps=2",
        "optimizer.learning_rate=1e-12",
        "model.dropout=0.0",
    )
    watcher = Watcher()
    state = train(tiny_recipe, tmp_path / "run", *options, watcher=watcher)
    assert state.step == 6 and state.best_step == 2
    assert [line.endswith("(best)") for line in watcher.lines] == [True, False, False]
    # A finished training does not continue when it is resumed.
    assert train(tiny_recipe, tmp_path / "run", *options).step == 6


def ticks(seconds: float) -> Callable[[], float]:
    """Returns a clock that advances by this time with each reading."""
    return functools.partial(next, itertools.count(0.0, seconds))


def test_a_closed_terminal_stops_a_training_after_a_saved_step_except_with_nohup(
    tmp_path: Path, tiny_recipe: Path
) -> None:
    def hang_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup themselves
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped at step 2;"):
            train(tiny_recipe, tmp_path / "run", watcher=Watcher({2: hang_up}))
        assert load_run(tmp_path / "run", "last").state.step == 2
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert train(tiny_recipe, tmp_path / "nohup", "training.max_epochs=1", watcher=Watcher({2: hang_up})).epoch == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_time_left_is_that_of_the_steps_since_the_resumption(tmp_path: Path, tiny_recipe: Path) -> None:
    options = ("training.max_epochs=4",)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, tmp_path / "run", *options, watcher=Watcher({3: terminate}), clock=ticks(1000.0))
    watcher = Watcher()
    state = train(tiny_recipe, tmp_path / "run", *options, watcher=watcher, clock=ticks(1.0))
    first = watcher.steps[0]
    assert first.seconds_left is not None and 0 < first.seconds_left < 10 * (state.step - first.step)


def test_a_training_ends_and_anneals_by_the_clock(tmp_path: Path, tiny_recipe: Path) -> None:
    options = (
        "training.max_seconds=10",
        "training.max_epochs=100",
        "schedule.kind=linear",
        "training.log_every_steps=1",
    )
    state = train(tiny_recipe, tmp_path / "run", *options, clock=ticks(0.5))
    assert 10.0 <= state.seconds < 12.0
    assert state.epoch < 3
    assert state.validated_step == state.step
    rates = [event["learning_rate"] for event in events(tmp_path / "run") if event["event"] == "train"]
    assert rates[0] == 0.02 and 0.0 < rates[-1] < 0.004
    assert rates == sorted(rates, reverse=True)


def test_a_loss_that_is_not_finite_stops_with_step_batch_and_remedy(tmp_path: Path, tiny_recipe: Path) -> None:
    options = ("optimizer.kind=sgd", "optimizer.learning_rate=1e38", "training.clip_norm=0")
    with pytest.raises(UserError) as caught:
        train(tiny_recipe, tmp_path / "run", *options)
    message = str(caught.value)
    assert (
        re.match(r"step 3 \(epoch 1, batch 3 of 8\): the loss is (nan|inf)", message)
        and "at a learning rate of 1e+38. Lower optimizer.learning_rate" in message
    )
    assert "\n" not in message


def test_weights_of_a_loss_that_is_not_finite_are_not_published(tmp_path: Path, tiny_recipe: Path) -> None:
    """Checks a training that ends before a step could show that the update before it has spoiled the weights."""
    with pytest.raises(UserError, match=r"^step 1: the loss of validation is nan\. Lower optimizer\.learning_rate"):
        train(tiny_recipe, tmp_path / "run", "optimizer.learning_rate=1e39", "training.max_steps=1")
    assert checkpoint_path(Run(tmp_path / "run"), "last") is None
