"""Every error that a caller may see: a tree of classes, each with the name of its gRPC code and its metric label."""

from dataclasses import replace
from typing import Any, ClassVar, Final

from attendant.runtime.errors import Violation, shortened, summary

RETRY_SECONDS = 1.0  # Retry delay if there is no estimate.
MAX_RETRY_SECONDS = 1e6
"""Longest retry delay: a rate may be so low that the next request never comes, for which no protocol has a number."""


class AttendantError(Exception):
    """An error that ends a request.

    Attributes:
        code: the gRPC status code's name.
        reason: the metric label.
        template: of the message; it is formatted with the values that are passed to the class.
        without_quotes: the message for logs, without the caller's words.
    """

    code: str
    reason: ClassVar[str]
    template: ClassVar[str] = "{}"

    def __init__(self, *values: object, without_quotes: str = "") -> None:
        super().__init__(self.template.format(*values))
        self._without_quotes = without_quotes

    @property
    def without_quotes(self) -> str:
        return self._without_quotes or str(self)

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

    def __init__(self, num_bytes: int, why: str = "see the proto, whose strings are UTF-8") -> None:
        """`why` may quote the caller."""
        problem = f"the request, {num_bytes} bytes, is not a message of this method"
        super().__init__(f"{problem}: {why}", without_quotes=problem)


class UnknownModel(AttendantError):
    code = "NOT_FOUND"
    reason = "unknown_model"

    def __init__(self, name: str, served: list[str], problem: str = "is not served here") -> None:
        problem += f"; {_choose_from(served)}"
        super().__init__(f"model {shortened(name)} {problem}", without_quotes=f"the model {problem}")


class UnknownVersion(AttendantError):
    code = "NOT_FOUND"
    reason = "unknown_version"

    def __init__(self, model: str, version: str, served: list[str]) -> None:
        problem = f"of {model} is not served here; {_choose_from(served)}"
        super().__init__(f"version {shortened(version)} {problem}", without_quotes=f"the version {problem}")


def _choose_from(served: list[str]) -> str:
    return f"choose from {', '.join(sorted(served))}" if served else "there is none to choose from"


class LoadRefused(AttendantError):
    """A version that an administrator wants to load can't be served. The message may name files of the server."""

    code = "FAILED_PRECONDITION"
    reason = "load_refused"


class Overloaded(AttendantError):
    """More requests than can be served now."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, *values: object, retry_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(*values)
        self.retry_seconds = min(retry_seconds, MAX_RETRY_SECONDS)


class QueueFull(Overloaded):
    reason = "queue_full"
    template = "{} requests are waiting, {} of them from this client: {}"

    def __init__(
        self, num_waiting: int, num_own: int, retry_seconds: float, *, num_listed: int = 0, num_free: int = 0
    ) -> None:
        """Makes the error. Of a list, `num_listed` requests would wait, and `num_free` may."""
        why = "it may send no more"
        if num_listed > 1:
            why = f"{num_free} more may wait, and {num_listed} of this list would, where parts of texts count"
            why += ": send a shorter list, or bulk work"
        super().__init__(num_waiting, num_own, why, retry_seconds=retry_seconds)


class WaitTooLong(Overloaded):
    reason = "wait_too_long"
    template = "the queue takes about {:.3f} s, and a request may wait {:g} s"


class ClientLimit(Overloaded):
    reason = "client_limit"
    template = "with this request the client would have {} {} in flight, must be at most {}"


class DeadlineTooShort(Overloaded):
    reason = "deadline_too_short"
    template = "the deadline leaves {:.3f} s, the answer takes about {:.3f} s"


class OutOfTime(Overloaded):
    reason = "out_of_time"
    template = "the queue took longer than expected: the deadline can't be met any more"


class TooManyStreams(Overloaded):
    reason = "too_many_streams"
    template = "{} streams are open, {} of them this client's: it may open no more"


class TooManyUnread(Overloaded):
    reason = "too_many_unread"
    template = "{} bytes of answers to this client have not been read"


class TooManyCalls(Overloaded):
    reason = "too_many_calls"
    template = "{} calls are under way over HTTP, {} of them from this client: it may make no more"


class RateLimited(Overloaded):
    reason = "rate_limited"
    template = "the client is above its rate; wait {:.3f} s"


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
    template = "this server has no such method; reflection lists those that it has"


class DeadlineExceeded(AttendantError):
    code = "DEADLINE_EXCEEDED"
    reason = "deadline_exceeded"
    template = "the deadline passed before the answer was complete"


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
    template = "the request was cancelled"


class Unavailable(AttendantError):
    code = "UNAVAILABLE"


class NotReady(Unavailable):
    reason = "not_ready"
    template = "the server is still checking its bundles; try again soon"


class Draining(Unavailable):
    reason = "draining"
    template = "the server is shutting down; try another one"


class Unread(Unavailable):
    reason = "unread"
    template = "the request's message did not arrive in time; send it again"


class IdleStream(Unavailable):
    reason = "idle_stream"
    template = "nothing came on this stream for {:g} s; open another one when there are requests"


class Stalled(Unavailable):
    reason = "stalled"
    template = "no answer was read for {:g} s; send the unanswered requests on another stream"


class EngineDead(Unavailable):
    reason = "engine_dead"
    template = "the engines of this model have failed; try another server"


class Failed(Exception):
    """A call that ends with an error, after its requests have been counted and logged."""

    def __init__(self, error: AttendantError) -> None:
        super().__init__(str(error))
        self.error = error


IN_THE_LOG = "internal error; the server's log has it under this request's id"


class PoisonedRequest(AttendantError):
    code = "INTERNAL"
    reason = "poisoned"
    template = IN_THE_LOG


class InternalError(AttendantError):
    code = "INTERNAL"
    reason = "internal"
    template = IN_THE_LOG


def error_of(raised: BaseException | None) -> AttendantError | None:
    """Returns the error that a caller gets for an exception; None after an answer (None) or a cancellation."""
    if raised is None or isinstance(raised, AttendantError):
        return raised
    return InternalError() if isinstance(raised, Exception) else None
