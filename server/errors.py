"""Every error that a caller may see: a tree of classes, each with the name of its gRPC code and its metric label."""

from dataclasses import replace
from typing import Any, ClassVar, Final

from attendant.runtime.requests import Violation, shortened, summary

RETRY_SECONDS = 1.0
"""Retry delay if there is no estimate."""

MAX_RETRY_SECONDS = 1e6
"""Longest retry delay: a rate may be so low that the next request never comes, for which no protocol has a number."""


class AttendantError(Exception):
    """An error that ends a request.

    Attributes:
        code: the gRPC status code's name.
        reason: the metric label.
        default_message: the message of a class whose errors all have the same.
    """

    code: str
    reason: ClassVar[str]
    default_message: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.default_message)

    @property
    def without_quotes(self) -> str:
        """The message for logs, without the caller's words."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors also come from worker processes. They are pickled by their attributes, since __init__ takes others.
        return type(self).__new__, (type(self), *self.args), vars(self)


class InvalidArgument(AttendantError):
    """All violations of one request.

    The message travels in HTTP/2 headers, whose size is limited, so it names only the first few of `violations`.
    """

    code = "INVALID_ARGUMENT"
    reason = "invalid_argument"

    def __init__(self, *violations: Violation) -> None:
        super().__init__(summary(violations))
        self.violations = violations

    @property
    def without_quotes(self) -> str:
        return summary([replace(each, value="not shown") if each.quoted else each for each in self.violations])


class Undecodable(AttendantError):
    code = "INVALID_ARGUMENT"
    reason = "undecodable"

    def __init__(self, num_bytes: int, why: str = "") -> None:
        """`why` may quote the caller."""
        super().__init__(f"{self._about(num_bytes)}: {why or 'see the proto'}")
        self._num_bytes = num_bytes

    @staticmethod
    def _about(num_bytes: int) -> str:
        return f"the request, {num_bytes} bytes, is no message of this method's"

    @property
    def without_quotes(self) -> str:
        return self._about(self._num_bytes)


class UnknownModel(AttendantError):
    code = "NOT_FOUND"
    reason = "unknown_model"

    def __init__(self, name: str, served: list[str], what: str = "is not served here") -> None:
        self._what = f"{what}; {_choose_from(served)}"
        super().__init__(f"model {shortened(name)} {self._what}")

    @property
    def without_quotes(self) -> str:
        return f"the model {self._what}"


class UnknownVersion(AttendantError):
    code = "NOT_FOUND"
    reason = "unknown_version"

    def __init__(self, model: str, version: str, served: list[str]) -> None:
        self._what = f"of {model} is not served here; {_choose_from(served)}"
        super().__init__(f"version {shortened(version)} {self._what}")

    @property
    def without_quotes(self) -> str:
        return f"the version {self._what}"


def _choose_from(served: list[str]) -> str:
    return f"choose from {', '.join(sorted(served))}" if served else "there is none to choose from"


class LoadRefused(AttendantError):
    """A version that an administrator wants to load can't be served. The message may name files of the server."""

    code = "FAILED_PRECONDITION"
    reason = "load_refused"


class Overloaded(AttendantError):
    """More requests than can be served now.

    Attributes:
        retry_seconds: retry delay.
    """

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = min(retry_seconds, MAX_RETRY_SECONDS)


class QueueFull(Overloaded):
    reason = "queue_full"

    def __init__(
        self, num_waiting: int, num_own: int, retry_seconds: float, *, num_listed: int = 0, num_free: int = 0
    ) -> None:
        """Makes the error. Of a list, `num_listed` requests would wait, and `num_free` may."""
        why = "it may send no more"
        if num_listed > 1:
            why = f"{num_free} more may wait, and {num_listed} of this list would, where parts of texts count"
            why += ": send a shorter list, or bulk work"
        super().__init__(
            f"{num_waiting} requests are waiting, {num_own} of them from this client: {why}", retry_seconds
        )


class WaitTooLong(Overloaded):
    reason = "wait_too_long"

    def __init__(self, expected_seconds: float, max_seconds: float) -> None:
        super().__init__(
            f"the queue takes about {expected_seconds:.3f} s, and a request may wait {max_seconds:g} s",
            expected_seconds,
        )


class ClientLimit(Overloaded):
    reason = "client_limit"

    def __init__(self, num: int, what: str, limit: int, retry_seconds: float) -> None:
        super().__init__(
            f"with this request the client would have {num} {what} in flight, must be at most {limit}", retry_seconds
        )


