"""The whole server: sockets, models, engines, from the start to the exit status.

The sockets are bound first, so that a port in use is reported before bundles are loaded, which may take minutes. Health
is answered at once: NOT_SERVING until every bundle has been opened, its graphs loaded, its golden examples decoded and
its engine started. Until then every other call is UNAVAILABLE.
"""

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from attendant.runtime.bundle.bundle import Bundle, limits_in_force
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.command import give_up_output
from attendant.runtime.errors import UserError
from attendant.server.auth import Access, Gate, open_access
from attendant.server.call import RequestLog, Rpc, rpcs_of
from attendant.server.catalogue import Catalogue, Routes, ServedModel
from attendant.server.config import ServerConfig
from attendant.server.engine.client import EngineClient
from attendant.server.engine.loading import in_daemon_thread, open_bundles, open_within_limits
from attendant.server.engine.pool import WorkerLost, WorkerPool
from attendant.server.engine.processes import WorkerProcesses
from attendant.server.grpc import port as grpc_port
from attendant.server.grpc.handlers import Bounds, Handlers
from attendant.server.grpc.library_services import library_rpcs, reflection_rpcs
from attendant.server.grpc.requests import AnswerBudget
from attendant.server.grpc.service import SERVICE, Seq2SeqServicer
from attendant.server.http.app import HttpApi, add_pages, guard_hosts, http_app
from attendant.server.http.port import http_server
from attendant.server.inference.http import add_inference
from attendant.server.inference.service import InferenceServicer
from attendant.server.lifecycle import ENGINE_DIED, Health, Lifecycle
from attendant.server.metrics import Metrics
from attendant.server.repository import Reconciler, is_repository, look_into
from attendant.server.tracing import Tracer, tracing

log = logging.getLogger(__name__)

BULK_PER_ROW = 2  # Bulk requests in the engine per row: one that runs, and one of those from which the next is chosen.
OBJECTS_BETWEEN_COLLECTIONS = 20_000
"""With Python's own 700 the collector runs ten times while a list of requests is answered: a tenth of the time."""


async def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM, SIGINT or the death of an engine; returns the exit status.

    Raises:
        UserError: a port, a bundle, a provider or a file of credentials can't be used.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    with tracing(config.traces) as tracer:
        return await _serve(config, tracer)


async def _serve(config: ServerConfig, tracer: Tracer | None) -> int:
    access = open_access(config)
    metrics, catalogue = Metrics(CollectorRegistry()), Catalogue()
    lifecycle = Lifecycle(catalogue, metrics)
    answer_budget = AnswerBudget(unread_seconds=config.unread_seconds)
    metrics.watch_server(answer_budget.gauges())
    processes = WorkerProcesses(config)
    start = partial(start_model, config=config, processes=processes, metrics=metrics)
    reconciler = repository_reconciler(config, start, catalogue, metrics, lifecycle)
    # Before sockets are made: gRPC logs errors if a server that has not started is interrupted.
    lifecycle.install_signal_handlers(partial(_reload, access, reconciler, catalogue))
    requests = RequestLog(
        catalogue, metrics, level=logging.INFO if config.log_requests == "on" else logging.DEBUG, tracer=tracer
    )
    gate = Gate(access, requests)
    seq2seq = rpcs_of(SERVICE, Seq2SeqServicer(requests, answer_budget))
    inference: dict[str, Rpc] = {}
    if config.no_open_inference == "off":
        servicer = InferenceServicer(requests, reconciler, lambda: lifecycle.is_serving)
        inference = servicer.rpcs(access.health)
    handlers = Handlers(
        grpc_methods(seq2seq, inference, lifecycle.health, access),
        gate,
        bounds=Bounds(max_streams=config.max_streams),
        answer_budget=answer_budget,
        hang_up=grpc_port.hang_up_on,
    )
    max_connections, max_accepted = grpc_port.allowed_connections(config.max_connections)
    make_server = partial(
        grpc_port.grpc_server,
        handlers,
        max_connections=max_accepted,
        max_calls_per_connection=config.max_calls_per_connection,
        connection_seconds=config.connection_seconds,
    )
    port = grpc_port.GrpcPort(make_server, metrics, config.host, config.port, access.grpc_credentials())
    access.warn_if_exposed(config.host)
    app = http_app(metrics.registry, lambda: lifecycle.is_serving)
    has_api = config.no_http == "off"
    if has_api:
        add_http_api(app, seq2seq, inference, gate, origins=config.http_origins)
    guard_hosts(app, requests, config.host)
    tls = access.http_context if has_api else lambda: None
    async with AsyncExitStack() as until_the_end:
        metrics_port = await until_the_end.enter_async_context(http_server(app, config.host, config.metrics_port, tls))
        until_the_end.enter_context(processes)
        until_the_end.enter_context(access.following_files())
        await lifecycle.set_open(False)
        await port.start()
        until_the_end.enter_context(grpc_port.bounded(port.port, max_connections, handlers.connection_calls))
        metrics.watch_server(
            {
                "grpc_connections": partial(grpc_port.num_connections, port.port),
                "http_connections": partial(grpc_port.num_connections, metrics_port),
            }
        )
        try:
            loading = load_models(config, start, catalogue, lifecycle, reconciler)
            if not await _done_unless_ending(lifecycle, loading):
                return lifecycle.exit_status
            catalogue.open()
            await lifecycle.set_open(True)
            _announce(config, catalogue, port.port, metrics_port, f"http{'s' if tls() else ''}" if has_api else "")
            with reconciler.following(config.repository_seconds):
                await lifecycle.ending()
            catalogue.closing.set()
            await lifecycle.set_open(False)
            await lifecycle.drain([*catalogue.runners(), *reconciler.ending], config.drain_seconds)
        finally:
            await port.close(handlers.answered)
    log.info("ended", extra={"status": lifecycle.exit_status})
    return lifecycle.exit_status


