"""Tests of optimizers, schedules and the moving average on values worked out by hand."""

import math
import warnings

import pytest
import torch
from torch import nn

from attendant.training.optimization import MovingAverage, OptimizerConfig, Schedule, ScheduleConfig, make_optimizer
from tests.architectures import NEEDS_GPU


def test_adadelta_takes_the_steps_of_its_paper() -> None:
    """Compares with algorithm 1 of Zeiler 2012, with rho = 0.95 and epsilon = 1e-6."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = make_optimizer(OptimizerConfig(kind="adadelta", learning_rate=1.0, epsilon=1e-6), [weight])
    wanted, squares, updates = 1.0, 0.0, 0.0
    for gradient in (0.5, -2.0, 1.0):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        squares = 0.95 * squares + 0.05 * gradient**2
        update = -math.sqrt(updates + 1e-6) / math.sqrt(squares + 1e-6) * gradient
        updates = 0.95 * updates + 0.05 * update**2
        wanted += update
        assert weight.item() == pytest.approx(wanted, abs=1e-6)


def test_a_value_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.rho = 0\.9 means nothing to .*: leave it out, or take adadelta"):
        OptimizerConfig(kind="adam", rho=0.9)


def test_the_table_of_an_earlier_run_is_read() -> None:
    """Reads a table with all fields, as run directories have it: some have no effect for its kind."""
    config = OptimizerConfig(kind="sgd", learning_rate=0.1, betas=(0.9, 0.999), epsilon=1e-8, momentum=0.9)
    assert config.momentum == 0.9


def schedule(max_steps: int | None = None, max_seconds: float | None = None, **config: object) -> Schedule:
    limits = {"max_steps": max_steps, "max_seconds": max_seconds}
    return Schedule(ScheduleConfig.model_validate(config), steps_of_an_epoch=10, **limits)


def test_warmup_rises_linearly_to_the_peak() -> None:
    result = schedule(kind="constant", warmup_steps=4)
    assert [result.factor(step, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert schedule().factor(0, 0.0) == 1.0


def test_inverse_sqrt_follows_its_formula() -> None:
    result = schedule(kind="inverse_sqrt", warmup_steps=4)
    assert result.factor(1, 0.0) == 0.5
    assert result.factor(3, 0.0) == 1.0
    assert result.factor(15, 0.0) == 0.5
    assert result.factor(63, 0.0) == 0.25


@pytest.mark.parametrize(("kind", "quarter"), [("linear", 0.75), ("cosine", (1 + math.sqrt(0.5)) / 2)])
def test_decay_falls_to_the_end_by_steps_or_by_time(kind: str, quarter: float) -> None:
    by_steps = schedule(kind=kind, warmup_steps=10, max_steps=110)
    assert by_steps.factor(10, 0.0) == 1.0
    assert by_steps.factor(35, 0.0) == pytest.approx(quarter)
    assert by_steps.factor(110, 0.0) == pytest.approx(0.0)
    slow = schedule(kind=kind, warmup_steps=10, max_steps=110, max_seconds=100)
    assert slow.factor(10, 25.0) == pytest.approx(quarter)
    assert slow.factor(60, 25.0) == pytest.approx(0.5)
    assert slow.factor(60, 200.0) == pytest.approx(0.0)
    assert schedule(kind=kind, final_factor=0.1, max_steps=10).factor(10, 0.0) == pytest.approx(0.1)


def test_one_cycle_rises_and_falls_by_steps_or_by_time() -> None:
    for at in (schedule(kind="one_cycle", max_steps=100), schedule(kind="one_cycle", max_seconds=100)):
        result = [at.factor(moment, float(moment)) for moment in (0, 15, 30, 65, 100)]
        assert result == pytest.approx([0.04, 0.52, 1.0, 0.5, 0.0])
    assert schedule(kind="one_cycle", max_steps=10, final_factor=0.1).factor(10, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "inverse_sqrt"}, "set schedule.warmup_steps"),
        ({"kind": "one_cycle", "warmup_steps": 9}, "schedule.warmup_steps = 9: .* rises over the first 30 %"),
        ({"kind": "constant", "final_factor": 0.1}, "schedule.final_factor = 0.1 means nothing to"),
        ({"kind": "cosine", "factor": 0.7}, "schedule.factor = 0.7 means nothing to .*: leave it out, or take plateau"),
        ({"kind": "milestones"}, "falls at none: set schedule.milestones"),
        ({"kind": "cosine", "milestones": [2.0]}, "means nothing to .*, or take milestones"),
    ],
)
def test_contradictory_settings_are_refused(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig.model_validate(config)


def test_plateau_falls_after_its_patience() -> None:
    result = schedule(kind="plateau", factor=0.5, patience=1)
    assert [result.plateau_fall(num_flat) for num_flat in (0, 1, 0, 1, 2, 3, 4, 5)] == [1, 1, 1, 1, 0.5, 1, 0.5, 1]
    assert schedule(kind="constant").plateau_fall(4) == 1


def test_milestones_are_epochs() -> None:
    result = schedule(kind="milestones", milestones=[2.0, 2.5, 3.0])
    assert [result.factor(step, 0.0) for step in (0, 19, 20, 24, 25, 30, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.125]


def test_the_decay_of_a_moving_average_grows_to_its_limit() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(8.0)
    average = MovingAverage(model, 0.5)
    expected = 8.0
    for num_updates in range(1, 20):
        with torch.no_grad():
            model.weight.fill_(float(num_updates))
        average.update(model, num_updates)
        decay = min(0.5, (1 + num_updates) / (10 + num_updates))
        expected = decay * expected + (1 - decay) * num_updates
        assert average.model.weight.item() == pytest.approx(expected)
    # The trained weights are unchanged, and the average has no gradients.
    assert model.weight.item() == 19.0
    assert not average.model.weight.requires_grad and model.weight.requires_grad


@pytest.mark.cuda
@NEEDS_GPU
def test_a_gpu_keeps_the_averaged_weights_of_a_layer_in_one_block() -> None:
    """PyTorch warns otherwise, and moves the weights at every call."""
    average = MovingAverage(nn.LSTM(4, 4, 2).to("cuda"), 0.5)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        average.model(torch.zeros(1, 1, 4, device="cuda"))
