"""Tests of every error: its gRPC and HTTP status, its details, and its transfer from a worker process."""

import math
import pickle

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from attendant.runtime.errors import Violation
from attendant.server import errors
from attendant.server.grpc.handlers import DETAILS_KEY, PUSHBACK_KEY, REQUEST_ID_KEY, abort
from attendant.server.http.endpoints import STATUSES, problem_response

EXAMPLES: dict[errors.AttendantError, str] = {
    errors.InvalidArgument(Violation("text", "0 tokens long", "1 to 64 tokens long")): "INVALID_ARGUMENT",
    errors.Undecodable(17): "INVALID_ARGUMENT",
    errors.UnknownModel("nope", ["b", "a"]): "NOT_FOUND",
    errors.UnknownVersion("a", "9", []): "NOT_FOUND",
    errors.LoadRefused("2: the bundle is refused"): "FAILED_PRECONDITION",
    errors.QueueFull(1024, 600, 0.25): "RESOURCE_EXHAUSTED",
    errors.WaitTooLong(40.0, 30.0, retry_seconds=40.0): "RESOURCE_EXHAUSTED",
    errors.ClientLimit(9, "rows", 8, retry_seconds=0.5): "RESOURCE_EXHAUSTED",
    errors.DeadlineTooShort(0.1, 1.5, retry_seconds=1.5): "RESOURCE_EXHAUSTED",
    errors.TooManyStreams(128, 64): "RESOURCE_EXHAUSTED",
    errors.TooManyUnread(1000): "RESOURCE_EXHAUSTED",
    errors.IdleStream(300): "UNAVAILABLE",
    errors.TooManyCalls(100, 64): "RESOURCE_EXHAUSTED",
    errors.RateLimited(0.25, retry_seconds=0.25): "RESOURCE_EXHAUSTED",
    errors.Unauthenticated("no token"): "UNAUTHENTICATED",
    errors.PermissionDenied("for administrators"): "PERMISSION_DENIED",
    errors.UnknownMethod(): "UNIMPLEMENTED",
    errors.OutOfTime(retry_seconds=0.3): "RESOURCE_EXHAUSTED",
    errors.DeadlineExceeded(): "DEADLINE_EXCEEDED",
    errors.Cancelled(): "CANCELLED",
    errors.NotReady(): "UNAVAILABLE",
    errors.Draining(): "UNAVAILABLE",
    errors.Unread(): "UNAVAILABLE",
    errors.Stalled(30.0): "UNAVAILABLE",
    errors.EngineDead(): "UNAVAILABLE",
    errors.InternalError(): "INTERNAL",
    errors.PoisonedRequest(): "INTERNAL",
}


class Aborted(Exception):
    pass


class RecordingContext:
    """Keeps the arguments of `abort`."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, str], ...]) -> None:
        self.code, self.details, self.metadata = code, details, dict(trailing_metadata)
        raise Aborted


async def aborted(error: errors.AttendantError, request_id: str = "made-up") -> RecordingContext:
    context = RecordingContext()
    with pytest.raises(Aborted):
        await abort(context, error, request_id)
    return context


def unpacked(context: RecordingContext, kind: type[Message]) -> Message:
    status = status_pb2.Status.FromString(context.metadata[DETAILS_KEY])
    assert (status.code, status.message) == (context.code.value[0], context.details)
    detail = kind()
    assert sum(packed.Unpack(detail) for packed in status.details) == 1
    return detail


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_of_a_worker_process_arrives_as_it_was(error: errors.AttendantError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def leaves(kind: type[errors.AttendantError] = errors.AttendantError) -> set[str]:
    below = [subclass for subclass in kind.__subclasses__() if subclass.__module__ == errors.__name__]
    return set().union(*map(leaves, below)) if below else {kind.__name__}


def test_the_examples_are_all_errors() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == leaves()
    assert len({error.reason for error in EXAMPLES}) == len(EXAMPLES), "labels tell them apart"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_every_error_has_its_status(error: errors.AttendantError) -> None:
    context = await aborted(error)
    assert context.code.name == EXAMPLES[error] and error.code in STATUSES
    assert context.details == str(error) != ""
    assert "\n" not in context.details
    assert (PUSHBACK_KEY in context.metadata) == isinstance(error, errors.Overloaded)
    for request_id in ("made-up", "日本"):
        context = await aborted(error, request_id)
        detail = unpacked(context, error_details_pb2.RequestInfo)
        assert isinstance(detail, error_details_pb2.RequestInfo) and detail.request_id == request_id
        assert (REQUEST_ID_KEY in context.metadata) == request_id.isascii(), "others can't stand there"


async def test_every_violation_is_in_the_details() -> None:
    violations = [Violation(f"field_{i}", str(i), "something else") for i in range(20)]
    context = await aborted(errors.InvalidArgument(*violations))
    detail = unpacked(context, error_details_pb2.BadRequest)
    assert isinstance(detail, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in detail.field_violations] == [
        (violation.field, f"is {violation.value}, must be something else") for violation in violations
    ]
    assert "field_7 is 7, must be something else" in context.details
    assert context.details.endswith("and 12 more")


async def test_details_fit_into_trailing_metadata() -> None:
    """Clients treat a status that is too large as RESOURCE_EXHAUSTED, and retry."""
    violations = [Violation(f"inputs[text][{i}]", "x" * 100_000, "something else") for i in range(256)]
    context = await aborted(errors.InvalidArgument(*violations))
    detail = unpacked(context, error_details_pb2.BadRequest)
    assert isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations
    assert 4 / 3 * len(context.metadata[DETAILS_KEY]) + len(context.details) < 8192


async def test_the_retry_delay_is_sent_twice() -> None:
    context = await aborted(errors.QueueFull(3, 2, 0.2504))
    detail = unpacked(context, error_details_pb2.RetryInfo)
    assert isinstance(detail, error_details_pb2.RetryInfo)
    assert detail.retry_delay.ToNanoseconds() == 250_400_000
    assert context.metadata[PUSHBACK_KEY] == "251", "never earlier than it says"


async def test_an_infinite_retry_delay_is_sent_as_a_large_number() -> None:
    error = errors.RateLimited(math.inf, retry_seconds=math.inf)  # --client-requests-per-second 1e-320
    assert (await aborted(error)).metadata[PUSHBACK_KEY] == "1000000000"
    assert problem_response(error, "made-up").headers["retry-after"] == "1000000"
