"""Methods of the table as ASGI applications: a response in JSON, or a stream of server-sent events.

Errors are problem details (RFC 9457): the gRPC status, in HTTP's words.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from http import HTTPStatus
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendant.runtime.errors import Violation, shortened
from attendant.server import errors
from attendant.server.auth import Gate, Shares
from attendant.server.call import REQUEST_ID_HEADER, Call, Guard, Rpc
from attendant.server.grpc.requests import ID_LIMIT, status_of
from attendant.server.http.bodies import JSON, NUMBER, Body, HttpError, written
from attendant.server.http.port import PEER_CERTIFICATE

TIMEOUT_HEADER: Final = "request-timeout"
MAX_SECONDS: Final = 60.0  # Deadline of a call whose header names none, and the longest that a header may name.
MEDIA_TYPE: Final = "application/problem+json"
EVENT_STREAM: Final = "text/event-stream"
STREAM_HEADERS: Final = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]

SEPARATORS: Final = {separator: f"\\u{ord(separator):04x}" for separator in "\x85\u2028\u2029"}
"""Characters that end a line for some readers of streams, e.g. httpx's, and their escapes in JSON."""

# Those of google.rpc.Code; 499 is nginx's, for a client that has gone.
STATUSES: Final = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
TITLES: Final = {499: "Client Closed Request"}

MakeRequest = Callable[[Request], Awaitable[Any]]
Problem = Callable[[errors.AttendantError, str], Response]
"""Makes the response of an error and the request's id."""


class HttpCall(Call):
    protocol = "http"

    def __init__(self, scope: Scope) -> None:
        self._connection = HTTPConnection(scope)
        client = self._connection.client
        # The other end, as gRPC writes it.
        super().__init__(f"ip:[{client.host}]:{client.port}" if client else "unix:")
        self._deadline = time.monotonic() + MAX_SECONDS

    def read_headers(self) -> None:
        """Checks the header with the id, and reads that with the seconds that the caller gives the answer.

        Raises:
            InvalidArgument: one of them is wrong.
        """
        request_id = self.header(REQUEST_ID_HEADER)
        if not request_id.isprintable():
            raise errors.InvalidArgument(Violation("X-Request-Id", shortened(request_id), ID_LIMIT, quoted=True))
        all_seconds = self._connection.headers.getlist(TIMEOUT_HEADER)
        if not all_seconds:
            return
        seconds = ", ".join(all_seconds)
        if not (NUMBER.fullmatch(seconds) and 0 < float(seconds) <= MAX_SECONDS):
            limit = f"a number of seconds above 0, at most {MAX_SECONDS:g}"
            raise errors.InvalidArgument(Violation("Request-Timeout", shortened(seconds), limit, quoted=True))
        self._deadline = time.monotonic() + float(seconds)

    def metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self._connection.headers.items()

    def time_remaining(self) -> float:
        return self._deadline - time.monotonic()

    def certificate_name(self) -> str:
        certificate = self._connection.scope["state"].get(PEER_CERTIFICATE) or {}
        names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
        names += [value for _, value in certificate.get("subjectAltName", ())]
        return next(filter(None, names), "")


def problem_of(error: errors.AttendantError, request_id: str) -> dict[str, Any]:
    """Returns the members of a problem: those of RFC 9457, the code's name, and google.rpc's details."""
    status = status_of(error, request_id)
    http_status = error.http_status if isinstance(error, HttpError) else STATUSES[error.code]
    return {
        "type": "about:blank",
        "title": TITLES.get(http_status) or HTTPStatus(http_status).phrase,
        "status": http_status,
        "detail": status.message,
        "code": code_pb2.Code.Name(status.code),
        "details": json_format.MessageToDict(status)["details"],
    }


def problem_headers(error: errors.AttendantError) -> dict[str, str]:
    headers = dict(error.headers or {}) if isinstance(error, HttpError) else {}
    if isinstance(error, errors.Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.Overloaded):
        headers["retry-after"] = str(math.ceil(error.retry_seconds))
    return headers


def problem_response(error: errors.AttendantError, request_id: str) -> Response:
    problem = problem_of(error, request_id)
    text = json.dumps(problem, ensure_ascii=False)
    return Response(text, problem["status"], problem_headers(error), media_type=MEDIA_TYPE)


class Endpoint:
    """Calls a method of the table for each request, which may be a body that is not parsed yet."""

    problem = staticmethod(problem_response)

    def __init__(self, rpc: Rpc, gate: Gate, calls: Shares, make_request: MakeRequest) -> None:
        self._rpc = rpc
        self._gate = gate
        self._log = gate.log
        self._calls = calls
        self._make_request = make_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope)
        try:
            call.read_headers()
            request = await self._make_request(Request(scope, receive))
            await self._handle(request, call, scope, receive, send)
        except errors.Failed as failed:
            await self.problem(failed.error, call.request_id)(scope, receive, send)
        except errors.AttendantError as error:  # no method was called
            self._log.refused(self._rpc.name, call, error)
            await self.problem(error, call.request_id)(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _handle(self, request: Any, call: HttpCall, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        async with _awaited(call, receive):
            with self._let_in(request, call):
                response = await self._rpc.answer(await self._parsed(request, call), call)
        if response is not None:
            await (await self.respond(request, response))(scope, receive, send)

    @contextmanager
    def _let_in(self, request: Any, call: HttpCall) -> Any:
        """Checks the caller, and holds a place for the call. Probes need no place, and are always answered."""
        self._gate.let_in(self._rpc, request, call)
        has_place = self._rpc.guard is not Guard.NONE
        with self._calls.place(call.client, errors.TooManyCalls) if has_place else nullcontext():
            yield

    async def _parsed(self, request: Any, call: HttpCall) -> Any:
        if not isinstance(request, Body):
            return request
        message = await request.message(self._rpc)
        self._log.require_decoded(self._rpc.name, call, message)
        self._gate.charge_listed(self._rpc, message, call)
        return message

    async def respond(self, request: Any, message: Message) -> Response:
        return Response(await written(message), media_type=JSON)


class StreamEndpoint(Endpoint):
    """Calls a method that streams responses: each is an event, and so is an error after the first event."""

    async def _handle(self, request: Any, call: HttpCall, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def send_event(event: str, data: str) -> None:
            nonlocal began
            for separator, escape in SEPARATORS.items():
                data = data.replace(separator, escape)
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            body = f"event: {event}\ndata: {data}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        try:
            async with _awaited(call, receive):
                with self._let_in(request, call):
                    message = await self._parsed(request, call)
                    async with aclosing(self._rpc.answer(message, call)) as responses:
                        async for response in responses:
                            await send_event(response.WhichOneof("event"), await written(response))
        except errors.Failed as failed:
            if not began:
                raise
            await send_event("error", json.dumps(problem_of(failed.error, call.request_id)))
        if began:
            await send({"type": "http.response.body"})


@asynccontextmanager
async def _awaited(call: HttpCall, receive: Receive) -> AsyncIterator[None]:
    """Cancels the block if the deadline passes, or if the client disconnects; then the code after the block goes on.

    Raises:
        Failed: the deadline has passed.
    """
    task = asyncio.current_task()
    assert task is not None, "a request is handled by a task"
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(call.time_remaining()):
            yield
    except TimeoutError:
        raise errors.Failed(errors.DeadlineExceeded()) from None
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise
    finally:
        watching.cancel()
