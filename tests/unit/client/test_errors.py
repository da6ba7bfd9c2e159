"""One class per status code, and what google.rpc details say."""

import inspect

import grpc
import pytest

from attendant_client import AttendantClient, AttendantError, InvalidArgument, Overloaded, Violation, errors
from tests.unit.client.fake_server import Failure, Served, retry_info, violation

CLASSES = {
    "INVALID_ARGUMENT": "InvalidArgument",
    "NOT_FOUND": "NotFound",
    "UNAUTHENTICATED": "Unauthenticated",
    "UNIMPLEMENTED": "Unimplemented",
    "RESOURCE_EXHAUSTED": "Overloaded",
    "UNAVAILABLE": "Unavailable",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
}
# The server forbids retries, so that each failure is seen as it is.
NO_RETRY = (("grpc-retry-pushback-ms", "-1"),)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=str)
async def test_each_code_has_its_class(client: AttendantClient, server: Served, code: grpc.StatusCode) -> None:
    server.seq2seq.failures.append(Failure(code, "why\nit failed", trailers=NO_RETRY))
    with pytest.raises(AttendantError) as caught:
        await client.generate("a")
    assert type(caught.value).__name__ == CLASSES.get(code.name, "ServerError")
    assert caught.value.code is code
    assert str(caught.value) == caught.value.message == "why it failed"


async def test_a_silent_failure_still_says_something(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.append(Failure(grpc.StatusCode.UNAUTHENTICATED, ""))
    with pytest.raises(AttendantError, match="the server wants credentials"):
        await client.models()


async def test_violations(client: AttendantClient, server: Served) -> None:
    details = (retry_info(1), violation("decoding.beam_size", "must be 1 to 8, got 9"))
    server.seq2seq.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, details=details))
    with pytest.raises(InvalidArgument) as caught:
        await client.generate("a")
    assert caught.value.violations == (Violation("decoding.beam_size", "must be 1 to 8, got 9"),)


async def test_when_to_come_again(client: AttendantClient, server: Served) -> None:
    failure = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, details=(retry_info(1.5),), trailers=NO_RETRY)
    server.seq2seq.failures.extend([failure, Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=NO_RETRY)])
    with pytest.raises(Overloaded) as caught:
        await client.generate("a")
    assert caught.value.retry_seconds == 1.5
    with pytest.raises(Overloaded) as caught:
        await client.generate("a")
    assert caught.value.retry_seconds is None


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x1a\x02\x12\x05"])
async def test_details_that_nobody_can_read_are_left_out(
    client: AttendantClient, server: Served, garbage: bytes
) -> None:
    trailers = (("grpc-status-details-bin", garbage),)
    server.seq2seq.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "so", trailers=trailers))
    with pytest.raises(InvalidArgument, match="so") as caught:
        await client.generate("a")
    assert caught.value.violations == ()


def test_the_drawn_tree_is_the_tree() -> None:
    drawing = inspect.getdoc(errors) or ""
    for code, name in CLASSES.items():
        assert any(name in line and code in line for line in drawing.splitlines()), name
    classes = {c.__name__ for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AttendantError)}
    assert classes == {*CLASSES.values(), "AttendantError", "ServerError", "TlsFailed"}
