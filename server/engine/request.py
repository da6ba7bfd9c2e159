"""What goes into the engine and what comes out: plain typed values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.errors import AttendantError


class Priority(IntEnum):
    """Who goes first. Somebody waits for an interactive answer; bulk work takes what that leaves."""

    INTERACTIVE = 0
    BULK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One source and how it is decoded.

    Attributes:
        key: unique within the engine's life.
        source_ids: as the encoder takes them.
        submitted: when it came, on the engine's clock.
        deadline: when its answer is worth nothing any more, on the same clock; None: never.
        priority: whom it lets go first.
    """

    key: int
    source_ids: tuple[int, ...]
    options: DecodingOptions
    submitted: float
    deadline: float | None = None
    priority: Priority = Priority.INTERACTIVE

    @property
    def max_rows(self) -> int:
        """Rows that it may come to have: reserved from admission to the end."""
        return self.options.max_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Where a request's time went, in seconds.

    Attributes:
        queue: from submission to admission.
        encode: in the encoder, with those encoded beside it.
        decode: from the end of encoding to the last step.
        first_token: from submission to the end of the first step.
        total: from submission to the answer.
        steps: decoder steps it took part in.
        mean_batch_rows: mean rows of those steps, its own included.
    """

    queue: float
    encode: float
    decode: float
    first_token: float
    total: float
    steps: int
    mean_batch_rows: float


@dataclass(frozen=True, slots=True)
class Result:
    hypotheses: tuple[Hypothesis, ...]
    stats: RequestStats


Outcome = Result | AttendantError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What a step of the engine did; metrics render it.

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


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did, and which requests ended in it, and how."""

    stats: StepStats
    outcomes: list[tuple[int, Outcome]]
