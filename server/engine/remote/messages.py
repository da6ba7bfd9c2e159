"""What a server and its worker processes say to each other: commands one way, reports the other.

They are pickled, which looks up each class in its module and calls into Python for each object that is not a tuple of
plain values. So they go as such tuples. Decoding options are an object of many fields, which most requests share: each
is pickled, and read, once.
"""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.request import (
    BulkRoom,
    EngineRequest,
    Outcomes,
    Priority,
    RequestStats,
    Result,
    StepStats,
)

MAX_OPTIONS_KEPT: Final = 256
MAX_BYTES_KEPT: Final = 1024
"""Pickled options without a prefix take less."""

FINISH_REASONS: Final = {reason.value: reason for reason in FinishReason}
PRIORITIES: Final = tuple(Priority)
"""By their values; looking a value up in its class is a call into Python, too."""


class Ready(NamedTuple):
    """A worker's first message: it has loaded its bundle, and checked it on this host. If not, it sends a UserError.

    Attributes:
        version: of the bundle that it found.
        precision: of the graphs that it runs.
        warm_up_size, warm_up_seconds: the work of the first calls, as `size_of` measures it, and how long they took.
    """

    version: str
    precision: Precision
    warm_up_size: int
    warm_up_seconds: float


@dataclass(slots=True)
class Commands:
    """What the server wants of a worker; `bulk`: what its engine may do for bulk work from now on, None: as before."""

    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    bulk: BulkRoom | None = None

    def __reduce__(self) -> tuple[Callable[..., "Commands"], tuple[Any, ...]]:
        packed = [
            (key, ids, _pickled(options), submitted, deadline, int(priority), *rest)
            for key, ids, options, submitted, deadline, priority, *rest in self.requests
        ]
        return _commands, (packed, self.cancelled, self.bulk and tuple(self.bulk))


class Report(NamedTuple):
    """What a worker did since its last report, and what it has.

    Attributes:
        progress: of requests that stream, in order; each before the request's outcome.
        num_waiting: per priority.
    """

    outcomes: Outcomes
    progress: list[tuple[int, Progress]]
    stats: list[StepStats]
    num_waiting: tuple[int, ...]
    num_rows: int

    def __reduce__(self) -> tuple[Callable[..., "Report"], tuple[Any, ...]]:
        outcomes = [
            (key, _packed(outcome) if isinstance(outcome, Result) else outcome) for key, outcome in self.outcomes
        ]
        progress = [(key, tuple(more)) for key, more in self.progress]
        stats = [(int(priority), *rest) for priority, *rest in self.stats]
        return _report, (outcomes, progress, stats, self.num_waiting, self.num_rows)


def _commands(packed: Iterable[tuple[Any, ...]], cancelled: list[int], bulk: tuple[int, bool] | None) -> Commands:
    requests = [
        EngineRequest(key, ids, _options(options), submitted, deadline, PRIORITIES[priority], *rest)
        for key, ids, options, submitted, deadline, priority, *rest in packed
    ]
    return Commands(requests, cancelled, bulk and BulkRoom(*bulk))


def _report(
    outcomes: Iterable[tuple[int, Any]],
    progress: Iterable[tuple[int, tuple[Any, ...]]],
    stats: Iterable[tuple[Any, ...]],
    num_waiting: tuple[int, ...],
    num_rows: int,
) -> Report:
    return Report(
        [(key, _unpacked(*outcome) if isinstance(outcome, tuple) else outcome) for key, outcome in outcomes],
        [(key, Progress(*more)) for key, more in progress],
        [StepStats(PRIORITIES[priority], *rest) for priority, *rest in stats],
        num_waiting,
        num_rows,
    )


def _packed(result: Result) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    hypotheses, stats = result
    return [(*rest, reason.value, attention) for *rest, reason, attention in hypotheses], tuple(stats)


def _unpacked(hypotheses: Iterable[tuple[Any, ...]], stats: tuple[Any, ...]) -> Result:
    found = [
        Hypothesis(ids, log_probs, log_prob, score, FINISH_REASONS[reason], attention)
        for ids, log_probs, log_prob, score, reason, attention in hypotheses
    ]
    return Result(tuple(found), RequestStats(*stats))


def _pickled(options: DecodingOptions) -> bytes:
    # A prefix, and a target that is scored, is mostly a single request's; and it may be long.
    return (_pickle if options.target_prefix or options.completion else _pickle_once)(options)


def _options(pickled: bytes) -> DecodingOptions:
    return (_unpickle_once if len(pickled) <= MAX_BYTES_KEPT else _unpickle)(pickled)


def _pickle(options: DecodingOptions) -> bytes:
    return pickle.dumps(options, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(pickled: bytes) -> DecodingOptions:
    options: DecodingOptions = pickle.loads(pickled)
    return options


_pickle_once = lru_cache(maxsize=MAX_OPTIONS_KEPT)(_pickle)
_unpickle_once = lru_cache(maxsize=MAX_OPTIONS_KEPT)(_unpickle)
