"""The client: its connection, and one method per call of the API."""

import asyncio
import json
import math
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from itertools import count
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast, overload

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant_client import messages
from attendant_client.bulk import Bulk, in_order, result_of
from attendant_client.errors import AttendantError, InvalidArgument, NotFound, error_of, of_source
from attendant_client.target import DEFAULT_PORT, is_this_machine, with_port
from attendant_client.types import (
    Answers,
    Deadline,
    Delta,
    GenerateOptions,
    Generation,
    HealthStatus,
    ModelInfo,
    RequestOptions,
    Score,
    Source,
    check_names,
)
from attendant_client.v1 import seq2seq_pb2 as pb
from attendant_client.v1 import seq2seq_pb2_grpc as stubs
from attendant_client.version import VERSION

# Attention maps of long sources with many hypotheses pass gRPC's default of 4 MiB.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

KEEPALIVE_MS = 20_000

MAX_RECONNECT_MS = 5_000
"""Longest pause between attempts to connect. gRPC's own is two minutes, longer than a server's restart."""

# gRPC's own retries (gRFC A6), within the call's deadline; the waits are random, around 0.1, 0.2, 0.4 and 0.8 s.
# A server that answers with `grpc-retry-pushback-ms` sets the wait itself, or forbids a retry. No call of the API has
# side effects, so retries are safe. Health checks are not retried.
# If a name has several servers, calls alternate between the reachable ones.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{"service": "attendant.v1.Seq2Seq"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ],
}


AnyGeneration = TypeVar("AnyGeneration", bound=Generation)

AnySource = TypeVar("AnySource", bound=Source)
"""A list of texts is no `list[Source]` to a type checker, because one could append tokens to it."""


class Streamed(Generic[AnyGeneration]):
    """A stream that has the whole answer after the iteration."""

    _generation: AnyGeneration | None = None

    @property
    def generation(self) -> AnyGeneration:
        """The whole answer, after the iteration. Raises RuntimeError before."""
        if self._generation is None:
            raise RuntimeError("generation: is there when the stream has been read to its end")
        return self._generation


