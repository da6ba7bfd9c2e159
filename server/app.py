"""The whole server: sockets, models, engines, from the start to the exit status.

The sockets are bound first, so that a port in use is told before minutes of loading, and health is answered at once:
NOT_SERVING until every bundle has been opened, its graphs loaded, its golden examples decoded and its engine started.
Until then every other call is UNAVAILABLE.
"""

import asyncio
import logging
from functools import partial

from prometheus_client import CollectorRegistry

from server.config import ServerConfig
from server.engine.engine import Engine
from server.engine.runner import EngineRunner
from server.engine.scheduler import Budget
from server.lifecycle import Lifecycle
from server.listening import authority, bind, grpc_server
from server.loading import LoadedModel, in_daemon_thread, load_models
from server.metrics import Metrics
from server.metrics_endpoint import MetricsEndpoint
from server.models import Catalogue, ServedModel

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
"""How long a call that has its outcome may take to write it, when the server ends."""


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
    with MetricsEndpoint(config.host, config.metrics_port, metrics.registry) as endpoint:
        lifecycle.heed_signals()
        await lifecycle.tell(serving=False)
        await server.start()
        try:
            loaded = await _unless_ending(lifecycle, config)
            if loaded is None:
                return lifecycle.exit_status
            models = [start_model(one, config, metrics, lifecycle) for one in loaded]
            catalogue.open(models)
            await _announce(lifecycle, models, serving=True)
            names = ", ".join(f"{m.name} (version {m.manifest.version}, {m.precision}, {m.provider})" for m in models)
            addresses = authority(config.host, port), authority(config.host, endpoint.port)
            print(f"serving on {addresses[0]}: {names}; metrics on {addresses[1]}", flush=True)
            log.info("serving", extra={"target": addresses[0], "metrics": addresses[1], "models": len(models)})
            await lifecycle.ending()
            await _announce(lifecycle, models, serving=False)
            await lifecycle.drain([model.runner for model in models], config.drain_seconds)
        finally:
            await server.stop(ANSWER_SECONDS)
    log.info("ended", extra={"status": lifecycle.exit_status})
    return lifecycle.exit_status


def start_model(loaded: LoadedModel, config: ServerConfig, metrics: Metrics, lifecycle: Lifecycle) -> ServedModel:
    """Starts a model's engine; from the event loop that will await it."""
    manifest = loaded.bundle.manifest
    rendered = metrics.of_model(manifest.name)
    budget = Budget(max_rows=config.max_rows, max_source_positions=config.max_source_positions)
    runner = EngineRunner(
        manifest.name,
        Engine(loaded.stepper, budget),
        max_waiting=config.max_waiting,
        on_step=rendered.stepped,
        on_death=lifecycle.engine_died,
    )
    rendered.watch(
        waiting=lambda: runner.num_waiting,
        running=lambda: runner.num_running,
        rows=lambda: runner.num_rows,
        rows_limit=config.max_rows,
        version=manifest.version,
        precision=loaded.precision,
        provider=loaded.provider,
    )
    runner.start()
    return ServedModel(
        bundle=loaded.bundle,
        precision=loaded.precision,
        provider=loaded.provider,
        limits=loaded.limits,
        runner=runner,
        metrics=rendered,
    )


async def _unless_ending(lifecycle: Lifecycle, config: ServerConfig) -> list[LoadedModel] | None:
    """The loaded models; None where a signal came first."""
    loading = asyncio.ensure_future(in_daemon_thread(partial(load_models, config)))
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
