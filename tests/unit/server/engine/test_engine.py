"""Tests of the engine on a fake model, with a clock that only the model advances."""

from typing import Any

import pytest

from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import DecoderState
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest, Outcome, Priority, Result, StepResult
from attendant.server.engine.scheduler import Budget, Scheduler
from attendant.server.errors import Cancelled, DeadlineExceeded
from tests.fakes import SPECIAL_IDS, FakeStepper

ENCODE_SECONDS, STEP_SECONDS = 2.0, 1.0


class TimedStepper(FakeStepper):
    """A fake model whose calls advance its own clock."""

    now = 100.0

    def encode(self, sources: Any) -> DecoderState:
        self.now += ENCODE_SECONDS
        return super().encode(sources)

    def step(self, *arguments: Any, **options: Any) -> Any:
        self.now += STEP_SECONDS
        return super().step(*arguments, **options)


def options(length: int, beam_size: int = 1, **more: Any) -> DecodingOptions:
    """Returns options whose answers have exactly `length` tokens."""
    return DecodingOptions(beam_size=beam_size, min_length=length, max_length=length, **more)


class Desk:
    """An engine and its outcomes."""

    def __init__(
        self,
        max_rows: int = 8,
        max_source_positions: int = 1000,
        scheduler: type[Scheduler] = Scheduler,
        bulk_seconds: float | None = None,
    ) -> None:
        self.stepper = TimedStepper()
        budget = Budget(max_rows=max_rows, max_source_positions=max_source_positions, bulk_seconds=bulk_seconds)
        self.engine = Engine(self.stepper, budget, SPECIAL_IDS, lambda: self.stepper.now, scheduler)
        self.outcomes: dict[int, Outcome] = {}

    def submit(
        self,
        key: int,
        wanted: DecodingOptions,
        deadline: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> None:
        request = EngineRequest(
            key=key,
            source_ids=source(key),
            options=wanted,
            submitted=self.stepper.now,
            deadline=deadline,
            priority=priority,
        )
        self.engine.submit(request)

    def step(self) -> StepResult:
        result = self.engine.step()
        for key, outcome in result.outcomes:
            assert key not in self.outcomes, "a second outcome"
            self.outcomes[key] = outcome
        return result

    def run(self) -> None:
        while self.engine.has_work:
            self.step()


def source(key: int) -> tuple[int, ...]:
    return (4 + key % 3, 5, 3)


def test_new_requests_join_and_finished_ones_leave_at_every_step() -> None:
    desk = Desk(max_rows=2)
    desk.submit(0, options(4))
    assert desk.step().stats.num_rows == 1
    desk.submit(1, options(1))
    desk.submit(2, options(1))
    second = desk.step().stats
    assert (second.num_rows, second.num_encoded) == (2, 1), "1 joins 0 between two steps; 2 has no row yet"
    assert [key for key, _ in desk.step().outcomes] == [1], "a token and its end are two steps"
    third = desk.step()
    assert (third.stats.num_rows, third.stats.num_encoded) == (2, 1), "2 has the row of 1 at once"
    desk.run()
    assert set(desk.outcomes) == {0, 1, 2}
    assert not desk.engine.has_work and desk.engine.num_rows == 0


def test_timings_are_taken_from_the_injected_clock() -> None:
    desk = Desk(max_rows=2)
    desk.submit(0, options(2))
    desk.submit(1, options(2))
    desk.submit(2, options(1, beam_size=2))
    desk.run()
    first, last = desk.outcomes[0], desk.outcomes[2]
    assert isinstance(first, Result) and isinstance(last, Result)
    assert first.stats.queue == 0
    assert first.stats.encode == ENCODE_SECONDS
    assert first.stats.first_token == ENCODE_SECONDS + STEP_SECONDS
    assert first.stats.decode == 3 * STEP_SECONDS
    assert first.stats.total == ENCODE_SECONDS + 3 * STEP_SECONDS
    assert (first.stats.steps, first.stats.mean_batch_rows) == (3, 2.0)
    assert last.stats.queue == first.stats.total, "it waited for the rows of both"
    assert last.stats.encode == ENCODE_SECONDS
    assert last.stats.steps == 2
    assert last.stats.mean_batch_rows == 1.5, "one row, then two"


def test_a_step_reports_its_phases_and_its_padding() -> None:
    desk = Desk()
    desk.submit(0, options(2))
    stats = desk.step().stats
    assert stats.phase_seconds["encode"] == ENCODE_SECONDS
    assert stats.phase_seconds["step"] == STEP_SECONDS
    assert (stats.useful_cells, stats.computed_cells) == (3, 16), "3 of 8 positions, and never a single query"
    assert "encode" not in desk.step().stats.phase_seconds


@pytest.mark.parametrize("beam_size", [1, 3])
def test_cancelling_frees_the_rows_within_one_step(beam_size: int) -> None:
    desk = Desk(max_rows=4)
    desk.submit(0, options(9, beam_size))
    desk.submit(1, options(9))
    desk.submit(2, options(9, beam_size=4))
    desk.step()
    desk.step()
    desk.engine.cancel(0)
    result = desk.step()
    assert isinstance(desk.outcomes[0], Cancelled)
    assert result.stats.cancelled_rows == beam_size
    assert result.stats.num_rows == 1, "the step that follows the cancellation runs without them"
    desk.engine.cancel(1)
    assert desk.step().stats.num_rows == 1, "and the next in the queue has their place"
    desk.run()
    assert isinstance(desk.outcomes[2], Result)


def test_ended_requests_leave_no_state_in_the_engine() -> None:
    desk = Desk(max_rows=2)
    for key in range(50):
        desk.submit(key, options(3), deadline=desk.stepper.now + 5 if key % 3 == 0 else None)
        desk.step()
        desk.engine.cancel(key)
        desk.engine.cancel(1000 + key)
    desk.run()
    desk.step()
    assert set(desk.outcomes) == set(range(50))
    assert not desk.engine._running and not desk.engine._cancelled
    assert not desk.engine.has_work and desk.engine.num_rows == 0


def test_equal_rounds_do_not_call_the_scheduler() -> None:
    priorities: list[Priority] = []

    class Counting(Scheduler):
        def admit(self, priority: Priority) -> list[EngineRequest]:
            priorities.append(priority)
            return super().admit(priority)

    desk = Desk(scheduler=Counting)
    desk.submit(0, options(30), deadline=desk.stepper.now + 9)
    rounds = [desk.step().stats for _ in range(3)]
    assert (len(priorities), [step.num_rows for step in rounds]) == (1, [1, 1, 1])
    assert "admit" in rounds[0].phase_seconds and "admit" not in rounds[2].phase_seconds
    desk.submit(1, options(30))
    assert (desk.step().stats.num_encoded, len(priorities)) == (1, 2), "somebody came"
    desk.engine.cancel(1)
    assert (desk.step().stats.cancelled_rows, len(priorities)) == (1, 3), "somebody went"
    while 0 not in desk.outcomes:
        desk.step()
    assert isinstance(desk.outcomes[0], DeadlineExceeded) and len(priorities) == 4, "a deadline passed"


def test_rounds_alongside_bulk_work_call_the_scheduler_each_time() -> None:
    desk = Desk()
    desk.submit(0, options(3), priority=Priority.BULK)
    desk.submit(1, options(99))
    while 0 not in desk.outcomes:
        desk.step()
    assert 1 not in desk.outcomes, "it has its share of the time"


@pytest.mark.parametrize("priority", [Priority.HEAVY, Priority.BULK])
def test_a_small_request_alongside_a_flood_waits_for_one_call(priority: Priority) -> None:
    """The rows of the flood pause until the small request ends. No answer depends on the other requests."""
    desk = Desk(max_rows=8, bulk_seconds=STEP_SECONDS)
    for key in range(20):
        desk.submit(key, options(6, beam_size=4), priority=priority)
    assert desk.step().stats.num_rows == 0, "one call into the model at a time: it was an encoding"
    for _ in range(3):
        desk.step()
    desk.submit(99, options(3))
    while 99 not in desk.outcomes:
        assert desk.step().stats.priority is Priority.INTERACTIVE
    small = desk.outcomes[99]
    assert isinstance(small, Result)
    assert (small.stats.queue, small.stats.mean_batch_rows) == (0, 1), "no other rows in its steps"
    desk.run()
    expected = decode_all(FakeStepper(), [source(99), source(7)], [options(3), options(6, beam_size=4)], SPECIAL_IDS)
    flooded = desk.outcomes[7]
    assert isinstance(flooded, Result)
    assert [small.hypotheses, flooded.hypotheses] == expected


def test_paused_bulk_rows_can_be_cancelled() -> None:
    desk = Desk(max_rows=4)
    for key in (0, 1):
        desk.submit(key, options(9), priority=Priority.BULK)
    desk.step()
    desk.submit(2, options(9))
    desk.engine.cancel(0)
    assert desk.step().stats.cancelled_rows == 1
    desk.run()
    assert isinstance(desk.outcomes[0], Cancelled)
    assert isinstance(desk.outcomes[1], Result) and isinstance(desk.outcomes[2], Result)


def test_the_source_budget_delays_wide_requests() -> None:
    desk = Desk(max_rows=8, max_source_positions=16)
    for key in range(3):
        desk.submit(key, options(2))
    assert desk.step().stats.num_encoded == 2
    desk.run()
    assert len(desk.outcomes) == 3
