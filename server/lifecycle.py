"""The server's life: loading, serving, draining, ended; and the health that the outside sees."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2

from attendant.server.catalogue import Catalogue
from attendant.server.engine.client import EngineClient
from attendant.server.grpc.service import SERVICE_NAME
from attendant.server.metrics import Metrics
from attendant.server.polling import begin

log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

DRAINED, ENGINE_DIED = 0, 1

STARTUP, LIVENESS = "startup", "liveness"
"""Health services for a supervisor: everything has been loaded and checked once; the event loop turns. Readiness is the
empty name's."""

WATCHED = frozenset({"", SERVICE_NAME, STARTUP, LIVENESS})


class Health(health.aio.HealthServicer):
    """The library's servicer, which keeps every name that was ever watched: unknown services share a name here."""

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        if request.service not in WATCHED:
            request = health_pb2.HealthCheckRequest(service="unknown")
        await super().Watch(request, context)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Returns the status of every name. The library's proto has this method, its servicer (1.85) does not."""
        requests = [health_pb2.HealthCheckRequest(service=name) for name in sorted(WATCHED)]
        statuses = {each.service: await self.Check(each, context) for each in requests}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # types-grpcio lacks it


class Lifecycle:
    """Health, the reasons to end, and the exit status.

    Attributes:
        health: the servicer of grpc.health.v1. The empty name and our service's are SERVING when the server is ready.
        is_open: every model has been loaded, and the server is not about to end.
    """

    def __init__(self, catalogue: Catalogue, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self.health = Health()
        self.exit_status = DRAINED
        self.is_open = False
        self._has_been_open = False
        self._unavailable: set[str] = set()
        self._dead: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        self._hurrying = asyncio.Event()

    def install_signal_handlers(self, reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ends the server in order on SIGTERM and SIGINT, and at once on a second one; reloads on SIGHUP."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: begin(reload(), self._tasks))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)

    async def set_open(self, is_open: bool) -> None:
        """Sets `is_open`, and health and metrics accordingly."""
        self.is_open = is_open
        self._has_been_open |= is_open
        for model in self._served():
            self._metrics.set_ready(model, is_open and model not in self._unavailable | self._dead)
        if is_open:
            self._end_without_engines()
        await self._publish()

    @property
    def is_serving(self) -> bool:
        """Readiness: the server is open and has models, each with an engine, except those that have failed."""
        return self.is_open and bool(self._served()) and not self._unavailable - self._dead

    def engine_available(self, model: str, available: bool) -> None:
        """Notes that a model has lost its last engine for the time being, or has one again."""
        (self._unavailable.discard if available else self._unavailable.add)(model)
        if available:
            self._dead.discard(model)
        self._metrics.set_ready(model, available and self.is_open)
        begin(self._publish(), self._tasks)

    def engine_died(self, model: str) -> None:
        """Notes that a model's engines have failed for good. The server ends if those of all models have."""
        self._dead.add(model)
        self._metrics.set_ready(model, False)
        self._end_without_engines()
        begin(self._publish(), self._tasks)

    def model_dropped(self, model: str) -> None:
        """Forgets a model that is no longer served. The server ends if only models that have failed are left."""
        self._unavailable.discard(model)
        self._dead.discard(model)
        self._metrics.forget_ready(model)
        self._end_without_engines()
        begin(self._publish(), self._tasks)

    def _end_without_engines(self) -> None:
        served = self._served()
        if served and self._dead.issuperset(served):
            log.error("no model has an engine any more: the server ends")
            self.exit_status = ENGINE_DIED
            self._ending.set()

    def _served(self) -> list[str]:
        """Returns the names of the served models; none before the catalogue is open."""
        return [routes.stable.name for routes in self._catalogue.all()] if self._catalogue.is_open else []

    async def ending(self) -> None:
        await self._ending.wait()

    async def drain(self, engines: Sequence[EngineClient], seconds: float) -> None:
        """Refuses new requests, lets accepted ones finish within `seconds`, and fails the rest."""
        for engine in engines:
            engine.drain()
        log.info("draining", extra={"drain_seconds": seconds})
        finished: asyncio.Future[Any] = asyncio.gather(*(engine.finished() for engine in engines))
        hurrying: asyncio.Future[Any] = asyncio.create_task(self._hurrying.wait())
        await asyncio.wait({finished, hurrying}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        hurrying.cancel()
        await asyncio.gather(finished, hurrying, return_exceptions=True)
        for engine in engines:
            engine.stop()

    async def _publish(self) -> None:
        states = {"": self.is_serving, SERVICE_NAME: self.is_serving, STARTUP: self._has_been_open, LIVENESS: True}
        for service, holds in states.items():
            await self.health.set(service, SERVING if holds else NOT_SERVING)

    def _on_signal(self, name: str) -> None:
        log.info("signal", extra={"signal": name})
        if self._ending.is_set():
            self._hurrying.set()
        self._ending.set()
