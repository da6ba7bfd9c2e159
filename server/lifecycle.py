"""From configuration to SERVING, and from a signal, or a dead engine, to the exit status.

Order: bundles are opened and checked, graphs loaded, golden examples decoded; only then the sockets are bound, the
engines started and health set to SERVING. A process that listens can answer.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from threading import Thread
from wsgiref.simple_server import WSGIServer

import grpc
from attendant_client.v1 import seq2seq_pb2 as pb
from attendant_client.v1 import seq2seq_pb2_grpc as pb_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from runtime.errors import UserError
from server.config import ServerConfig
from server.engine.request import StepStats
from server.metrics import Metrics
from server.model import LoadedModel, ServedModel, load_model
from server.servicers.observed import GrpcMetrics
from server.servicers.seq2seq import Seq2SeqServicer

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Seq2Seq"].full_name
DRAINED, ENGINE_DIED = 0, 1
DRAIN_POLL_SECONDS = 0.01
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def load_models(config: ServerConfig) -> list[LoadedModel]:
    """Everything that can refuse to be served does so here, before anything listens.

    Raises:
        UserError: a bundle, a provider or a precision that can't be served; the same name twice.
    """
    loaded: list[LoadedModel] = []
    for path in config.bundles:
        began = time.perf_counter()
        model = load_model(str(path), config)
        if model.name in {other.name for other in loaded}:
            raise UserError(f"{path}: a model named {model.name} is served already; export one under another --name")
        loaded.append(model)
        log.info("checked", extra={"model": model.name, "seconds": round(time.perf_counter() - began, 3)})
    return loaded


class Server:
    """One process: gRPC, metrics over HTTP, and an engine per model."""

    def __init__(self, config: ServerConfig, loaded: Sequence[LoadedModel]) -> None:
        self._config = config
        self._loaded = loaded
        self._metrics = Metrics(CollectorRegistry())
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs leave it out
        self._end = asyncio.Event()
        self._exit_status = DRAINED
        self._models: dict[str, ServedModel] = {}
        # One server on a port: two would share its connections silently.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", config.max_message_bytes)]
        self._grpc = grpc.aio.server(options=options, interceptors=[GrpcMetrics(self._metrics.registry)])

    async def run(self) -> int:
        """Serves until SIGTERM, SIGINT or the death of an engine; returns the exit status.

        Raises:
            UserError: a port is taken.
        """
        port = self._bind()
        metrics_server, _ = self._start_metrics()
        metrics_port = metrics_server.server_port
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._end.set)
        self._start_engines()
        self._add_services()
        await self._grpc.start()
        await self._set_health(SERVING)
        for model in self._models.values():
            facts = {"version": model.version, "precision": model.precision, "provider": model.provider}
            log.info("serving", extra={"model": model.name, **facts})
        host = self._config.host
        names = ", ".join(f"{m.name} ({m.version}, {m.precision}, {m.provider})" for m in self._models.values())
        print(f"serving on {host}:{port}: {names}; metrics on {host}:{metrics_port}", flush=True)
        try:
            await self._end.wait()
            await self._shut_down()
        finally:
            metrics_server.shutdown()
        return self._exit_status

    def _bind(self) -> int:
        address = f"{self._config.host}:{self._config.port}"
        try:
            port = self._grpc.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise UserError(
                f"--port: can't listen on {address}, it is in use or not ours; choose another, or 0 for any"
            )
        return int(port)

    def _start_metrics(self) -> tuple[WSGIServer, Thread]:
        host, port = self._config.host, self._config.metrics_port
        try:
            return start_http_server(port, host, self._metrics.registry)
        except OSError as error:
            raise UserError(
                f"--metrics-port: can't listen on {host}:{port} ({error.strerror}); choose another, or 0 for a free one"
            ) from None

    def _start_engines(self) -> None:
        for loaded in self._loaded:
            name = loaded.name

            def on_step(stats: StepStats, name: str = name) -> None:
                self._metrics.step(name, stats)

            model = loaded.serve(on_step, self._die)
            self._models[name] = model
            self._metrics.announce(
                name,
                version=model.version,
                precision=model.precision,
                provider=model.provider,
                max_rows=self._config.max_rows,
            )
            runner = model.runner
            self._metrics.watch(name, runner)

    def _add_services(self) -> None:
        servicer = Seq2SeqServicer(self._models, self._metrics)
        pb_grpc.add_Seq2SeqServicer_to_server(servicer, self._grpc)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)

    def _die(self) -> None:
        """An engine's thread says that it has failed: the process ends, and whoever watches it starts another."""

        def end() -> None:
            self._exit_status = ENGINE_DIED
            self._end.set()

        self._loop.call_soon_threadsafe(end)

    async def _set_health(self, status: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)
        for name in self._models:
            self._metrics.ready.labels(name).set(status == SERVING)

    async def _shut_down(self) -> None:
        await self._set_health(NOT_SERVING)
        runners = [model.runner for model in self._models.values()]
        for runner in runners:
            runner.drain()
        pending = sum(runner.num_pending for runner in runners)
        log.info("draining", extra={"pending": pending, "drain_seconds": self._config.drain_seconds})
        deadline = time.monotonic() + (self._config.drain_seconds if self._exit_status == DRAINED else 0)
        while any(runner.num_pending for runner in runners) and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        for runner in runners:
            await asyncio.to_thread(runner.stop)
        # Handlers that have their outcome still write their answers.
        await self._grpc.stop(grace=1.0)
