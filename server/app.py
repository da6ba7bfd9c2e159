"""The whole server: sockets, models, engines, from the start to the exit status.

The sockets are bound first, so that a port in use is reported before bundles are loaded, which may take minutes. Health
is answered at once: NOT_SERVING until every bundle has been opened, its graphs loaded, its golden examples decoded and
its engine started. Until then every other call is UNAVAILABLE.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry

from attendant.runtime.bundle.bundle import Bundle
from attendant.server.config import ServerConfig
from attendant.server.engine.host import EngineHost
from attendant.server.engine.remote.worker_pool import WorkerPool
from attendant.server.engine.request import StepStats
from attendant.server.engine.runner import EngineRunner
from attendant.server.engine.thread import EngineThread
from attendant.server.loading import in_daemon_thread, load_engine, open_bundles
from attendant.server.models import Catalogue, ServedModel, limits_in_force, precision_of
from attendant.server.observability.endpoint import metrics_endpoint
from attendant.server.observability.metrics import Metrics
from attendant.server.process.lifecycle import Lifecycle
from attendant.server.process.listening import authority, bind, grpc_server
from attendant.server.process.spawning import WorkerProcesses

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
"""At the end of the server: how long a call that has its outcome may take to write it."""

T = TypeVar("T")

BULK_PER_ROW = 2
"""Bulk requests that are let in, per row: one that runs, and one more among which the next is chosen."""


class HostMaker(Protocol):
    """Makes the host of an engine that has been loaded."""

    def __call__(self, *, on_step: Callable[[StepStats], None]) -> EngineHost: ...


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM, SIGINT or the death of an engine; returns the exit status.

    Raises:
        UserError: a port, a bundle or a provider that can't be had.
    """
    metrics = Metrics(CollectorRegistry())
    catalogue = Catalogue()
    lifecycle = Lifecycle()
    server = grpc_server(catalogue, metrics, lifecycle.health)
    port = bind(server, config.host, config.port)
    with (
        metrics_endpoint(config.host, config.metrics_port, metrics.registry) as metrics_port,
        WorkerProcesses() as processes,
    ):
        lifecycle.heed_signals()
        await lifecycle.tell(serving=False)
        await server.start()
        try:
            loaded = await _unless_ending(lifecycle, partial(load_models, config, processes))
            if loaded is None:
                return lifecycle.exit_status
            models = [await start_model(bundle, make, config, metrics, lifecycle) for bundle, make in loaded]
            catalogue.open(models)
            await _announce(lifecycle, models, serving=True)
            names = ", ".join(f"{m.name} (version {m.manifest.version}, {m.precision}, {m.provider})" for m in models)
            addresses = authority(config.host, port), authority(config.host, metrics_port)
            print(f"serving on {addresses[0]}: {names}; metrics on {addresses[1]}", flush=True)
            log.info("serving", extra={"target": addresses[0], "metrics": addresses[1], "models": len(models)})
            await lifecycle.ending()
            catalogue.closing.set()
            await _announce(lifecycle, models, serving=False)
            await lifecycle.drain([model.runner for model in models], config.drain_seconds)
        finally:
            await server.stop(ANSWER_SECONDS)
    log.info("ended", extra={"status": lifecycle.exit_status})
    return lifecycle.exit_status


def load_models(config: ServerConfig, processes: WorkerProcesses) -> list[tuple[Bundle, HostMaker]]:
    """Checks and loads every bundle: here, or in processes of their own where there are several workers.

    Raises:
        UserError: a bundle that is refused; no such precision or provider here.
    """

    def load(bundle: Bundle) -> HostMaker:
        if config.workers == 1:
            return partial(EngineThread, bundle.manifest.name, load_engine(bundle, config))
        return partial(WorkerPool, processes.serve(bundle, config), max_rows=config.max_rows)

    return [(bundle, load(bundle)) for bundle in open_bundles(config)]


async def start_model(
    bundle: Bundle, make_host: HostMaker, config: ServerConfig, metrics: Metrics, lifecycle: Lifecycle
) -> ServedModel:
    """Starts a model's engine."""
    manifest = bundle.manifest
    precision, max_rows = precision_of(manifest, config), config.workers * config.max_rows
    rendered = metrics.of_model(manifest.name)
    runner = EngineRunner(
        make_host(on_step=rendered.stepped),
        max_waiting=config.max_waiting,
        max_bulk=BULK_PER_ROW * max_rows,
        on_death=lifecycle.engine_died,
    )
    rendered.watch(runner, rows_limit=max_rows, version=manifest.version, precision=precision, provider=config.provider)
    if manifest.reference is not None:
        rendered.watch_drift(manifest.reference)
    await runner.start()
    return ServedModel(
        bundle=bundle,
        precision=precision,
        provider=config.provider,
        limits=limits_in_force(manifest, config.max_rows),
        runner=runner,
        metrics=rendered,
    )


async def _unless_ending(lifecycle: Lifecycle, load: Callable[[], T]) -> T | None:
    """What is loaded; None where a signal came first."""
    loading = asyncio.ensure_future(in_daemon_thread(load))
    ending = asyncio.ensure_future(lifecycle.ending())
    await asyncio.wait({loading, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if loading.done():
        return loading.result()
    loading.cancel()
    return None


async def _announce(lifecycle: Lifecycle, models: list[ServedModel], serving: bool) -> None:
    await lifecycle.tell(serving)
    for model in models:
        model.metrics.set_ready(serving)
