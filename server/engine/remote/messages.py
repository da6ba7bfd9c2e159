"""What a server and its worker processes say to each other: commands one way, reports the other.

They are pickled, which costs a call into Python for each object that is not a tuple of plain values. Decoding options
are an object of many fields, which most requests share: each is pickled, and read, once.
"""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.request import EngineRequest, Outcomes, StepStats

MAX_OPTIONS_KEPT: Final = 256
MAX_BYTES_KEPT: Final = 1024
"""Pickled options without a prefix take less."""


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
    """What the server wants of a worker; `bulk_rows`: that bulk requests may have from now on, None: as before."""

    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    bulk_rows: int | None = None

    def __reduce__(self) -> tuple[Callable[..., "Commands"], tuple[Any, ...]]:
        packed = [(key, ids, _pickled(options), *rest) for key, ids, options, *rest in self.requests]
        return _commands, (packed, self.cancelled, self.bulk_rows)


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


def _commands(packed: Iterable[tuple[Any, ...]], cancelled: list[int], bulk_rows: int | None) -> Commands:
    requests = [EngineRequest(key, ids, _options(options), *rest) for key, ids, options, *rest in packed]
    return Commands(requests, cancelled, bulk_rows)


def _pickled(options: DecodingOptions) -> bytes:
    # A prefix, and a target that is scored, is mostly a single request's; and it may be long.
    return (_pickle if options.target_prefix else _pickle_once)(options)


def _options(pickled: bytes) -> DecodingOptions:
    return (_unpickle_once if len(pickled) <= MAX_BYTES_KEPT else _unpickle)(pickled)


def _pickle(options: DecodingOptions) -> bytes:
    return pickle.dumps(options, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(pickled: bytes) -> DecodingOptions:
    options: DecodingOptions = pickle.loads(pickled)
    return options


_pickle_once = lru_cache(maxsize=MAX_OPTIONS_KEPT)(_pickle)
_unpickle_once = lru_cache(maxsize=MAX_OPTIONS_KEPT)(_unpickle)
