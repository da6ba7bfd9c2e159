"""What a server and its worker processes say to each other: commands one way, reports the other.

They are pickled, which costs a call into Python for each object that is not a tuple of plain values. What a request
asks of the search is an object of many fields that most requests share: it is pickled, and read, once.
"""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from attendant.runtime.decoding.search import Search
from attendant.server.engine.request import EngineRequest, Outcomes, StepStats

MAX_SEARCHES_KEPT: Final = 256


@dataclass(slots=True)
class Commands:
    """What the server wants of a worker."""

    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    def __reduce__(self) -> tuple[Callable[..., "Commands"], tuple[Any, ...]]:
        packed = [(key, ids, _pickled(search), *rest) for key, ids, search, *rest in self.requests]
        return _commands, (packed, self.cancelled)


class Report(NamedTuple):
    """What a worker did since its last report, and what it has.

    Attributes:
        num_waiting: per priority.
    """

    outcomes: Outcomes
    stats: list[StepStats]
    num_waiting: tuple[int, ...]
    num_running: int
    num_rows: int


def _commands(packed: Iterable[tuple[Any, ...]], cancelled: list[int]) -> Commands:
    requests = [EngineRequest(key, ids, _search(search), *rest) for key, ids, search, *rest in packed]
    return Commands(requests, cancelled)


@lru_cache(maxsize=MAX_SEARCHES_KEPT)
def _pickled(search: Search) -> bytes:
    return pickle.dumps(search, protocol=pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=MAX_SEARCHES_KEPT)
def _search(pickled: bytes) -> Search:
    search: Search = pickle.loads(pickled)
    return search
