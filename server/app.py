"""The whole server: sockets, models, engines, from the start to the exit status.

The sockets are bound first, so that a port in use is reported before bundles are loaded, which may take minutes. Health
is answered at once: NOT_SERVING until every bundle has been opened, its graphs loaded, its golden examples decoded and
its engine started. Until then every other call is UNAVAILABLE.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.command import give_up_output
from attendant.runtime.requests.model import limits_in_force
from attendant.server.access.access import open_access
from attendant.server.config import ServerConfig
from attendant.server.engine.answer_room import AnswerRoom
from attendant.server.engine.door import DoorLimits
from attendant.server.engine.remote.worker_pool import WorkerPool
from attendant.server.engine.runner import EngineRunner
from attendant.server.models import Catalogue, ServedModel
from attendant.server.observability.endpoint import http_app
from attendant.server.observability.metrics import Metrics
from attendant.server.opening import in_daemon_thread, open_bundles
from attendant.server.process.http import http_server
from attendant.server.process.lifecycle import Lifecycle
from attendant.server.process.listening import allow_descriptors, authority, bind, close, grpc_server
from attendant.server.process.spawning import WorkerProcesses
from attendant.server.servicers.incoming import Bounds, Incoming

log = logging.getLogger(__name__)

T = TypeVar("T")

BULK_PER_ROW = 2
"""Bulk requests that are let in, per row: one that runs, and one more among which the next is chosen."""


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM, SIGINT or the death of an engine; returns the exit status.

    Raises:
        UserError: a port, a bundle, a provider or a file of credentials that can't be had.
    """
    access = open_access(config)
    metrics = Metrics(CollectorRegistry())
    catalogue = Catalogue()
    lifecycle = Lifecycle()
    incoming = Incoming(metrics, Bounds(max_streams=config.max_streams))
    answer_room = AnswerRoom(unread_seconds=config.unread_seconds)
    metrics.watch_streams(answer_room)
    server = grpc_server(
        catalogue,
        metrics,
        lifecycle.health,
        incoming,
        answer_room,
        access,
        max_connections=config.max_connections,
        max_calls_per_connection=config.max_calls_per_connection,
    )
    allow_descriptors(config.max_connections)
    port = bind(server, config.host, config.port, access.credentials())
    access.warn_of_strangers(config.host)
    app = http_app(metrics.registry, lambda: lifecycle.is_serving)
    async with AsyncExitStack() as until_the_end:
        metrics_port = await until_the_end.enter_async_context(http_server(app, config.host, config.metrics_port))
        processes = until_the_end.enter_context(WorkerProcesses(config))
        until_the_end.enter_context(access.following_files())
        lifecycle.heed_signals()
        await lifecycle.tell(serving=False)
        await server.start()
        try:
            models = await _unless_ending(lifecycle, load_models(config, processes, metrics, lifecycle))
            if models is None:
                return lifecycle.exit_status
            catalogue.open(models)
            await _announce(lifecycle, models, serving=True)
            names = ", ".join(f"{m.name} (version {m.manifest.version}, {m.precision}, {m.provider})" for m in models)
            addresses = authority(config.host, port), authority(config.host, metrics_port)
            log.info("serving", extra={"target": addresses[0], "metrics": addresses[1], "models": len(models)})
            try:
                print(f"serving on {addresses[0]}: {names}; metrics on {addresses[1]}", flush=True)
            except OSError:  # its disk is full; the log says the same
                give_up_output()
            await lifecycle.ending()
            catalogue.closing.set()
            await _announce(lifecycle, models, serving=False)
            await lifecycle.drain([model.runner for model in models], config.drain_seconds)
        finally:
            await close(server, port, incoming)
    log.info("ended", extra={"status": lifecycle.exit_status})
    return lifecycle.exit_status


async def load_models(
    config: ServerConfig, processes: WorkerProcesses, metrics: Metrics, lifecycle: Lifecycle
) -> list[ServedModel]:
    """Opens every bundle here, and has it checked, loaded and decoded in processes of its own.

    Raises:
        UserError: a bundle that is refused; no such precision or provider here.
    """
    bundles = await in_daemon_thread(partial(open_bundles, config))
    return [await start_model(bundle, config, processes, metrics, lifecycle) for bundle in bundles]


async def start_model(
    bundle: Bundle, config: ServerConfig, processes: WorkerProcesses, metrics: Metrics, lifecycle: Lifecycle
) -> ServedModel:
    """Starts a model's engines, and waits until they are ready.

    Raises:
        UserError: see `load_models`.
    """
    manifest = bundle.manifest
    max_rows = config.workers * config.max_rows
    rendered = metrics.of_model(manifest.name)

    def on_available(available: bool) -> None:
        rendered.set_ready(available and lifecycle.serving)
        lifecycle.engine_available(manifest.name, available)

    pool = WorkerPool(
        partial(processes.start, bundle.path),
        config.workers,
        version=manifest.version,
        max_rows=config.max_rows,
        hang_seconds=config.hang_seconds,
        max_restarts=config.max_restarts,
        on_step=rendered.stepped,
        on_restart=rendered.restarted,
    )
    runner = EngineRunner(
        pool,
        limits=DoorLimits(
            max_waiting=config.max_waiting,
            max_wait_seconds=config.max_wait_seconds,
            max_client_requests=config.max_client_requests,
            max_client_rows=config.max_client_rows,
            light_rows=config.light_rows,
        ),
        max_bulk=BULK_PER_ROW * max_rows,
        on_death=lifecycle.engine_died,
        on_prediction=rendered.predicted,
        on_available=on_available,
    )
    if manifest.reference is not None:
        rendered.watch_drift(manifest.reference)
    await runner.start()
    rendered.watch(
        runner, rows_limit=max_rows, version=manifest.version, precision=pool.precision, provider=config.provider
    )
    return ServedModel(
        bundle=bundle,
        precision=pool.precision,
        provider=config.provider,
        limits=limits_in_force(manifest, config.max_rows),
        runner=runner,
        metrics=rendered,
    )


async def _unless_ending(lifecycle: Lifecycle, load: Coroutine[Any, Any, T]) -> T | None:
    """What is loaded; None where a signal came first."""
    loading = asyncio.ensure_future(load)
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