def grpc_methods(
    seq2seq: Mapping[str, Rpc], inference: Mapping[str, Rpc], health_servicer: Health, access: Access
) -> list[Rpc]:
    """Makes the table of all methods of the gRPC port. Without `inference` there is no Open Inference Protocol."""
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    health = library_rpcs(service, health_servicer, access.health)
    rpcs = [*seq2seq.values(), *inference.values(), *health]
    if access.reflection != "off":
        services = list(dict.fromkeys(rpc.service for rpc in rpcs))
        rpcs += reflection_rpcs(services, access.reflection)
    return rpcs


def add_http_api(
    app: Starlette, seq2seq: Mapping[str, Rpc], inference: Mapping[str, Rpc], gate: Gate, *, origins: Sequence[str]
) -> None:
    """Adds the API, its OpenAPI document and the playground to the application of the HTTP port."""
    api = HttpApi(app, gate, origins=origins)
    api.add_service(seq2seq)
    if inference:
        add_inference(api, inference)
    add_pages(app, has_tokens=gate.access.tokens is not None, has_inference=bool(inference))


async def _reload(access: Access, reconciler: Reconciler, catalogue: Catalogue) -> None:
    """Reads certificates, tokens and repositories again, at once."""
    log.info("reloading")
    await asyncio.to_thread(access.reload)
    if catalogue.is_open:
        await reconciler.follow_now()


def _announce(config: ServerConfig, catalogue: Catalogue, port: int, metrics_port: int, scheme: str) -> None:
    """Writes the models that are served at first to the log, and then to standard output; versions may come and go.

    Args:
        scheme: of the playground's address; empty if there is no playground.
    """
    target, metrics = grpc_port.authority(config.host, port), grpc_port.authority(config.host, metrics_port)
    models = [routes.stable for routes in catalogue.all()]
    names = ", ".join(f"{m.name} (version {m.manifest.version}, {m.precision}, {m.provider})" for m in models)
    log.info("serving", extra={"target": target, "metrics": metrics, "models": len(models)})
    try:
        page = f"playground on {scheme}://{metrics}/; " if scheme else ""
        line = f"serving on {target}: {names}; {page}metrics on {metrics}"
        print(json.dumps({"message": line}) if config.log_format == "json" else line, flush=True)
    except OSError:  # its disk is full; the log has the same
        give_up_output()


StartModel = Callable[..., Awaitable[ServedModel]]
"""`start_model` with the configuration, the processes and the metrics of the server."""


