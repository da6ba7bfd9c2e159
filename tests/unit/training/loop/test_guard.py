"""What stops a training: no number at once, a loss that went up only when it stays there."""

import math

import pytest

from attendant.runtime.errors import UserError
from attendant.training.loop.trainer import Guard
from attendant.training.loop.update import Gradient
from attendant.training.recipe import TrainerConfig
from attendant.training.run.checkpoint import TrainingState


def watch(guard: Guard, *losses: float) -> None:
    for number, loss in enumerate(losses):
        guard.check(Gradient(loss, loss, 1.0, overflowed=False), 0.01, f"step {number} (epoch 1, batch {number})")


def guard(state: TrainingState | None = None, **config: object) -> Guard:
    return Guard(TrainerConfig.model_validate({"divergence_updates": 50} | config), state or TrainingState())


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_no_number_stops_at_once(loss: float, norm: float) -> None:
    with pytest.raises(
        UserError, match=r"^step 7: the loss is .* Lower optimizer\.learning_rate \(this step's: 0\.01\)"
    ):
        guard().check(Gradient(loss, loss, norm, overflowed=False), 0.01, "step 7")


def test_an_overflow_of_fp16_is_no_fault_of_the_training() -> None:
    guard().check(Gradient(1.0, 1.0, math.inf, overflowed=True), 0.01, "step 7")


def test_a_loss_far_above_its_lowest_for_long_stops() -> None:
    watching = guard()
    watch(watching, *[5.0] * 20, *[1.0] * 200)
    with pytest.raises(UserError) as caught:
        watch(watching, *[9.0] * 200)
    said = str(caught.value)
    # The smoothed loss passes 1 + 2 with the sixth 9, and 50 updates later it is enough.
    assert said.startswith("step 54 (epoch 1, batch 54): the loss, 8.5")
    assert "2 nats or more above its lowest, 1, for 50 updates: the training diverges" in said
    assert "Lower optimizer.learning_rate" in said and "\n" not in said


def test_peaks_do_not() -> None:
    watch(guard(), *([1.0] * 100 + [30.0] * 3) * 5)
    watch(guard(), *[1.0] * 200, *[2.9] * 500)
    watch(guard(divergence_updates=0), *[1.0] * 200, *[9.0] * 500)


def test_what_it_remembers_is_in_the_state() -> None:
    state = TrainingState()
    watch(guard(state), *[1.0] * 100, *[9.0] * 30)
    with pytest.raises(UserError, match="for 50 updates"):
        watch(guard(state), *[9.0] * 30)
