"""An HTTP request as the context of an RPC: what our methods and the gatekeeper ask of gRPC's own."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc
from google.rpc import status_pb2
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope

from attendant.runtime.requests.violations import Violation, shortened
from attendant.server.access.certificates import PEER_CERTIFICATE, subject_in_peer_certificate
from attendant.server.errors import InvalidArgument
from attendant.server.servicers.status import DETAILS_KEY

TIMEOUT_HEADER = "request-timeout"
MAX_SECONDS = 60.0
"""Of a call whose header names no deadline; and as many as it may name."""


class Aborted(Exception):
    """A call has ended with an error."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """Stands where our methods expect gRPC's servicer context."""

    def __init__(self, scope: Scope) -> None:
        """Raises InvalidArgument where the header of the deadline is none."""
        self._connection = HTTPConnection(scope)
        self._deadline = time.monotonic() + _timeout(self._connection)

    def time_remaining(self) -> float:
        return self._deadline - time.monotonic()

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._connection.headers.items()

    def peer(self) -> str:
        """The other end, written as gRPC writes it."""
        client = self._connection.client
        return f"ip:[{client.host}]:{client.port}" if client else "unix:"

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        certificate = self._connection.scope["state"].get(PEER_CERTIFICATE)
        return {"x509_subject": [subject_in_peer_certificate(certificate).encode()]} if certificate else {}

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> NoReturn:
        """Raises Aborted."""
        metadata = dict(trailing_metadata)
        status = status_pb2.Status(code=code.value[0], message=details)
        if packed := metadata.get(DETAILS_KEY):
            assert isinstance(packed, bytes), "the key says that it is binary"
            status.ParseFromString(packed)
        raise Aborted(status)


def _timeout(connection: HTTPConnection) -> float:
    given = connection.headers.get(TIMEOUT_HEADER)
    if given is None:
        return MAX_SECONDS
    try:
        seconds = float(given)
        if 0 < seconds <= MAX_SECONDS:
            return seconds
    except ValueError:
        pass
    limit = f"a number of seconds above 0, at most {MAX_SECONDS:g}"
    raise InvalidArgument(Violation("Request-Timeout", shortened(given), limit, quoted=True))


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Ends what is inside, which nobody waits for any more, when the client goes; what follows it goes on."""
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
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise
    finally:
        watching.cancel()
