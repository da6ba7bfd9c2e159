"""Serves on Ray: replicas with the server's servicer and engines of their own, behind Ray's gRPC proxies.

The proxies replace the server's front: they read the calls, choose a replica, and pass each request on as a message.
The server's code loads, checks and answers in a replica.
"""

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from prometheus_client import CollectorRegistry
from ray import serve

from attendant.runtime.bundle.bundle import read_manifest
from attendant.runtime.errors import UserError, Violation
from attendant.server.app import start_model
from attendant.server.auth import open_access
from attendant.server.call import Call, RequestLog, name_in_certificate
from attendant.server.catalogue import Catalogue, Retirement, Routes
from attendant.server.config import ServerConfig
from attendant.server.engine.loading import in_daemon_thread, open_within_limits
from attendant.server.engine.processes import WorkerProcesses
from attendant.server.errors import Failed, InvalidArgument, Unauthenticated
from attendant.server.grpc.handlers import trailing_metadata
from attendant.server.grpc.requests import AnswerBudget
from attendant.server.grpc.service import Seq2SeqServicer
from attendant.server.metrics import Metrics


class RayCall(Call):
    """A call that one of Ray's proxies has taken."""

    def __init__(self, ray_context: Any) -> None:
        super().__init__(ray_context.peer())
        self._ray_context = ray_context

    def metadata(self) -> Iterable[tuple[str, str | bytes]]:
        metadata: Iterable[tuple[str, str | bytes]] = self._ray_context.invocation_metadata()
        return metadata

    def time_remaining(self) -> None:
        """Returns None: Ray does not name the deadline, but cancels a call whose deadline has passed."""

    def certificate_name(self) -> str:
        return name_in_certificate(self._ray_context.auth_context())

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Sets the status with which Ray's proxy ends the call, if its method fails. Raises grpc.aio.AbortError."""
        try:
            yield
        except Failed as failed:
            self._ray_context.set_code(grpc.StatusCode[failed.error.code])
            self._ray_context.set_details(str(failed.error))
            self._ray_context.set_trailing_metadata(list(trailing_metadata(failed.error, self.request_id)))
            raise grpc.aio.AbortError from None


class HeldModels(Catalogue):
    """The models that a replica has loaded, of several that requests may name."""

    def __init__(self, names: Collection[str]) -> None:
        """Starts without models; `names` are those that requests may name."""
        super().__init__()
        self._names = names

    def routes(self, name: str) -> Routes:
        if not name and len(self._names) > 1:
            raise InvalidArgument(Violation("model", "empty", f"one of {', '.join(sorted(self._names))}"))
        return super().routes(name)


class Held:
    """Represents a model in Ray's multiplexer, which drops it to unload the model."""


