"""What a server and its worker processes say to each other, and how it is pickled.

Each request crosses twice, so it counts: a dataclass is pickled by its name and its fields, with calls into Python for
every one. Here all values cross as plain tuples, and options, which requests share, as bytes that are made and read
once.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import Floats
from attendant.server.engine.host import Outcomes
from attendant.server.engine.request import EngineRequest, Outcome, Priority, RequestStats, Result, StepStats

MAX_OPTIONS_KEPT: Final = 256

RESULT_STATS: Final = tuple(one.name for one in fields(RequestStats))
STEP_STATS: Final = tuple(one.name for one in fields(StepStats) if one.name != "priority")
_result_stats = attrgetter(*RESULT_STATS)
_step_stats = attrgetter(*STEP_STATS)


@dataclass(slots=True)
class Orders:
    """What the server wants of a worker."""

    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    def __reduce__(self) -> tuple[Callable[..., "Orders"], tuple[Any, ...]]:
        return _orders, (list(map(_request_fields, self.requests)), self.cancelled)


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did since its last report, and what it has.

    Attributes:
        num_waiting: per priority.
    """

    outcomes: Outcomes
    stats: list[StepStats]
    num_waiting: tuple[int, ...]
    num_running: int
    num_rows: int

    def __reduce__(self) -> tuple[Callable[..., "Report"], tuple[Any, ...]]:
        outcomes = [(key, _outcome_fields(outcome)) for key, outcome in self.outcomes]
        stats = [(int(one.priority), *_step_stats(one)) for one in self.stats]
        return _report, (outcomes, stats, self.num_waiting, self.num_running, self.num_rows)


def _orders(requests: list[tuple[Any, ...]], cancelled: list[int]) -> Orders:
    return Orders([_request(*one) for one in requests], cancelled)


def _report(outcomes: list[tuple[int, Any]], stats: list[tuple[Any, ...]], *counts: Any) -> Report:
    return Report([(key, _outcome(packed)) for key, packed in outcomes], [_step(*one) for one in stats], *counts)


def _request_fields(request: EngineRequest) -> tuple[Any, ...]:
    options, times = _pickled(request.options), (request.submitted, request.deadline)
    return request.key, request.source_ids, options, *times, int(request.priority)


def _request(
    key: int,
    source_ids: tuple[int, ...],
    options: bytes,
    submitted: float,
    deadline: float | None,
    priority: int,
) -> EngineRequest:
    return EngineRequest(
        key=key,
        source_ids=source_ids,
        options=_options(options),
        submitted=submitted,
        deadline=deadline,
        priority=Priority(priority),
    )


@lru_cache(maxsize=MAX_OPTIONS_KEPT)
def _pickled(options: DecodingOptions) -> bytes:
    return pickle.dumps(options, protocol=pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=MAX_OPTIONS_KEPT)
def _options(pickled: bytes) -> DecodingOptions:
    options: DecodingOptions = pickle.loads(pickled)
    return options


def _outcome_fields(outcome: Outcome) -> Any:
    """A result's as a tuple; an error crosses as it is."""
    if not isinstance(outcome, Result):
        return outcome
    return _result_stats(outcome.stats), [_hypothesis_fields(one) for one in outcome.hypotheses]


def _outcome(packed: Any) -> Outcome:
    if not isinstance(packed, tuple):
        error: Outcome = packed
        return error
    stats, hypotheses = packed
    request_stats = RequestStats(**dict(zip(RESULT_STATS, stats, strict=True)))
    return Result(tuple(_hypothesis(*one) for one in hypotheses), request_stats)


def _hypothesis_fields(one: Hypothesis) -> tuple[Any, ...]:
    return one.token_ids, one.token_log_probs, one.log_prob, one.score, one.finish_reason.value, one.attention


def _hypothesis(
    token_ids: tuple[int, ...],
    token_log_probs: tuple[float, ...],
    log_prob: float,
    score: float,
    reason: str,
    attention: Floats | None,
) -> Hypothesis:
    return Hypothesis(token_ids, token_log_probs, log_prob, score, FinishReason(reason), attention)


def _step(priority: int, *stats: Any) -> StepStats:
    return StepStats(priority=Priority(priority), **dict(zip(STEP_STATS, stats, strict=True)))