def repository_reconciler(
    config: ServerConfig, start: StartModel, catalogue: Catalogue, metrics: Metrics, lifecycle: Lifecycle
) -> Reconciler:
    """Makes the reconciler of the repositories among the bundles."""

    async def start_version(path: Path, label: str, *, name: str, **engine: Any) -> ServedModel:
        bundle = await in_daemon_thread(partial(open_within_limits, path, config))
        if bundle.manifest.name != name:
            raise UserError(f"the bundle {path} holds the model {bundle.manifest.name}; its folder must be named so")
        return await start(bundle, label, **engine)

    repositories = [path for path in config.bundles if is_repository(path)]
    return Reconciler(repositories, catalogue, metrics, start_version, lifecycle)


async def load_models(
    config: ServerConfig, start: StartModel, catalogue: Catalogue, lifecycle: Lifecycle, reconciler: Reconciler
) -> None:
    """Opens every bundle, and starts its engines, which check it in processes of their own; then the repositories'.

    Raises:
        UserError: a bundle is refused, a folder can't be read, or the precision or provider is not available.
    """
    alone = tuple(path for path in config.bundles if path not in reconciler.repositories)
    for path in alone:
        if path.is_dir() and not (path / MANIFEST_NAME).exists():
            look_into(path)
            remedy = f"a bundle has a {MANIFEST_NAME}, and a repository has bundles in its folders NAME/VERSION/"
            raise UserError(f"{path} is neither a bundle nor a repository: {remedy}, e.g. g2p-en/1/")
    bundles = await in_daemon_thread(partial(open_bundles, replace(config, bundles=alone)))
    num_models = len(bundles) + await reconciler.look([bundle.manifest.name for bundle in bundles])
    for bundle in bundles:
        manifest = bundle.manifest
        model = await start(
            bundle,
            manifest.version,
            num_models=num_models,
            on_available=partial(lifecycle.engine_available, manifest.name),
            on_death=partial(lifecycle.engine_died, manifest.name),
        )
        model.metrics.watch_drift(manifest.reference_of(model.precision))
        catalogue.put(Routes(stable=model))
    await reconciler.open()


async def start_model(
    bundle: Bundle,
    label: str,
    *,
    config: ServerConfig,
    processes: WorkerProcesses,
    metrics: Metrics,
    num_models: int,
    on_available: Callable[[bool], None],
    on_death: Callable[[], None],
) -> ServedModel:
    """Starts a model's engines, and waits until they are ready. Raises the errors of WorkerPool.start.

    Args:
        num_models: that share the threads.
    """
    manifest = bundle.manifest
    max_rows = config.workers * config.max_rows
    rendered = metrics.of_model(manifest.name)
    group = processes.group(bundle.path, num_models)
    pool = WorkerPool(
        group.start,
        config,
        version=manifest.version,
        on_step=rendered.stepped,
        on_available=on_available,
        shared_rows=processes.rows,
        on_restart=rendered.restarted,
        on_stop=group.close,
    )
    max_bulk = BULK_PER_ROW * max_rows
    runner = EngineClient(pool, config, max_bulk=max_bulk, on_death=on_death, on_prediction=rendered.predicted)
    await runner.start()
    rendered.watch(
        runner, rows_limit=max_rows, version=manifest.version, precision=pool.precision, provider=config.provider
    )
    return ServedModel(
        bundle=bundle,
        label=label,
        precision=pool.precision,
        provider=config.provider,
        limits=limits_in_force(manifest, config.max_rows),
        runner=runner,
        metrics=rendered,
    )


async def _done_unless_ending(lifecycle: Lifecycle, load: Coroutine[Any, Any, None]) -> bool:
    """Returns True when everything is loaded, or False if a signal came first or a worker could not be started."""
    loading = asyncio.ensure_future(load)
    ending = asyncio.ensure_future(lifecycle.ending())
    await asyncio.wait({loading, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if loading.done():
        try:
            loading.result()
            return True
        except WorkerLost as error:
            log.error("a worker process can't be started", extra={"reason": str(error)})
            lifecycle.exit_status = ENGINE_DIED
            return False
    loading.cancel()
    return False
