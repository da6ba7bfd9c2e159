"""What the event loop needs of whatever runs the engine: a thread of this process, or worker processes."""

from collections.abc import Callable
from typing import Protocol

from attendant.server.engine.request import EngineRequest, Outcomes, Priority


class EngineHost(Protocol):
    """Takes requests, tells how they ended. All methods are called from one event loop, and none of them blocks."""

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

    def expected_seconds(self, num_requests: int) -> float:
        """How long so many take to be answered, estimated from recent throughput; 0 until something was answered."""

    async def stop(self, timeout_seconds: float) -> None:
        """Ends after the step under way, and leaves what is still in without an outcome."""