class DeadlineTooShort(Overloaded):
    reason = "deadline_too_short"

    def __init__(self, remaining_seconds: float, expected_seconds: float) -> None:
        super().__init__(
            f"the deadline leaves {remaining_seconds:.3f} s, the answer takes about {expected_seconds:.3f} s",
            expected_seconds,
        )


class OutOfTime(Overloaded):
    reason = "out_of_time"

    def __init__(self, retry_seconds: float) -> None:
        super().__init__("the queue took longer than expected: the deadline can't be met any more", retry_seconds)


class TooManyStreams(Overloaded):
    reason = "too_many_streams"

    def __init__(self, num_streams: int, num_own: int) -> None:
        super().__init__(
            f"{num_streams} streams are open, {num_own} of them this client's: it may open no more", RETRY_SECONDS
        )


class TooManyUnread(Overloaded):
    reason = "too_many_unread"

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes of answers to this client have not been read", RETRY_SECONDS)


class TooManyCalls(Overloaded):
    reason = "too_many_calls"

    def __init__(self, num_calls: int, num_own: int) -> None:
        super().__init__(
            f"{num_calls} calls are under way over HTTP, {num_own} of them from this client: it may make no more",
            RETRY_SECONDS,
        )


class RateLimited(Overloaded):
    reason = "rate_limited"

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(f"the client is above its rate; wait {retry_seconds:.3f} s", retry_seconds)


class Unauthenticated(AttendantError):
    """Credentials are missing or wrong; the message never contains them."""

    code = "UNAUTHENTICATED"
    reason = "unauthenticated"


class PermissionDenied(AttendantError):
    code = "PERMISSION_DENIED"
    reason = "permission_denied"


class UnknownMethod(AttendantError):
    """A call of a path that no service has. The path is not repeated, since it may be anything."""

    code = "UNIMPLEMENTED"
    reason = "unknown_method"
    default_message = "this server has no such method; reflection lists those that it has"


class DeadlineExceeded(AttendantError):
    code = "DEADLINE_EXCEEDED"
    reason = "deadline_exceeded"
    default_message = "the deadline passed before the answer was complete"


EARLY_SECONDS: Final = 0.1
"""A caller may see its deadline pass this long before the server does.

The server's clock for a call starts when the call arrives, the caller's earlier; and a gRPC client whose deadline has
passed cancels the call, as it would for any other reason. Of 900 such calls on one busy machine, half were cancelled
before the server's deadline, by 0.067 s at most.
"""


def deadline_has_passed(remaining_seconds: float | None) -> bool:
    """Returns whether a call was probably given up because of its deadline. None means that it has no deadline."""
    return remaining_seconds is not None and remaining_seconds <= EARLY_SECONDS


class Cancelled(AttendantError):
    code = "CANCELLED"
    reason = "cancelled"
    default_message = "the request was cancelled"


class Unavailable(AttendantError):
    code = "UNAVAILABLE"


class NotReady(Unavailable):
    reason = "not_ready"
    default_message = "the server is still checking its bundles; try again soon"


class Draining(Unavailable):
    reason = "draining"
    default_message = "the server is shutting down; try another one"


class Unread(Unavailable):
    reason = "unread"
    default_message = "the request's message did not arrive in time; send it again"


class IdleStream(Unavailable):
    reason = "idle_stream"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing came on this stream for {seconds:g} s; open another one when there are requests")


class Stalled(Unavailable):
    reason = "stalled"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer was read for {seconds:g} s; send the unanswered requests on another stream")


class EngineDead(Unavailable):
    reason = "engine_dead"
    default_message = "the engines of this model have failed; try another server"


class Failed(Exception):
    """A call that ends with an error, after its requests have been counted and logged."""

    def __init__(self, error: AttendantError) -> None:
        super().__init__(str(error))
        self.error = error


IN_THE_LOG = "internal error; the server's log has it under this request's id"


class PoisonedRequest(AttendantError):
    code = "INTERNAL"
    reason = "poisoned"
    default_message = IN_THE_LOG


class InternalError(AttendantError):
    code = "INTERNAL"
    reason = "internal"
    default_message = IN_THE_LOG


def error_of(raised: BaseException | None) -> AttendantError | None:
    """Returns the error that a caller gets for an exception; None after an answer (None) or a cancellation."""
    if raised is None or isinstance(raised, AttendantError):
        return raised
    return InternalError() if isinstance(raised, Exception) else None
