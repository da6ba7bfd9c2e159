"""What goes into the engine and what comes out: plain typed values.

Named tuples, because they cross to worker processes and back: pickling a frozen dataclass takes several times as long.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from attendant.runtime.decoding.hypothesis import Hypothesis, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.errors import AttendantError, OutOfTime

MIN_RETRY_SECONDS = 0.05


class Priority(IntEnum):
    """Who goes first. Each has a queue and a running batch of its own.

    Somebody waits for an interactive answer. Heavy requests are interactive ones of a client that has many rows in
    flight: they share the engine's time with the others' by clients, not by requests. Bulk work takes the time that is
    left.
    """

    INTERACTIVE = 0
    HEAVY = 1
    BULK = 2


class EngineRequest(NamedTuple):
    """One source and how it is decoded.

    Attributes:
        key: unique within the engine's life.
        source_ids: as the encoder takes them.
        submitted: when it came, on the engine's clock.
        deadline: when its answer becomes worthless, on the same clock; None: never.
        client: who asks; clients share the engine.
        expected_steps: decoder steps that it is expected to take.
        start_by: when it must have been admitted to be answered before its deadline, as far as that can be told; None:
            at any time.
        streams: its caller wants to know of tokens as soon as they are certain.
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
        """Rows that it may come to have: reserved from admission to the end."""
        return self.options.max_rows

    @property
    def work(self) -> float:
        """Expected rows x steps: what it costs beside others."""
        return self.options.max_rows * self.expected_steps


def out_of_time(request: EngineRequest, now: float) -> OutOfTime:
    """What a request is told that has waited too long: to come again after as long as it has waited."""
    return OutOfTime(max(MIN_RETRY_SECONDS, now - request.submitted))


class BulkRoom(NamedTuple):
    """What an engine may do for bulk work.

    Attributes:
        max_rows: its live hypotheses.
        is_alone: nobody has asked the server for anything else for a while: its calls into the model may take longer.
    """

    max_rows: int
    is_alone: bool


class RequestStats(NamedTuple):
    """Where a request's time went, in seconds.

    Attributes:
        queue: from submission to admission.
        encode: in the encoder, with the requests encoded beside it.
        decode: from the end of encoding to the last step.
        first_token: from submission to the end of the first step.
        total: from submission to the answer.
        steps: decoder steps it took part in.
        mean_batch_rows: mean rows of those steps, its own included.
        submitted: when it came, on the engine's clock.
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
    hypotheses: tuple[Hypothesis, ...]
    stats: RequestStats


Outcome = Result | AttendantError
"""How a request ends: with an answer, or with one of the errors that its caller may see."""

Outcomes = list[tuple[int, Outcome]]
"""By the requests' keys."""

Updates = list[tuple[int, Progress | Outcome]]
"""What callers are told, by the requests' keys: outcomes, and of requests that stream also their progress."""


class StepStats(NamedTuple):
    """What a round of the engine did; metrics render it.

    Attributes:
        priority: whose round it was.
        num_rows: rows stepped; 0 where there was nothing to step.
        num_encoded: requests that joined.
        cancelled_rows: rows freed because their client went, or their deadline passed.
        useful_cells, computed_cells: attention cells that meant something, and that were computed.
        phase_seconds: phase -> seconds: admit, encode, and those of runtime.decoding.batch.StepReport. A phase that
            did not happen is absent.
    """

    priority: Priority
    num_rows: int
    num_encoded: int
    cancelled_rows: int
    useful_cells: int
    computed_cells: int
    phase_seconds: Mapping[str, float]


class StepResult(NamedTuple):
    """What a round did, which requests ended in it, and how; and how far those have come that stream."""

    stats: StepStats
    outcomes: Outcomes
    progress: list[tuple[int, Progress]]
