"""`python -m server` with an engine that breaks at requests of certain source lengths."""

import ctypes
import os
import signal
from collections.abc import Iterable
from enum import IntEnum

from attendant.runtime.command import exit_command
from attendant.server.__main__ import main
from attendant.server.engine import processes
from attendant.server.engine.messages import EngineRequest, Priority
from attendant.server.engine.scheduler import Scheduler


class Break(IntEnum):
    """Source lengths, in symbols, that break the engine after the request's first round."""

    CRASH = 61
    RAISE = 62
    HANG = 64

    @property
    def text(self) -> str:
        return "a" * self


class BreakableScheduler(Scheduler):
    """Breaks its engine when it computes a request of one of these lengths."""

    def admit(self, priority: Priority) -> list[EngineRequest]:
        admitted = super().admit(priority)
        self._broken_by = {len(request.source_ids) - 1 for request in admitted} & set(Break)
        return admitted

    def end_round(self, priority: Priority, seconds: float, ended: Iterable[int] = ()) -> float:
        for how in self._broken_by:
            if how == Break.CRASH:
                os.kill(os.getpid(), signal.SIGSEGV)
            if how == Break.RAISE:
                raise RuntimeError("the model is broken")
            # This call never returns, and holds the interpreter's lock.
            ctypes.PyDLL(None).pause()
        return super().end_round(priority, seconds, ended)


if __name__ == "__main__":
    # Workers import the class from this module. Their `__main__` is another program.
    from tests.faults import breakable_server

    if "MAX_DELAY_SECONDS" in os.environ:
        processes.MAX_DELAY_SECONDS = float(os.environ["MAX_DELAY_SECONDS"])
    exit_command("server", lambda: main(breakable_server.BreakableScheduler))