class Replica:
    """The deployment. Ray calls its methods by the names of the proto, with a message or an iterator, and a context."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, bundles: Mapping[str, tuple[Path, str]], config: ServerConfig, models_held: int
    ) -> None:
        """Loads `models_held` models; another one that a request names replaces the least recently used.

        Args:
            bundles: a model's name -> the path of its bundle on this machine, and the bundle's required version.

        Raises:
            UserError: a bundle or a file of credentials can't be opened.
        """
        self._bundles = bundles
        self._config = config
        self._models_held = models_held
        self._metrics = Metrics(CollectorRegistry())
        self._catalogue = HeldModels(bundles)
        self._catalogue.open()
        answer_budget = AnswerBudget(unread_seconds=config.unread_seconds)
        self._log = RequestLog(self._catalogue, self._metrics)
        self._servicer = Seq2SeqServicer(self._log, answer_budget)
        self._processes = WorkerProcesses(config)
        self._access = open_access(config)
        self._until_the_end = ExitStack()
        self._until_the_end.enter_context(self._access.following_files())
        self._retirement = Retirement()
        self._has_failed = False
        self._hold = serve.multiplexed(max_num_models_per_replica=models_held)(self._loader())
        for name in list(bundles)[:models_held]:
            await self._hold(name)

    async def check_health(self) -> None:
        """Raises RuntimeError after the death of an engine: Ray calls this, and replaces the replica."""
        if self._has_failed:
            raise RuntimeError("an engine has failed for good")

    async def Generate(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        return await self._answer(self._servicer.Generate, request, grpc_context)

    async def GenerateMany(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        return await self._answer(self._servicer.GenerateMany, request, grpc_context, request.requests)

    async def Score(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        return await self._answer(self._servicer.Score, request, grpc_context)

    async def GetModel(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        return await self._answer(self._servicer.GetModel, request, grpc_context)

    async def ListModels(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        return await self._answer(self._servicer.ListModels, request, grpc_context, [])

    async def GenerateStream(self, request: Any, grpc_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        call = RayCall(grpc_context)
        with call.failing():
            self._let_in("GenerateStream", call)
            await self._provide(request)
            async for message in self._servicer.GenerateStream(request, call):
                yield message

    async def GenerateBatch(self, requests: AsyncIterator[Any], grpc_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        call = RayCall(grpc_context)
        with call.failing():
            self._let_in("GenerateBatch", call)
            provided = self._provided(requests, lambda message: [message])
            async for message in self._servicer.GenerateBatch(provided, call):
                yield message

    async def GenerateBatches(  # noqa: N802
        self, requests: AsyncIterator[Any], grpc_context: Any
    ) -> AsyncIterator[Any]:
        call = RayCall(grpc_context)
        with call.failing():
            self._let_in("GenerateBatches", call)
            provided = self._provided(requests, lambda message: message.requests)
            async for message in self._servicer.GenerateBatches(provided, call):
                yield message

    async def _provided(
        self, messages: AsyncIterator[Any], requests_of: Callable[[Any], Iterable[Any]]
    ) -> AsyncIterator[Any]:
        """Yields the messages of a stream, each after the models that its requests name have been loaded."""
        async for message in messages:
            for request in requests_of(message):
                await self._provide(request)
            yield message

    async def _answer(
        self, method: Callable[[Any, Any], Any], request: Any, ray_context: Any, named: Sequence[Any] | None = None
    ) -> Any:
        """Calls a method. After an error, Ray takes code and details from the context, not from the returned value.

        Args:
            named: the messages that name models; if None, the request itself.
        """
        call = RayCall(ray_context)
        try:
            with call.failing():
                self._let_in(method.__name__, call)
                for message in [request] if named is None else named:
                    await self._provide(message)
                return await method(request, call)
        except grpc.aio.AbortError:
            return Empty()

    def _let_in(self, method: str, call: RayCall) -> None:
        """Sets the call's client. Raises Failed if a token is needed, and the call has no known one."""
        try:
            call.client = self._access.client_of(call)
        except Unauthenticated as error:
            self._log.refused(method, call, error)
            raise Failed(error) from None

    async def _provide(self, request: Any) -> None:
        """Loads the model that a request names. It stays loaded at least until something else is awaited."""
        if not request.model:
            request.model = serve.get_multiplexed_model_id() or (min(self._bundles) if len(self._bundles) == 1 else "")
        if request.model in self._bundles:
            await self._hold(request.model)

    def _loader(self) -> Callable[[str], Awaitable[Held]]:
        """Returns a function for Ray's multiplexer, which distinguishes functions and methods by their arguments."""

        async def load(name: str) -> Held:
            path, version = self._bundles[name]
            bundle = await in_daemon_thread(partial(open_within_limits, path, self._config))
            if bundle.manifest.version != version:
                raise UserError(f"the bundle {path} is version {bundle.manifest.version} here, must be {version}")
            model = await start_model(
                bundle,
                version,
                config=self._config,
                processes=self._processes,
                metrics=self._metrics,
                num_models=self._models_held,
                on_available=lambda _: None,
                on_death=self._fail,
            )
            self._catalogue.put(Routes(stable=model))
            held = Held()
            weakref.finalize(held, self._unload, name).atexit = False
            return held

        return load

    def _unload(self, name: str) -> None:
        model = self._catalogue.routes(name).stable
        self._catalogue.drop(name)
        self._retirement.add(model)

    def _fail(self) -> None:
        self._has_failed = True


NAME = "attendant"
SERVICERS = ["attendant.server.cluster.proxy.add_seq2seq"]
NO_LINE_PER_CALL = {"enable_access_log": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The number of replicas, and the load of each.

    Attributes:
        ongoing_requests: Ray's target per replica, including waiting requests.
        upscale_seconds, downscale_seconds: delays before replicas are added or removed.
        models_held: models that a replica holds at once; if None, all.
    """

    min_replicas: int
    max_replicas: int
    ongoing_requests: int
    upscale_seconds: float
    downscale_seconds: float
    models_held: int | None


def deploy(config: ServerConfig, scale: Scale) -> None:
    """Serves in the cluster that this process has joined, and returns once the replicas are ready.

    If it serves already, new replicas are loaded alongside the old ones, which end when their requests have been
    answered.

    Raises:
        UserError: a bundle without a manifest; two of one name.
        RuntimeError: Ray's, if the replicas don't start.
    """
    serve.start(
        proxy_location="EveryNode",
        grpc_options={"port": config.port, "grpc_servicer_functions": SERVICERS},
        logging_config=NO_LINE_PER_CALL,
    )
    serve.run(application(config, scale), name=NAME, route_prefix=f"/{NAME}")


def application(config: ServerConfig, scale: Scale) -> serve.Application:
    """See `deploy`."""
    bundles: dict[str, tuple[Path, str]] = {}
    for path in config.bundles:
        manifest = read_manifest(path)
        if manifest.name in bundles:
            raise UserError(f"two bundles hold a model named {manifest.name}: {bundles[manifest.name][0]} and {path}")
        bundles[manifest.name] = path.resolve(), manifest.version
    # Each replica has another working directory.
    config = replace(
        config,
        threads=config.threads or 1,
        tokens=config.tokens and config.tokens.resolve(),
        require_signature=tuple(path.resolve() for path in config.require_signature),
    )
    deployment = serve.deployment(
        Replica,
        name=NAME,
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.ongoing_requests,
            "upscale_delay_s": scale.upscale_seconds,
            "downscale_delay_s": scale.downscale_seconds,
        },
        max_ongoing_requests=config.max_rows,
        max_queued_requests=config.max_waiting,
        max_surge_percent=25,
        graceful_shutdown_timeout_s=config.drain_seconds,
        logging_config=NO_LINE_PER_CALL,
        ray_actor_options={"num_cpus": config.threads, "num_gpus": int(config.provider == "cuda")},
    )
    return deployment.bind(bundles, config, scale.models_held or len(bundles))
