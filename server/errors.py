"""Every error that a caller may see, drawn once: its gRPC code (by name: this file knows no grpc) and metric label.

AttendantError
|-- InvalidArgument       INVALID_ARGUMENT     invalid_argument    a field, its value and its limit; all of them
|-- Undecodable           INVALID_ARGUMENT     undecodable         the bytes are no message of the method's
|-- UnknownModel          NOT_FOUND            unknown_model       the name, and those that are served
|-- UnknownVersion        NOT_FOUND            unknown_version     likewise
|-- LoadRefused           FAILED_PRECONDITION  load_refused        why a version that an administrator asked for is not
|-- Overloaded            RESOURCE_EXHAUSTED
|   |-- QueueFull                              queue_full          with when to come again, like all of these
|   |-- WaitTooLong                            wait_too_long       its turn would come later than is useful
|   |-- ClientLimit                            client_limit        the client has as much in flight as it may
|   |-- DeadlineTooShort                       deadline_too_short  it would pass before the request's answer
|   |-- OutOfTime                              out_of_time         it waited, and can't be answered in time any more
|   |-- TooManyStreams                         too_many_streams    as many are open as may be
|   |-- TooManyUnread                          too_many_unread     the client leaves too many answers unread
|   |-- TooManyCalls                           too_many_calls      as many are under way over HTTP as may be
|   `-- RateLimited                            rate_limited        the client asks faster than it may
|-- Unauthenticated       UNAUTHENTICATED      unauthenticated     no credentials, or wrong ones
|-- PermissionDenied      PERMISSION_DENIED    permission_denied   for administrators, and the caller is none
|-- UnknownMethod         UNIMPLEMENTED        unknown_method      no service here has a method at this path
|-- DeadlineExceeded      DEADLINE_EXCEEDED    deadline_exceeded   its rows are freed within a step
|-- Cancelled             CANCELLED            cancelled           the client has gone; likewise
|-- Unavailable           UNAVAILABLE
|   |-- NotReady                               not_ready           the bundles are still being checked
|   |-- Draining                               draining            the server is shutting down
|   |-- Unread                                 unread              its message did not arrive whole in time
|   |-- IdleStream                             idle_stream         nothing came on a stream for too long
|   |-- Stalled                                stalled             the client of a stream does not read its answers
|   `-- EngineDead                             engine_dead         no engine of the model answers any more
|-- PoisonedRequest       INTERNAL             poisoned            it has ended an engine twice
`-- InternalError         INTERNAL             internal            fixed text; the log has the rest
"""

from dataclasses import replace
from typing import Any, ClassVar, Final

from attendant.runtime.requests import Violation, shortened, summary

RETRY_SECONDS = 1.0
"""After which to come again, where no estimate says it."""


class AttendantError(Exception):
    """What a request may end with, other than an answer.

    Attributes:
        code: the gRPC status code's name.
        reason: the metric label.
        default_message: of a class whose errors all say the same.
    """

    code: str
    reason: ClassVar[str]
    default_message: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.default_message)

    @property
    def without_quotes(self) -> str:
        """The message without what the caller wrote, for logs."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors come from worker processes too: by what they are, for __init__ takes other things than the message.
        return type(self).__new__, (type(self), *self.args), vars(self)


class InvalidArgument(AttendantError):
    """Everything that is wrong with one request.

    The message travels in HTTP/2 headers, whose size is limited: it names the first few, `violations` hold them all.
    """

    code = "INVALID_ARGUMENT"
    reason = "invalid_argument"

    def __init__(self, *violations: Violation) -> None:
        super().__init__(summary(violations))
        self.violations = violations

    @property
    def without_quotes(self) -> str:
        return summary([replace(one, value="not shown") if one.quoted else one for one in self.violations])


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

    def __init__(self, name: str, served: list[str]) -> None:
        self._what = f"is not served here; {_choose_from(served)}"
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
    return f"choose from {', '.join(sorted(served))}" if served else "nothing is now"


class LoadRefused(AttendantError):
    """What an administrator asked for is not served: in our words, which may name files of the server's."""

    code = "FAILED_PRECONDITION"
    reason = "load_refused"


class Overloaded(AttendantError):
    """More than can be served now.

    Attributes:
        retry_seconds: after which to come again.
    """

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class QueueFull(Overloaded):
    reason = "queue_full"

    def __init__(self, num_waiting: int, num_own: int, retry_seconds: float) -> None:
        super().__init__(
            f"{num_waiting} requests are waiting, {num_own} of them from this client: as many as may", retry_seconds
        )


class WaitTooLong(Overloaded):
    reason = "wait_too_long"

    def __init__(self, expected_seconds: float, max_seconds: float) -> None:
        super().__init__(
            f"the queue takes about {expected_seconds:.3f} s, and nobody may wait longer than {max_seconds:g} s",
            expected_seconds,
        )


class ClientLimit(Overloaded):
    reason = "client_limit"

    def __init__(self, num: int, what: str, limit: int, retry_seconds: float) -> None:
        super().__init__(
            f"with this one the client would have {num} {what} in flight, must be at most {limit}", retry_seconds
        )


class DeadlineTooShort(Overloaded):
    reason = "deadline_too_short"

    def __init__(self, remaining_seconds: float, expected_seconds: float) -> None:
        super().__init__(
            f"the deadline leaves {max(0.0, remaining_seconds):.3f} s, the answer takes about {expected_seconds:.3f} s",
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
            f"{num_streams} streams are open, {num_own} of them this client's: as many as may", RETRY_SECONDS
        )


class TooManyUnread(Overloaded):
    reason = "too_many_unread"

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes of answers to this client have not been read", RETRY_SECONDS)


class TooManyCalls(Overloaded):
    reason = "too_many_calls"

    def __init__(self, num_calls: int, num_own: int) -> None:
        super().__init__(
            f"{num_calls} calls are under way over HTTP, {num_own} of them from this client: as many as may",
            RETRY_SECONDS,
        )


class RateLimited(Overloaded):
    reason = "rate_limited"

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(f"you ask faster than this server lets one client; wait {retry_seconds:.3f} s", retry_seconds)


class Unauthenticated(AttendantError):
    """No credentials, or wrong ones; the message never holds them."""

    code = "UNAUTHENTICATED"
    reason = "unauthenticated"


class PermissionDenied(AttendantError):
    code = "PERMISSION_DENIED"
    reason = "permission_denied"


class UnknownMethod(AttendantError):
    """A call of a path that no service has; the path is not repeated, for it may be anything."""

    code = "UNIMPLEMENTED"
    reason = "unknown_method"
    default_message = "this server has no such method; reflection lists those that it has"


class DeadlineExceeded(AttendantError):
    code = "DEADLINE_EXCEEDED"
    reason = "deadline_exceeded"
    default_message = "the deadline passed before the answer was whole"


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
    default_message = "the request's message did not arrive whole in time; send it again"


class IdleStream(Unavailable):
    reason = "idle_stream"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing came on this stream for {seconds:g} s; begin another one when there is something")


class Stalled(Unavailable):
    reason = "stalled"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer was read for {seconds:g} s; ask for what is unanswered on another stream")


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
    """What a caller is told of whatever was raised; None: nothing, it was an answer or a cancellation."""
    if raised is None or isinstance(raised, AttendantError):
        return raised
    return InternalError() if isinstance(raised, Exception) else None
