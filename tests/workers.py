"""Workers on threads of this process, so that a test can hold them up or break them."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Stepper
from attendant.server.config import ServerConfig
from attendant.server.engine.engine import Engine, serve_engine
from attendant.server.engine.messages import FlightRecord, Ready, framed, new_record
from attendant.server.engine.pool import WorkerPool
from attendant.server.engine.scheduler import Budget
from tests.fakes import SPECIAL_IDS


class ThreadWorker:
    """A `Worker` that ends as server/worker_main.py does: at a failed step."""

    def __init__(
        self, stepper: Stepper, budget: Budget, load: Callable[[], object] = lambda: None, version: str = ""
    ) -> None:
        """Starts the thread, which calls `load` and then reports that it has loaded a bundle of this version."""
        self.connection, self._theirs = socket.socketpair()
        self.record = FlightRecord(new_record(budget.max_rows))
        self.thread = threading.Thread(target=self._live, args=(stepper, budget, load, version), daemon=True)
        self.thread.start()

    def kill(self) -> None:
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)

    def ending(self) -> str:
        return "" if self.thread.is_alive() else "its thread ended"

    def _live(self, stepper: Stepper, budget: Budget, load: Callable[[], object], version: str) -> None:
        with self._theirs, suppress(RuntimeError, OSError):
            try:
                load()
            except UserError as error:
                self._theirs.sendall(framed(error))
                return
            engine = Engine(stepper, budget, SPECIAL_IDS)
            self._theirs.sendall(framed(Ready(version, "fp32", warm_up_size=1, warm_up_seconds=0.0)))
            serve_engine(self._theirs, engine, self.record)


def thread_pool(*steppers: Stepper, max_rows: int = 4, **options: Any) -> WorkerPool:
    """Makes a pool with a worker per stepper. By default, the pool dies when a worker ends.

    Args:
        options: options of WorkerPool or its configuration, or `budget` and `load` of each worker.
    """
    budget = options.pop("budget", None) or Budget(max_rows=max_rows, max_source_positions=1000)
    load = options.pop("load", lambda: None)
    remaining = iter(steppers)
    config = ServerConfig(
        bundles=(),
        workers=options.pop("num_workers", len(steppers)),
        max_rows=budget.max_rows,
        max_restarts=options.pop("max_restarts", 0),
        hang_seconds=options.pop("hang_seconds", 60.0),
        load_seconds=options.pop("load_seconds", 60.0),
    )
    wanted = {"version": "", "on_step": lambda stats: None} | options
    return WorkerPool(lambda: ThreadWorker(next(remaining), budget, load), config, **wanted)
