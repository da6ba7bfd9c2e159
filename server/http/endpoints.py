"""Methods of the service as ASGI applications: one answer in JSON, or a stream of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, ClassVar

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendant.server.auth import CLIENT, Shares
from attendant.server.errors import AttendantError, DeadlineExceeded, TooManyCalls
from attendant.server.grpc.gatekeeper import Gatekeeper
from attendant.server.grpc.inference_names import PROBES
from attendant.server.grpc.request_context import id_of
from attendant.server.grpc.status import status_of
from attendant.server.http.bodies import JSON, Body, decoder_of, written
from attendant.server.http.call import Aborted, HttpCall, timeout_of, while_connected
from attendant.server.http.problems import Problem, members, problem_response, refusal
from attendant.server.metrics import Metrics

MAX_CALLS = 128
"""At once. Connections are twice as many, so that metrics and probes are always answered."""

EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back
]

MakeRequest = Callable[[Request], Awaitable[Any]]


@contextmanager
def _held(calls: Shares) -> Iterator[None]:
    """For a call of the client whose call is being handled.

    Raises:
        TooManyCalls
    """
    client = CLIENT.get()
    if not calls.take(client):
        raise TooManyCalls(calls.num_taken, calls.taken_by(client))
    try:
        yield
    finally:
        calls.give_back(client)


class Method:
    """A method of ours behind the gatekeeper, for requests that may be bodies which are not parsed yet."""

    def __init__(self, descriptor: MethodDescriptor, servicer: object, gatekeeper: Gatekeeper, calls: Shares) -> None:
        self.name = name = descriptor.name
        path = f"/{descriptor.containing_service.full_name}/{name}"
        self._decode = decoder_of(path, GetMessageClass(descriptor.input_type))
        self._behaviour = getattr(servicer, name)
        self._calls = calls
        self._gatekeeper = gatekeeper
        guarded = gatekeeper.guarded(name, self._stream if descriptor.server_streaming else self._answer)
        self.answer, self.stream = guarded.answer, guarded.stream
        if name in PROBES and not gatekeeper.closes_health:
            self.answer = self._behaviour

    async def _answer(self, request: Any, call: HttpCall) -> Message:
        with _held(self._calls):
            return await self._behaviour(await self._parsed(request), call)  # type: ignore[no-any-return]

    async def _stream(self, request: Any, call: HttpCall) -> AsyncIterator[Message]:
        with _held(self._calls):
            async with aclosing(self._behaviour(await self._parsed(request), call)) as messages:
                async for message in messages:
                    yield message

    async def _parsed(self, request: Any) -> Any:
        if not isinstance(request, Body):
            return request
        message = await request.message(self._decode)
        self._gatekeeper.charge_listed(message)
        return message


class Endpoint:
    """Calls a method for each request."""

    problem: ClassVar[Problem] = staticmethod(problem_response)
    """How an error is answered."""

    def __init__(self, method: Method, metrics: Metrics, make_request: MakeRequest) -> None:
        self._method = method
        self._metrics = metrics
        self._make_request = make_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._handle(scope, receive, send)
        except Aborted as aborted:
            await self.problem(aborted.status)(scope, receive, send)
        except AttendantError as error:  # before the method was called
            answer = refusal(scope, self._method.name, error, self._metrics, self.problem)
            await answer(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, timeout_of(scope))
        request = await self._make_request(Request(scope, receive))
        response = None
        async with _awaited(request, call, receive):
            response = await self._method.answer(request, call)
        if response is not None:
            answer = await self.respond(request, response)
            await answer(scope, receive, send)

    async def respond(self, request: Any, message: Message) -> Response:
        """Returns the response that holds a message."""
        return Response(await written(message), media_type=JSON)


class StreamEndpoint(Endpoint):
    """Calls a method that has many responses: each is an event, and so is an error that comes after the first one."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, timeout_of(scope))
        request = await self._make_request(Request(scope, receive))
        began = False

        async def tell(event: str, data: str) -> None:
            nonlocal began
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            body = f"event: {event}\ndata: {data}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        try:
            async with (
                _awaited(request, call, receive),
                aclosing(self._method.stream(request, call)) as responses,  # type: ignore[type-var]
            ):
                async for response in responses:
                    await tell(response.WhichOneof("event"), await written(response))
        except Aborted as aborted:
            if not began:
                raise
            await tell("error", json.dumps(members(aborted.status)))
        if began:
            await send({"type": "http.response.body"})


@asynccontextmanager
async def _awaited(request: Any, call: HttpCall, receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client disconnects or the deadline passes.

    Raises:
        Aborted: the deadline has passed.
    """
    try:
        async with while_connected(receive), asyncio.timeout(call.time_remaining()):
            yield
    except TimeoutError:
        raise Aborted(status_of(DeadlineExceeded(), id_of(call, request))) from None
