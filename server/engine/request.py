"""The values that go into the engine and come out of it.

They are named tuples, because they are sent to worker processes and back: pickling a frozen dataclass takes several
times as long.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from attendant.runtime.decoding.hypothesis import Hypothesis, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import Trace
from attendant.runtime.requests import ReadRequest
from attendant.runtime.spans import joined
from attendant.server.errors import AttendantError, OutOfTime

MIN_RETRY_SECONDS = 0.05


class Priority(IntEnum):
    """Priority of a request. Each has a queue and a running batch of its own.

    Callers wait for interactive answers. Heavy requests are interactive ones of a client that has many rows in flight;
    they share the engine's time with the others by clients, not by requests. Bulk work takes the remaining time.
    """

    INTERACTIVE = 0
    HEAVY = 1
    BULK = 2


class EngineRequest(NamedTuple):
    """A source and its decoding options.

    Attributes:
        key: unique within the engine's life.
        source_ids: as the encoder takes them.
        submitted: time of submission, on the engine's clock.
        deadline: time after which the answer is worthless, on the same clock. If None, there is no deadline.
        client: name of the client; clients share the engine.
        expected_steps: expected decoder steps.
        start_by: estimated time by which it must be admitted to be answered before its deadline, or None.
        streams: whether its caller wants tokens as soon as they are certain.
    """

    key: int
    source_ids: tuple[int, ...]
    options: DecodingOptions
    submitted: float
    deadline: float | None = None
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    expected_steps: float = 1.0
    start_by: float | None = None
    streams: bool = False

    @property
    def max_rows(self) -> int:
        """Largest number of rows, reserved from admission to the end."""
        return self.options.max_rows

    @property
    def work(self) -> float:
        """Expected rows x steps."""
        return self.options.max_rows * self.expected_steps


def out_of_time(request: EngineRequest, now: float) -> OutOfTime:
    """Returns the error for a request that waited too long: it may come again after as long as it has waited."""
    return OutOfTime(max(MIN_RETRY_SECONDS, now - request.submitted))


class BulkRoom(NamedTuple):
    """Limits of an engine's bulk work.

    Attributes:
        max_rows: its live hypotheses.
        is_alone: whether the server has had no other requests for a while; then calls into the model may take longer.
    """

    max_rows: int
    is_alone: bool


class RequestStats(NamedTuple):
    """Timings of a request, in seconds.

    Attributes:
        queue: from submission to admission.
        encode: in the encoder, with the requests encoded together with it.
        decode: from the end of encoding to the last step.
        first_token: from submission to the end of the first step.
        total: from submission to the answer.
        steps: decoder steps it took part in.
        mean_batch_rows: mean rows of those steps, its own included.
        submitted: time of submission, on the engine's clock.
    """

    queue: float
    encode: float
    decode: float
    first_token: float
    total: float
    steps: int
    mean_batch_rows: float
    submitted: float


class Result(NamedTuple):
    """An answer.

    Attributes:
        hypotheses: best first.
        trace: the course of the search, if the request asks for it.
    """

    hypotheses: tuple[Hypothesis, ...]
    stats: RequestStats
    trace: Trace | None = None


def joined_result(request: ReadRequest, units: Sequence[Result]) -> Result:
    """Returns the result of a request, given those of its units; the statistics are of the one that ended last."""
    if not request.parts:
        return units[0]
    options = request.options
    hypotheses = joined([unit.hypotheses for unit in units], options.num_hypotheses, draws=options.sampling is not None)
    return Result(hypotheses, max((unit.stats for unit in units), key=lambda stats: stats.total))


Outcome = Result | AttendantError
"""The end of a request: an answer, or one of the errors that its caller may see."""

Outcomes = list[tuple[int, Outcome]]
"""Outcomes by the requests' keys."""

Updates = list[tuple[int, Progress | Outcome]]
"""Updates for callers, by the requests' keys: outcomes, and the progress of requests that stream."""


class StepStats(NamedTuple):
    """Statistics of one round of the engine, for metrics.

    Attributes:
        priority: of the round.
        num_rows: rows stepped; 0 if there was nothing to step.
        num_encoded: requests that joined.
        cancelled_rows: rows freed because their caller has gone, or their deadline has passed.
        useful_cells, computed_cells: attention cells of valid positions, and all that were computed.
        phase_seconds: seconds of each phase that happened: admit, encode, and those of
            runtime.decoding.batch.StepReport.
    """

    priority: Priority
    num_rows: int
    num_encoded: int
    cancelled_rows: int
    useful_cells: int
    computed_cells: int
    phase_seconds: Mapping[str, float]


class StepResult(NamedTuple):
    """Result of one round: its statistics, the outcomes of requests that ended, the progress of those that stream."""

    stats: StepStats
    outcomes: Outcomes
    progress: list[tuple[int, Progress]]
