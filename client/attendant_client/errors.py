"""The errors that a call may raise, each from a gRPC status code.

    Exception
    `-- AttendantError        any call that got no answer; .code, .message
        |-- InvalidArgument   INVALID_ARGUMENT     .violations: every field that is wrong, and why
        |-- NotFound          NOT_FOUND            no such model
        |-- Unauthenticated   UNAUTHENTICATED      missing or wrong credentials
        |-- Unimplemented     UNIMPLEMENTED        the server is too old for this call
        |-- Overloaded        RESOURCE_EXHAUSTED   after the retries; .retry_seconds: the time to wait
        |-- Unavailable       UNAVAILABLE          after the retries; not reachable, not ready or shutting down
        |   `-- TlsFailed                          no TLS, or a certificate that is not accepted
        |-- DeadlineExceeded  DEADLINE_EXCEEDED    the timeout passed
        `-- ServerError       all others           a fault of the server or of a proxy

A cancelled task gets asyncio.CancelledError, and its call ends on the server, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"

_Detail = TypeVar("_Detail", bound=Message)


@dataclass(frozen=True, slots=True)
class Violation:
    """A field of a request that the server refuses: its path in the API, and the reason."""

    field: str
    description: str


class AttendantError(Exception):
    """A call that got no answer.

    Attributes:
        code: the gRPC status code.
        message: the server's message, one line.
        request_id: the call's id in the server's log; empty if nothing was sent.
    """

    request_id: str = ""

    # The message of a status without one.
    default_message: ClassVar[str] = "the call failed"

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        self.code = code
        self.message = " ".join(message.split()) or self.default_message
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the error with its attributes, so that pools of processes can raise it."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class InvalidArgument(AttendantError):
    """The request can't be served as it is; a retry would not help."""

    default_message = "the request is invalid"

    def __init__(self, code: grpc.StatusCode, message: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(code, message)
        self.violations = violations


class NotFound(AttendantError):
    default_message = "there is no such thing on this server"


class Unauthenticated(AttendantError):
    default_message = "the server requires credentials, or others"


class Unimplemented(AttendantError):
    default_message = "the server does not offer this call"


class Overloaded(AttendantError):
    """The server is overloaded, also after the retries.

    Attributes:
        retry_seconds: the server's advice when to retry; None if it has none.
    """

    default_message = "the server is overloaded"

    def __init__(self, code: grpc.StatusCode, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(code, message)
        self.retry_seconds = retry_seconds


class Unavailable(AttendantError):
    default_message = "the server is unavailable"


class TlsFailed(Unavailable):
    """No connection, because TLS or a certificate does not match."""


class DeadlineExceeded(AttendantError):
    default_message = "the timeout passed"


class ServerError(AttendantError):
    default_message = "the server failed"


_Error = TypeVar("_Error", bound=AttendantError)

_CLASSES: dict[grpc.StatusCode, type[AttendantError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


_CODES = {code.value[0]: code for code in grpc.StatusCode}


_OWN_DEADLINE = "Deadline Exceeded"
"""gRPC's message if the deadline has passed here; a server's messages are other ones."""


def error_of(error: grpc.aio.AioRpcError, request_id: str, timeout: float | None = None) -> AttendantError:
    """Returns the error of a failed call, with its google.rpc details.

    Args:
        request_id: the client's; the server's has precedence.
        timeout: the call's, in seconds.
    """
    status, message = _status(error.trailing_metadata()), error.details() or ""
    if message == _OWN_DEADLINE and timeout is not None:
        message = f"no answer within {timeout:g} s; timeout= gives it more time"
    return _with_id(_error(error.code(), message, status), status, request_id)


def of_source(place: int, error: _Error) -> _Error:
    """Returns the error of a source of a list; its message now begins with the place."""
    error.message = f"source {place}: {error.message}"
    error.args = (error.message,)
    return error


def error_of_status(status: status_pb2.Status) -> AttendantError:
    """Returns the error of a request of a stream."""
    return _with_id(_error(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, status), status, "")


def _with_id(error: AttendantError, status: status_pb2.Status, otherwise: str) -> AttendantError:
    info = _detail(status, error_details_pb2.RequestInfo())
    error.request_id = info.request_id if info else otherwise
    return error


_NOT_CONNECTED = ("failed to connect", "connections to all backends failing")
"""The beginnings of gRPC's messages if a server, or none of several, can be reached."""

_NOT_GRPC = ("http1.x server", "missing selected ALPN property")
"""Parts of gRPC's messages if a server speaks only HTTP/1, with and without TLS."""

# Part of gRPC's message about a failed connection -> its meaning.
_TLS_FAILURES = {
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    "certificate has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from an authority that is trusted here",
    "Hostname Verification Check failed": "the server's certificate is for another name",
    "Failed to create security handshaker": "the certificates or the key can't be used: not PEM, or not a pair",
    "Socket closed": "the server closed the connection: it may speak TLS, or ask for a client's certificate",
}


def _error(code: grpc.StatusCode, message: str, status: status_pb2.Status) -> AttendantError:
    if code is grpc.StatusCode.UNAVAILABLE and message.startswith(_NOT_CONNECTED):
        if any(part in message for part in _NOT_GRPC):
            return Unavailable(code, "this port is for HTTP, not for gRPC; a server prints both when it starts")
        if "Failed parsing HTTP/2" in message:
            return Unavailable(code, "the program at this port does not speak gRPC")
        for part, meaning in _TLS_FAILURES.items():
            if part in message:
                return TlsFailed(code, meaning)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        bad = _detail(status, error_details_pb2.BadRequest())
        fields = bad.field_violations if bad else ()
        return InvalidArgument(code, message, tuple(Violation(v.field, v.description) for v in fields))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retry = _detail(status, error_details_pb2.RetryInfo())
        return Overloaded(code, message, retry.retry_delay.ToNanoseconds() / 1e9 if retry else None)
    return _CLASSES.get(code, ServerError)(code, message)


def _status(trailers: Iterable[Any] | None) -> status_pb2.Status:
    """Returns the google.rpc.Status in the trailers; an empty one if it is missing or unreadable."""
    for key, value in trailers or ():
        if key == _DETAILS and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _detail(status: status_pb2.Status, into: _Detail) -> _Detail | None:
    try:
        return into if any(packed.Unpack(into) for packed in status.details) else None
    except DecodeError:
        return None