class GenerationStream(Streamed[Generation]):
    """Made by `AttendantClient.stream`, iterated over once. Leaving it early frees its rows on the server.

    Raises:
        AttendantError: while it is iterated over.
    """

    def __init__(self, call: Any, request_id: str, timeout: float | None) -> None:
        self._call = call
        self._request_id = request_id
        self._timeout = timeout
        self._is_begun = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        if self._is_begun or self._call.cancelled():  # gRPC's call would raise CancelledError, as if the task had been
            raise RuntimeError("this stream has been read or closed before; make another one")
        self._is_begun = True
        try:
            async for event in self._call:
                if event.WhichOneof("event") == "response":
                    self._generation = messages.generation_of(event.response)
                else:
                    yield Delta(tokens=tuple(event.delta.tokens), text=event.delta.text)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self._request_id, self._timeout) from error
        finally:
            self._call.cancel()

    async def aclose(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()


DEFAULT_TARGET = f"localhost:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_SECONDS = 30.0
MAX_TIMEOUT_SECONDS = 1e9
"""gRPC counts the nanoseconds since 1970 in 64 bits: a later deadline would have passed at once."""

DEFAULT_CONCURRENCY = 512

_REQUEST_ID = "x-request-id"

FORKED = (
    "gRPC does not work in a process that was forked after a client's call: fork before the first call, or start "
    "processes by the method spawn or forkserver of multiprocessing"
)
"""A call would hang there or crash the process, also by a new client."""

_CALLING_PROCESSES: set[int] = set()  # The process that has connected; in a forked process, its parent.


class AttendantClient:
    """A connection to a server, or to a name of several servers.

    It connects at its first call and belongs to the event loop of this call; all tasks of the loop may share it. Every
    call raises `attendant_client.AttendantError`, whose tree `attendant_client.errors` draws; UNAVAILABLE and
    RESOURCE_EXHAUSTED are retried within the deadline first.

    Args:
        target: host:port, or any gRPC name, e.g. unix:///run/attendant.sock. The default port is 50051; a port alone
            is one of this machine. Several servers of a name, or of ipv4:10.0.0.1:50051,10.0.0.2:50051, take turns.
            This machine is reached directly, others through the proxy that the environment names.
        timeout: default limit of a call in seconds; if None, there is no limit.
        tls: encrypt, and verify the server. If None, it is used unless the target is this machine ("localhost:50051",
            "127.0.0.1:50051", "unix:..."). With False, anyone on the network path can read texts and token.
        root_certificates: PEM, instead of the usual ones; implies `tls`.
        client_certificate, client_key: PEM, for a server that requires them; imply `tls`.
        server_name: the name in the server's certificate, if it is not the target's; implies `tls`.
        token: sent as `authorization: Bearer TOKEN`.

    Raises:
        TypeError, ValueError: an invalid argument, or one that excludes or needs another.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        tls: bool | None = None,
        root_certificates: bytes | None = None,
        client_certificate: bytes | None = None,
        client_key: bytes | None = None,
        server_name: str = "",
        token: str | None = None,
    ) -> None:
        self.target = target
        self._timeout = _checked(timeout)
        self._is_closed = False
        for name, value in (
            ("root_certificates", root_certificates),
            ("client_certificate", client_certificate),
            ("client_key", client_key),
        ):
            if not isinstance(value, bytes | None):
                raise TypeError(f"{name}: is {type(value).__name__}, must be PEM as bytes, such as a file's content")
            if value == b"":  # it would mean the default
                raise ValueError(f"{name}: is empty, must be PEM, such as a file's content")
        if not isinstance(tls, bool | None):
            raise TypeError(f"tls: is {type(tls).__name__}, must be True, False or None")
        for name, text in (("server_name", server_name), ("token", token)):
            if not isinstance(text, str | None):
                raise TypeError(f"{name}: is {type(text).__name__}, must be a text")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: holds characters that a header can't have; printable ASCII can")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if (client_certificate is None) != (client_key is None):
            raise ValueError("client_certificate and client_key need each other; one of them is missing")
        needs_tls = bool(root_certificates or client_certificate or server_name)
        if tls is False and needs_tls:
            raise ValueError("tls=False excludes certificates and server_name, which are for TLS")
        address = with_port(target)
        is_local = is_this_machine(address)
        options: list[tuple[str, str | int]] = [
            ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
            ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
            # Detects a server that has vanished while calls wait for it; ours accepts a ping every ten seconds.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            # Not keepalive_timeout_ms, which closes nothing in grpcio 1.85.
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
            ("grpc.primary_user_agent", f"attendant-client/{VERSION}"),
            # For a proxy on another machine, the loopback address is its own.
            ("grpc.enable_http_proxy", int(not is_local)),
        ]
        self._make_channel = partial(grpc.aio.insecure_channel, address, options=options)
        if needs_tls or (not is_local if tls is None else tls):
            credentials = grpc.ssl_channel_credentials(root_certificates, client_key, client_certificate)
            if server_name:
                options.append(("grpc.ssl_target_name_override", server_name))
            self._make_channel = partial(grpc.aio.secure_channel, address, credentials, options=options)
        # Made at the first call, since a channel belongs to an event loop and does not survive a fork.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection; calls in flight are cancelled."""
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close(None)

    @overload
    async def generate(  # type: ignore[overload-overlap]  # a list is a sequence too, but never one source's tokens
        self,
        source: list[AnySource],
        *,
        request_id: str = "",
        return_errors: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...

    @overload
    async def generate(
        self,
        source: list[AnySource],
        *,
        request_id: str = "",
        return_errors: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> list[Generation | AttendantError]: ...

    @overload
    async def generate(
        self, source: Source, *, request_id: str = "", **options: Unpack[GenerateOptions]
    ) -> Generation: ...

    async def generate(
        self,
        source: Source | list[AnySource],
        *,
        request_id: str = "",
        return_errors: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Decodes one source, or each of a list in one call.

        Args:
            source: a text, or its tokens as a tuple, which must all be in the vocabulary. A list holds sources, at most
                256, and is answered by a list; `generate_many` takes any number.
            request_id: echoed, and written to the server's log.
            return_errors: of a list: return a request's error, or that of an invalid item, in its place; otherwise the
                first one is raised.
            options: see `GenerateOptions`.
        """
        if not isinstance(source, list):
            request = messages.generate_request(source, request_id, options)
            return messages.generation_of(await self._call("Generate", request, options))
        checked = messages.checked_sources(source, return_errors=return_errors)
        sources = [item for item in checked if not isinstance(item, InvalidArgument)]
        if not sources:
            return Answers(checked)
        answers = await self._call("GenerateMany", messages.many_request(sources, request_id, options), options)
        results = iter(answers.results)
        all_results = Answers(c if isinstance(c, InvalidArgument) else result_of(next(results)) for c in checked)
        if not return_errors:
            for place, result in enumerate(all_results):
                if isinstance(result, AttendantError):
                    raise of_source(place, result)
        return all_results

    def stream(self, source: Source, *, request_id: str = "", **options: Unpack[GenerateOptions]) -> GenerationStream:
        """Decodes one source, and yields tokens of the best hypothesis and their text as soon as they are certain.

            stream = client.stream("face", beam_size=4)
            async for delta in stream:
                print(delta.text, end="")
            print(stream.generation.best.log_prob)

        Args:
            source, request_id, options: as for `generate`.
        """
        method = self._method("GenerateStream")
        request = messages.generate_request(source, request_id, options)
        request_id, metadata = self._named(request)
        timeout = self._timeout_of(options)
        return GenerationStream(method(request, timeout=timeout, metadata=metadata), request_id, timeout)

    @overload
    def generate_many(
        self,
        sources: Iterable[Source] | AsyncIterable[Source],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        return_errors: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Generation, None]: ...

    @overload
    def generate_many(
        self,
        sources: Iterable[Source] | AsyncIterable[Source],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        return_errors: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Generation | AttendantError, None]: ...

    async def generate_many(
        self,
        sources: Iterable[Source] | AsyncIterable[Source],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        return_errors: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Generation | AttendantError, None]:
        """Decodes any number of sources and yields the answers in their order, in bounded memory.

        It is bulk work, on one stream (see `bulk`). To leave the loop early, close the generator
        (`contextlib.aclosing`), which cancels the requests in flight.

        Args:
            sources: taken as fast as the answers come; may be endless.
            concurrency: requests in flight at most.
            return_errors: yield a request's error, or that of an invalid item, in its place and continue; otherwise
                the first one is raised.
            options: of every request, see `GenerateOptions`; `timeout` limits the seconds without an answer.
        """
        messages.refuse_frame("sources", sources)
        are_several = isinstance(sources, Iterable | AsyncIterable)
        if not are_several or isinstance(sources, str | bytes | bytearray | Mapping):
            raise TypeError(f"sources={messages.shown(sources)}: must be a list of texts, or an iterable of them")
        own_options = cast(RequestOptions, {name: value for name, value in options.items() if name != "timeout"})
        deadline: Deadline = {"timeout": options["timeout"]} if "timeout" in options else {}

        places = count()

        async def answer(source: Source) -> Generation | AttendantError:
            place = next(places)  # calls begin in the order of their sources
            checked = messages.checked_source(source) if return_errors else source
            if isinstance(checked, InvalidArgument):
                return checked
            try:
                return await bulk.generate(checked, **own_options)
            except AttendantError as error:
                if return_errors:
                    return error
                if isinstance(error, InvalidArgument):
                    of_source(place, error)
                raise
            except (TypeError, ValueError):  # of the source, or else of an option
                messages.checked_sources([source], return_errors=False, first_place=place)
                raise

        num_calls = messages.plain_number(concurrency)
        async with self.bulk(**deadline) as bulk, aclosing(in_order(answer, sources, concurrency=num_calls)) as answers:
            async for each in answers:
                yield each

    def bulk(self, **deadline: Unpack[Deadline]) -> Bulk:
        """Returns a stream for bulk work, which the server does in the time that interactive requests leave.

            async with client.bulk() as bulk:
                answer = await bulk.generate("face")

        Any number of tasks may await answers of one stream.

        Args:
            deadline: `timeout` limits the seconds without an answer while some are awaited.
        """
        check_names(deadline, Deadline)
        self._check_open()

        def open_stream() -> Any:
            return self._method("GenerateBatches")(metadata=self._metadata)

        return Bulk(open_stream, self._timeout_of(deadline))

    async def score(
        self,
        source: Source,
        target: Source,
        *,
        include_eos: bool = True,
        attention: bool = False,
        model: str = "",
        version: str = "",
        request_id: str = "",
        **deadline: Unpack[Deadline],
    ) -> Score:
        """Returns the probability of a target, log P(target | source), in total and per token.

        Args:
            source, target: each a text or its tokens.
            include_eos: the target's end counts.
            attention: return the attention weights, too.
            model: the manifest's name; may be empty if the server serves one model.
            version: the model's; if empty, the server chooses.
            request_id: echoed, and written to the server's log.
            deadline: `timeout`, in seconds.
        """
        check_names(deadline, Deadline)
        request = messages.score_request(
            source,
            target,
            attention=attention,
            request_id=request_id,
            model=model,
            version=version,
            include_eos=include_eos,
        )
        return messages.score_of(await self._call("Score", request, deadline))

    async def models(self, **deadline: Unpack[Deadline]) -> tuple[ModelInfo, ...]:
        """Returns the models that the server serves, every version of them."""
        check_names(deadline, Deadline)
        response = await self._call("ListModels", pb.ListModelsRequest(), deadline)
        return tuple(messages.model_info_of(model) for model in response.models)

    async def model(self, name: str = "", version: str = "", **deadline: Unpack[Deadline]) -> ModelInfo:
        """Returns a model; `name` may be empty if the server serves one, `version` for the stable version."""
        check_names(deadline, Deadline)
        request = messages.fill(pb.GetModelRequest(), {"model": name, "version": version})
        return messages.model_info_of(await self._call("GetModel", request, deadline))

    async def health(self, service: str = "", **deadline: Unpack[Deadline]) -> HealthStatus:
        """Returns the health of the server, or of one of its services. Not retried."""
        check_names(deadline, Deadline)
        request = messages.fill(health_pb2.HealthCheckRequest(), {"service": service})
        try:
            response = await self._call("Check", request, deadline)
        except NotFound as error:
            raise NotFound(
                error.code, f"service {service!r} is not one of the server's; leave it out for all"
            ) from error
        return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    async def _call(self, name: str, request: Any, options: Deadline) -> Any:
        method = self._method(name)
        request_id, metadata = self._named(request)
        timeout = self._timeout_of(options)
        try:
            return await method(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, request_id, timeout) from error

    def _named(self, request: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Returns the request's id and the call's metadata, which has the id if the request has none.

        The client makes the id, so it is known also if the deadline passes without an answer.
        """
        named = request.requests[0] if isinstance(request, pb.GenerateManyRequest) else request
        if request_id := getattr(named, "request_id", ""):
            return request_id, self._metadata
        request_id = uuid.uuid4().hex
        return request_id, (*self._metadata, (_REQUEST_ID, request_id))

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed; make another one")

    def _method(self, name: str) -> Any:
        """Returns a method of the API, or of the health service. Connects at the first call."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._channel is None:
            if _CALLING_PROCESSES - {os.getpid()}:
                raise RuntimeError(FORKED)
            _CALLING_PROCESSES.add(os.getpid())
            self._loop, self._channel = loop, self._make_channel()
            seq2seq = stubs.Seq2SeqStub(self._channel)  # type: ignore[no-untyped-call]
            self._methods = {**vars(seq2seq), **vars(health_pb2_grpc.HealthStub(self._channel))}
        elif loop is not self._loop:
            raise RuntimeError("the client belongs to the event loop of its first call; make one for this loop")
        return self._methods[name]

    def _timeout_of(self, options: Deadline) -> float | None:
        return _checked(options["timeout"]) if "timeout" in options else self._timeout


def _checked(timeout: float | None) -> float | None:
    timeout = messages.plain_number(timeout)
    if not isinstance(timeout, float | int | None):
        raise TypeError(f"timeout={messages.shown(timeout)}: must be a number of seconds, or None for no deadline")
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout={messages.shown(timeout)}: must be more than 0 seconds, or None for no deadline")
    return None if timeout is None else min(timeout, MAX_TIMEOUT_SECONDS)
