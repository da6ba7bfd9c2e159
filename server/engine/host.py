"""What the event loop needs of whatever runs the engine: a thread of this process, or worker processes."""

from collections.abc import Callable
from typing import Protocol

from attendant.server.engine.queueing.fair_queue import Ahead
from attendant.server.engine.request import EngineRequest, Outcomes, Priority
from attendant.server.engine.throughput import Pace


class EngineHost(Protocol):
    """Takes requests, tells how they ended. All methods are called from one event loop, and none of them blocks.

    Attributes:
        num_engines: that share the queue.
        max_rows: of each, that may be stepped together.
        pace: of one engine.
    """

    num_engines: int
    max_rows: int
    pace: Pace

    async def start(self, on_outcomes: Callable[[Outcomes], None], on_death: Callable[[], None]) -> None:
        """Begins; from the event loop in which both functions will be called.

        Args:
            on_outcomes: called with the requests that have ended, those of one step together.
            on_death: called once, after a step has failed; nothing follows it.
        """

    def submit(self, request: EngineRequest) -> None:
        """Puts a request at the end of its queue."""

    def cancel(self, key: int) -> None:
        """Frees what the request holds, within a step. A key that has ended is ignored."""

    def num_waiting(self, priority: Priority) -> int:
        """Requests of that priority that have no rows yet."""

    @property
    def num_running(self) -> int:
        """Requests that have rows."""

    @property
    def num_rows(self) -> int:
        """Live hypotheses of all of them."""

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps of this client."""

    async def stop(self, timeout_seconds: float) -> None:
        """Ends after the step under way, and leaves what is still in without an outcome."""
