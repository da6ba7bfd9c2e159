"""Requests one of which has ended an engine: each is decoded again, alone, so that it can harm no other. Pure.

Decoding has no side effects and its result does not depend on the neighbours, so a second time gives the same answer.
A request that ends the engine alone as well is poisoned. Finding it takes two deaths, however many were suspected.
"""

from collections import OrderedDict
from collections.abc import Iterable

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.request import EngineRequest, Priority

MAX_REMEMBERED = 1024


class Quarantine:
    """The suspects of one worker, one of which at most is in it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._alone: EngineRequest | None = None

    def __len__(self) -> int:
        """Suspects that have not been answered."""
        return len(self._waiting) + (self._alone is not None)

    def num_waiting(self, priority: Priority) -> int:
        """Of those, the ones that are not in the worker."""
        return sum(request.priority is priority for request in self._waiting.values())

    def add(self, suspects: Iterable[EngineRequest]) -> None:
        for request in sorted(suspects, key=lambda one: (one.priority, one.key)):
            self._waiting[request.key] = request

    def next(self) -> EngineRequest | None:
        """The suspect before has been answered; returns the next one, which is to be decoded alone."""
        self._alone = self._waiting.popitem(last=False)[1] if self._waiting else None
        return self._alone

    def cancel(self, key: int) -> bool:
        """Nobody waits for it any more; False: it does not wait here."""
        return self._waiting.pop(key, None) is not None

    def died(self) -> EngineRequest | None:
        """The worker has died; returns the request that ended it alone, if one was being tried."""
        poisoned, self._alone = self._alone, None
        return poisoned


class Poisoned:
    """What poisoned requests asked for: whoever asks the same again is not tried."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[tuple[int, ...], DecodingOptions], None] = OrderedDict()

    def add(self, request: EngineRequest) -> None:
        self._known[request.source_ids, request.options] = None
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def __contains__(self, request: EngineRequest) -> bool:
        # Almost always there is none, and requests need not be hashed.
        return bool(self._known) and (request.source_ids, request.options) in self._known
