"""Every error of the tree, through the mapping that the servicers use."""

import pickle

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from attendant.runtime.violations import Violation
from attendant.server import errors
from attendant.server.grpc.handlers import DETAILS_KEY, PUSHBACK_KEY, REQUEST_ID_KEY, abort

EXAMPLES: list[errors.AttendantError] = [
    errors.InvalidArgument(Violation("text", "0 tokens long", "1 to 64 tokens long")),
    errors.Undecodable(17),
    errors.UnknownModel("nope", ["b", "a"]),
    errors.UnknownVersion("a", "9", []),
    errors.LoadRefused("2: the bundle is refused"),
    errors.QueueFull(1024, 600, 0.25),
    errors.WaitTooLong(40.0, 30.0),
    errors.ClientLimit(9, "rows", 8, 0.5),
    errors.DeadlineTooShort(0.1, 1.5),
    errors.TooManyStreams(128, 64),
    errors.TooManyUnread(1000),
    errors.IdleStream(300),
    errors.TooManyCalls(100, 64),
    errors.RateLimited(0.25),
    errors.Unauthenticated("no token"),
    errors.PermissionDenied("for administrators"),
    errors.UnknownMethod(),
    errors.OutOfTime(0.3),
    errors.DeadlineExceeded(),
    errors.Cancelled(),
    errors.NotReady(),
    errors.Draining(),
    errors.Unread(),
    errors.Stalled(30.0),
    errors.EngineDead(),
    errors.InternalError(),
    errors.PoisonedRequest(),
]
CODES = {
    "InvalidArgument": "INVALID_ARGUMENT",
    "Undecodable": "INVALID_ARGUMENT",
    "UnknownModel": "NOT_FOUND",
    "UnknownVersion": "NOT_FOUND",
    "LoadRefused": "FAILED_PRECONDITION",
    "QueueFull": "RESOURCE_EXHAUSTED",
    "WaitTooLong": "RESOURCE_EXHAUSTED",
    "ClientLimit": "RESOURCE_EXHAUSTED",
    "OutOfTime": "RESOURCE_EXHAUSTED",
    "DeadlineTooShort": "RESOURCE_EXHAUSTED",
    "TooManyStreams": "RESOURCE_EXHAUSTED",
    "TooManyCalls": "RESOURCE_EXHAUSTED",
    "TooManyUnread": "RESOURCE_EXHAUSTED",
    "RateLimited": "RESOURCE_EXHAUSTED",
    "Unauthenticated": "UNAUTHENTICATED",
    "PermissionDenied": "PERMISSION_DENIED",
    "UnknownMethod": "UNIMPLEMENTED",
    "DeadlineExceeded": "DEADLINE_EXCEEDED",
    "Cancelled": "CANCELLED",
    "NotReady": "UNAVAILABLE",
    "Draining": "UNAVAILABLE",
    "Unread": "UNAVAILABLE",
    "IdleStream": "UNAVAILABLE",
    "Stalled": "UNAVAILABLE",
    "EngineDead": "UNAVAILABLE",
    "InternalError": "INTERNAL",
    "PoisonedRequest": "INTERNAL",
}


class Aborted(Exception):
    pass


class RecordingContext:
    """What abort was called with."""

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
    below = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return set().union(*map(leaves, below)) if below else {kind.__name__}


def test_the_examples_are_the_whole_tree() -> None:
    assert {type(one).__name__ for one in EXAMPLES} == leaves() == set(CODES)


def test_the_drawing_shows_every_class_with_its_code_and_label() -> None:
    drawing = errors.__doc__ or ""
    lines = {line.strip("|`- ").split(" ", 1)[0]: line for line in drawing.splitlines()}
    for one in EXAMPLES:
        assert one.reason in lines[type(one).__name__].split()
    assert len({one.reason for one in EXAMPLES}) == len(EXAMPLES), "labels tell them apart"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_every_error_has_its_status(error: errors.AttendantError) -> None:
    context = await aborted(error)
    assert context.code.name == CODES[type(error).__name__]
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
        (one.field, f"is {one.value}, must be something else") for one in violations
    ]
    assert "field_7 is 7, must be something else" in context.details
    assert context.details.endswith("and 12 more")


async def test_details_fit_into_trailing_metadata() -> None:
    """Clients take a status that is too large for RESOURCE_EXHAUSTED, and try again."""
    violations = [Violation(f"inputs[text][{i}]", "x" * 100_000, "something else") for i in range(256)]
    context = await aborted(errors.InvalidArgument(*violations))
    detail = unpacked(context, error_details_pb2.BadRequest)
    assert isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations
    assert 4 / 3 * len(context.metadata[DETAILS_KEY]) + len(context.details) < 8192


async def test_the_retry_delay_is_told_twice() -> None:
    context = await aborted(errors.QueueFull(3, 2, 0.2504))
    detail = unpacked(context, error_details_pb2.RetryInfo)
    assert isinstance(detail, error_details_pb2.RetryInfo)
    assert detail.retry_delay.ToNanoseconds() == 250_400_000
    assert context.metadata[PUSHBACK_KEY] == "251", "never earlier than it says"


def test_a_callers_string_stays_short_and_on_one_line() -> None:
    error = errors.UnknownModel("a\nb" + "x" * 10_000, ["m"])
    assert "\n" not in str(error)
    assert len(str(error)) < 120
