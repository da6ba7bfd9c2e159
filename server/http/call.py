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

from attendant.runtime.requests import Violation, shortened
from attendant.server.credentials import PEER_CERTIFICATE, name_in_peer_certificate
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.request_context import GIVEN_ID_KEY, new_id
from attendant.server.grpc.status import DETAILS_KEY
from attendant.server.http.json_reading import NUMBER

TIMEOUT_HEADER = "request-timeout"
MAX_SECONDS = 60.0
"""Of a call whose header names no deadline; and as many as it may name."""


class Aborted(Exception):
    """A call has ended with an error."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """Stands where our methods expect gRPC's servicer context.

    Attributes:
        rpc_system: how traces name the protocol.
    """

    rpc_system = "http"

    def __init__(self, scope: Scope, seconds: float = MAX_SECONDS) -> None:
        """`seconds`: until its deadline."""
        self._connection = HTTPConnection(scope)
        self._deadline = time.monotonic() + seconds
        headers = self._connection.headers
        # One id, whoever asks for it: the gatekeeper, the method, and the error of a deadline that has passed.
        self._metadata = [(GIVEN_ID_KEY, headers.get(GIVEN_ID_KEY) or new_id()), *headers.items()]

    def time_remaining(self) -> float:
        return self._deadline - time.monotonic()

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._metadata

    def peer(self) -> str:
        """The other end, written as gRPC writes it."""
        client = self._connection.client
        return f"ip:[{client.host}]:{client.port}" if client else "unix:"

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        certificate = self._connection.scope["state"].get(PEER_CERTIFICATE)
        return {"x509_common_name": [name_in_peer_certificate(certificate).encode()]} if certificate else {}

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Sequence[tuple[str, str | bytes]]
    ) -> NoReturn:
        """Raises Aborted, with the status of the metadata, which says the same."""
        packed = dict(trailing_metadata)[DETAILS_KEY]
        assert isinstance(packed, bytes), "the key says that it is binary"
        raise Aborted(status_pb2.Status.FromString(packed))


def timeout_of(scope: Scope) -> float:
    """The seconds that a request gives its answer.

    Raises:
        InvalidArgument: its header says none.
    """
    given = HTTPConnection(scope).headers.get(TIMEOUT_HEADER)
    if given is None:
        return MAX_SECONDS
    if NUMBER.fullmatch(given) and 0 < (seconds := float(given)) <= MAX_SECONDS:
        return seconds
    limit = f"a number of seconds above 0, at most {MAX_SECONDS:g}"
    raise InvalidArgument(Violation("Request-Timeout", shortened(given), limit, quoted=True))


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client disconnects; the code behind the block goes on."""
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
