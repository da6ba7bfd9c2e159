"""Tests of admission: which requests are accepted, with a fake queue and a fake throughput."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server import errors
from attendant.server.config import LIGHT_ROWS, ServerConfig
from attendant.server.engine.client import FILL, SERVICE_FILL, Accepted, OverloadControl, Prediction
from attendant.server.engine.dispatch import Ahead, ThroughputEstimate
from attendant.server.engine.messages import Outcome, Priority, RequestStats, Result, StepStats

TEN = DecodingOptions(max_length=9, min_length=9)
"""Options of an answer that takes ten steps."""

STEP_SECONDS = 0.01


class MadeUpHost:
    """A fake host: one engine of 4 rows, with the queue that the test sets."""

    def __init__(self) -> None:
        self.num_engines, self.max_rows, self.throughput = 1, 4, ThroughputEstimate()
        self.work, self.waiting, self.own = 0.0, 0, 0
        self.next_end: tuple[float, float] | None = None

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        return Ahead(self.work, 0, self.own)

    def freeing(self, priority: Priority, num_rows: int, num_ahead: float) -> tuple[float, float] | None:
        return self.next_end

    def num_waiting(self, priority: Priority) -> int:
        return self.waiting if priority is Priority.INTERACTIVE else 0


class Harness:
    def __init__(self, *, paced: bool = True, **limits: Any) -> None:
        self.host, self.predictions, self.key = MadeUpHost(), list[Prediction](), 0
        if paced:  # a step of 4 rows takes as long as one of 1 row
            for rows in (1, 4):
                self.host.throughput.note(StepStats(Priority.INTERACTIVE, rows, 0, 0, 1, 1, {"step": STEP_SECONDS}))
        host: Any = self.host
        self.control = OverloadControl(
            host, ServerConfig(bundles=(), **{"max_waiting": 10} | limits), self.predictions.append
        )

    def accept(
        self,
        timeout: float | None = None,
        client: str = "",
        options: DecodingOptions = TEN,
        priority: Priority = Priority.INTERACTIVE,
        now: float = 0.0,
    ) -> Accepted:
        self.key += 1
        return self.control.accept([self.key], [((5, 6, 3), options)], priority, client, now, timeout)[0]

    def refusal(self, *arguments: Any, **options: Any) -> errors.AttendantError:
        with pytest.raises(errors.AttendantError) as caught:
            self.accept(*arguments, **options)
        return caught.value

    def accept_list(self, length: int, timeout: float | None = None, client: str = "") -> list[Accepted]:
        keys = range(self.key + 1, self.key + 1 + length)
        self.key += length
        return self.control.accept(keys, [((5, 6, 3), TEN)] * length, Priority.INTERACTIVE, client, 0.0, timeout)

    def accepts_list(self, length: int, **options: Any) -> bool:
        try:
            self.accept_list(length, **options)
        except errors.Overloaded:
            return False
        return True


def result(seconds: float, steps: int = 10) -> Result:
    hypothesis = Hypothesis((4,), (), -1.0, -1.0, FinishReason.EOS)
    return Result((hypothesis,), RequestStats(0.0, 0.0, seconds, 0.0, seconds, steps, 1.0, 0.0))


def priorities(accepted: Sequence[Accepted]) -> set[Priority]:
    return {each.request.priority for each in accepted}


def test_the_expectations_of_a_request_go_with_it() -> None:
    harness = Harness()
    harness.host.work = 80.0
    accepted = harness.accept(timeout=5.0, now=100.0)
    assert accepted.request.expected_steps == accepted.request.work == 10
    assert accepted.expected_seconds == pytest.approx(20 * STEP_SECONDS + 10 * STEP_SECONDS), (
        "20 steps of 4 rows, then its own"
    )
    assert accepted.request.start_by == pytest.approx(105.0 - 10 * STEP_SECONDS)
    assert harness.accept().request.start_by is None


def test_a_deadline_that_would_be_missed_is_refused_with_a_retry_delay() -> None:
    harness = Harness()
    harness.host.work = 400.0
    harness.accept()
    refusal = harness.refusal(timeout=1.0)
    assert isinstance(refusal, errors.DeadlineTooShort)
    assert refusal.retry_seconds == pytest.approx(100 * STEP_SECONDS + 10 * STEP_SECONDS)
    harness.accept(timeout=1.0 / FILL + 0.11 / SERVICE_FILL)  # with both margins for rough estimates
    harness.accept(timeout=None)


def test_a_request_waits_for_the_end_of_one_whose_rows_it_gets() -> None:
    harness = Harness()
    running = [harness.accept() for _ in range(4)]
    harness.host.next_end = 8.0, 100.0
    accepted = harness.accept(now=8.3)
    assert accepted.expected_seconds == pytest.approx(0.7 + 10 * STEP_SECONDS)
    harness.host.work = 4 * 400
    assert harness.accept(now=8.3).expected_seconds == pytest.approx((400 + 10) * STEP_SECONDS), "the work takes longer"
    harness.host.work = 0.0
    harness.accept(now=8.3, timeout=0.7 / FILL + 0.11 / SERVICE_FILL)
    refusal = harness.refusal(timeout=0.7 / FILL + 0.09 / SERVICE_FILL)
    assert isinstance(refusal, errors.DeadlineTooShort)
    assert harness.accept(now=9.5).expected_seconds == pytest.approx(10 * STEP_SECONDS), "it may end at any time"
    for request in (*running, accepted):
        harness.control.ended(request, None, 9.5)


def test_a_request_that_finds_an_idle_server_is_tried() -> None:
    harness = Harness()
    tried = harness.accept(timeout=0.06)
    assert tried.request.start_by is None, "or it would be dropped before it began"
    assert isinstance(harness.refusal(timeout=0.06), errors.DeadlineTooShort), "somebody is in its way"
    harness.control.ended(tried, None, 1.0)
    assert isinstance(harness.refusal(timeout=0.04), errors.DeadlineTooShort), "less than half of the expected time"
    assert isinstance(harness.refusal(timeout=0.0), errors.DeadlineExceeded)


def test_deadlines_are_not_refused_before_the_first_measurement() -> None:
    harness = Harness(paced=False)
    assert isinstance(harness.refusal(timeout=0.0), errors.DeadlineExceeded)
    harness.host.work = 1e6
    harness.accept(timeout=0.001)
    harness.accept(timeout=0.001)


def test_a_client_may_fill_half_of_the_free_queue() -> None:
    harness = Harness(max_waiting=10)
    harness.host.waiting, harness.host.own = 5, 5
    refusal = harness.refusal()
    assert isinstance(refusal, errors.QueueFull) and refusal.retry_seconds > 0
    harness.host.own = 0
    harness.accept(client="other")
    harness.host.waiting = 10
    assert isinstance(harness.refusal(client="other"), errors.QueueFull)


def test_no_request_waits_longer_than_is_useful() -> None:
    harness = Harness(max_wait_seconds=2.0)
    harness.host.work = 4 * 201
    refusal = harness.refusal()
    assert isinstance(refusal, errors.WaitTooLong) and refusal.retry_seconds == pytest.approx(2.01)
    harness.host.work = 4 * 199
    harness.accept()


def test_a_client_has_limits_of_requests_and_rows() -> None:
    harness = Harness(max_client_requests=2, max_client_rows=5)
    wide = DecodingOptions(max_length=9, beam_size=4)
    accepted = [harness.accept(), harness.accept()]
    assert isinstance(harness.refusal(), errors.ClientLimit)
    harness.accept(client="other", options=wide)
    harness.accept(priority=Priority.BULK)
    harness.control.ended(accepted[0], None, 1.0)
    assert "5 rows" not in str(harness.accept(options=wide))
    harness.control.ended(accepted[1], None, 1.0)
    assert "would have 8 rows in flight, must be at most 5" in str(harness.refusal(options=wide))


def test_a_client_with_many_rows_in_flight_is_heavy() -> None:
    harness = Harness()
    accepted = [harness.accept() for _ in range(LIGHT_ROWS)]
    assert priorities(accepted) == {Priority.INTERACTIVE}
    assert harness.accept().request.priority is Priority.HEAVY
    assert harness.accept(client="other").request.priority is Priority.INTERACTIVE
    for each in accepted:
        harness.control.ended(each, None, 1.0)
    assert harness.accept().request.priority is Priority.INTERACTIVE
    wide = DecodingOptions(max_length=9, beam_size=LIGHT_ROWS + 1)
    assert harness.accept(client="third", options=wide).request.priority is Priority.HEAVY
    assert Harness(light_rows=LIGHT_ROWS + 1).accept(options=wide).request.priority is Priority.INTERACTIVE


def test_a_client_is_heavy_until_half_of_its_rows_have_left() -> None:
    harness = Harness()
    accepted = [harness.accept() for _ in range(LIGHT_ROWS + 1)]
    for _ in range(LIGHT_ROWS // 2):
        harness.control.ended(accepted.pop(0), None, 1.0)
        accepted.append(harness.accept())
        assert accepted[-1].request.priority is Priority.HEAVY
    while len(accepted) >= LIGHT_ROWS // 2:
        harness.control.ended(accepted.pop(0), None, 1.0)
    assert priorities(accepted) == {Priority.HEAVY}
    assert harness.accept().request.priority is Priority.INTERACTIVE


def test_durations_of_answers_correct_the_expectation() -> None:
    harness = Harness()
    for _ in range(1000):
        harness.control.ended(harness.accept(), result(0.25), 0.3)  # delivered later than it was ready
    assert harness.accept().expected_seconds == pytest.approx(0.3, rel=0.01)
    assert harness.predictions[-1] == Prediction(pytest.approx(0.3, rel=0.01), 0.3, 10, 10, False)


@pytest.mark.parametrize("outcome", [errors.DeadlineExceeded(), errors.OutOfTime()])
def test_a_late_request_is_counted_and_is_no_answer(outcome: Outcome) -> None:
    harness = Harness()
    harness.control.ended(harness.accept(timeout=5.0), outcome, 0.02)
    assert harness.predictions == [Prediction(pytest.approx(0.1), 0.02, 10, 0, True)]
    assert harness.accept().expected_seconds == pytest.approx(0.1), "it may have been given up early"
    harness.control.ended(harness.accept(timeout=5.0), outcome, 5.0)
    assert harness.accept().expected_seconds > 0.1


def test_only_cancellations_at_the_deadline_are_late() -> None:
    harness = Harness()
    harness.control.ended(harness.accept(timeout=5.0), None, 4.8)
    assert harness.predictions == []
    harness.control.ended(harness.accept(timeout=5.0), None, 5.0 - errors.EARLY_SECONDS / 2)
    assert [prediction.late for prediction in harness.predictions] == [True]


def test_lengths_are_learned() -> None:
    harness, free = Harness(), DecodingOptions(max_length=100)
    assert harness.accept(options=free).request.expected_steps == 3
    harness.control.ended(harness.accept(options=free), result(0.3, steps=20), 0.3)
    assert harness.accept(options=free).request.expected_steps == 20


def test_bulk_work_is_accepted() -> None:
    harness = Harness(max_waiting=1)
    harness.host.work, harness.host.waiting = 1e6, 5
    accepted = harness.accept(timeout=0.001, priority=Priority.BULK)
    harness.control.ended(accepted, errors.DeadlineExceeded(), 1.0)
    assert harness.predictions == []


def test_a_list_is_accepted_by_the_expectation_of_its_last_request() -> None:
    harness = Harness()
    fits, too_long = harness.accept_list(4, timeout=5.0), Harness().accept_list(8, timeout=5.0)
    assert [accepted.request.key for accepted in fits] == [1, 2, 3, 4]
    assert [accepted.request.start_by for accepted in fits] == pytest.approx([5.0 - 10 * STEP_SECONDS] * 4)
    assert [bool(accepted.expected_seconds) for accepted in fits] == [False, False, False, True]
    assert fits[-1].expected_seconds == pytest.approx(10 * STEP_SECONDS), "there are rows for all of them"
    # Four requests have rows, and the last one waits for three others: 30 steps in 4 rows.
    assert too_long[-1].expected_seconds == pytest.approx((7.5 + 10) * STEP_SECONDS)


def test_a_list_is_accepted_as_a_whole_or_not_at_all() -> None:
    harness = Harness(max_client_requests=5)
    assert not harness.accepts_list(6)
    assert harness.accepts_list(5), "nothing of the other one is in"
    assert not harness.accepts_list(1)
    assert harness.accepts_list(5, client="other")
    with pytest.raises(errors.QueueFull, match="0 of them from this client: 5 more may wait, and 8 of this list would"):
        Harness(max_waiting=10).accept_list(12)
    # The last request decides whether the list meets its deadline.
    assert Harness().accepts_list(8, timeout=0.26 / FILL)
    assert not Harness().accepts_list(100, timeout=0.26 / FILL)


@pytest.mark.parametrize("max_waiting", [3, 6, 10])
def test_a_list_takes_as_much_of_the_queue_as_its_requests_one_by_one(max_waiting: int) -> None:
    def longest(taken: Callable[[int], bool]) -> int:
        return next(length for length in range(1, 30) if not taken(length + 1))

    def one_by_one(length: int) -> bool:
        harness = Harness(max_waiting=max_waiting)
        for number in range(length):
            # Four requests have rows. The later ones wait, and belong to the same client.
            harness.host.waiting = harness.host.own = max(0, number - 4)
            if not harness.accepts_list(1):
                return False
        return True

    assert longest(lambda length: Harness(max_waiting=max_waiting).accepts_list(length)) == longest(one_by_one)


def test_a_list_of_many_rows_is_heavy_throughout() -> None:
    assert priorities(Harness().accept_list(8)) == {Priority.INTERACTIVE}
    assert priorities(Harness(max_waiting=100).accept_list(LIGHT_ROWS + 1)) == {Priority.HEAVY}
