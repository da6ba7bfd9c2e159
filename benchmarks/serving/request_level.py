"""Our own server, switched to request-level batching: python -m benchmarks.serving.request_level BUNDLE OPTIONS...

It takes the server's options. A batch is formed of who waits, and nobody joins until all of it has ended; all else is
the same. Those of a batch that end earlier leave, and are answered, at once. One worker: it runs in this process.
"""

from dataclasses import replace
from functools import partial

from attendant.runtime.command import exit_command
from attendant.server.__main__ import main
from attendant.server.engine.request import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget, Scheduler


class RequestLevelScheduler(Scheduler):
    """Admits only when nothing runs, and then as many as there is room for, however long a call takes."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(replace(budget, bulk_seconds=None))

    def admit(self, priority: Priority) -> list[EngineRequest]:
        return [] if self.num_running(priority) else super().admit(priority)


if __name__ == "__main__":
    # Workers import the class by the name of this file, and not as a part of what they run themselves.
    from benchmarks.serving import request_level  # noqa: PLW0406

    exit_command("benchmarks.serving.request_level", partial(main, request_level.RequestLevelScheduler))
