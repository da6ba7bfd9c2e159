"""The log.

A client that disconnects can send any bytes in a frame, which gRPC's core used to print unchanged. By default, the log
has no text of callers.
"""

import contextlib
import socket
import struct
import time

import grpc
import h2.events
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.attacker import GENERATE, RawConnection, frame, framed
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least, at_most
from tests.faults.witness import witness
from tests.server_process import MEBIBYTE

SECRET = "opensesame"
FORGED = "\ntime=2026-01-01T00:00:00.000Z level=info logger=attendant.server.app message=forged\n"
LAST_WORDS = (FORGED * 200).encode()[:16000]
ENHANCE_YOUR_CALM = 11
GOAWAY = 7


FAREWELL = frame(GOAWAY, struct.pack(">II", 0, ENHANCE_YOUR_CALM) + LAST_WORDS)


def say(target: str, num_farewells: int) -> int:
    """Sends GOAWAY frames on one connection; returns the number of their bytes."""
    with RawConnection(target) as connection:
        connection.receive(0.1)
        for number in range(num_farewells):
            try:
                connection.socket.sendall(FAREWELL)
            except OSError:
                return number * len(FAREWELL)
    return num_farewells * len(FAREWELL)


def test_no_client_writes_into_the_log(start: Start) -> None:
    with start("--workers", "2") as running, grpc.insecure_channel(running.target) as channel:
        before = running.num_log_bytes()
        host, _, port = running.target.rpartition(":")
        with witness(running.target) as seen:
            assert say(running.target, 500) > 1e6
            for sent in (b"garbage\n" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\n" * 1000):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(sent)
                    connection.settimeout(1)
                    with contextlib.suppress(OSError):
                        connection.recv(1000)
        with RawConnection(running.target) as connection:
            headers = {"authorization": b"Bearer \xff" + SECRET.encode(), "x-other": b"\xff" + FORGED.strip().encode()}
            stream = connection.open_stream(GENERATE, headers)
            connection.send(stream, framed(messages.GenerateRequest(text="abc")), end=True)
            while not any(isinstance(event, h2.events.StreamEnded) for event in connection.receive(0.1)):
                assert not connection.closed
        with pytest.raises(grpc.RpcError):
            seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(messages.GenerateRequest(text=FORGED, model=FORGED))
        assert running.num_log_bytes() == before, running.log()
        assert set(seen.codes) == {"OK"}


@pytest.mark.parametrize(("log_format", "log_texts"), [("text", ()), ("json", ("--log-texts", "on"))])
def test_a_request_writes_one_printable_line_which_has_texts_by_option_only(
    start: Start, log_format: str, log_texts: tuple[str, ...]
) -> None:
    hostile = FORGED + "\x1b[2J\x85\u2028\u2029\u202e\u2066\x9b"
    requests = (
        messages.GenerateRequest(request_id="r1", text=SECRET),
        messages.GenerateRequest(request_id="r2"),
        messages.GenerateRequest(request_id=hostile, model=hostile, text=hostile),
        messages.GenerateRequest(request_id=hostile, text=hostile),
        messages.GenerateRequest(tokens={"tokens": ["a", SECRET]}),
        messages.GenerateRequest(text="abc", decoding={"target_prefix": {"tokens": [SECRET]}}),
        messages.GenerateRequest(text="abc", model=SECRET),
    )
    options = "--log-level", "debug", "--log-requests", "on", "--log-format", log_format, *log_texts
    with start(*options) as running, grpc.insecure_channel(running.target) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        codes = []
        for request in requests:
            try:
                stub.Generate(request)
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
                assert SECRET in error.details() or SECRET not in str(request), "the caller gets the reason"
        for _ in stub.GenerateBatch(iter(requests)):
            pass
        invalid, unknown = "INVALID_ARGUMENT", "NOT_FOUND"
        assert codes == ["OK", invalid, unknown, invalid, invalid, invalid, unknown]
        lines = running.log().split("\n")
        assert lines.pop() == ""
        begin = '{"time": "' if log_format == "json" else "time="
        assert all(line.isprintable() and line.startswith(begin) for line in lines)
        ended = [line for line in lines if "request ended" in line]
        assert len(ended) == 2 * len(requests) and sum("message=forged" in line for line in ended) == 4
        assert any(SECRET in line for line in lines) == bool(log_texts)
        if log_format == "text":
            for line, facts in zip(ended, ("request_id=r1 ", "request_id=r2 "), strict=False):
                assert "level=info" in line and facts in line and "seconds=" in line


@pytest.mark.reliability
def test_messages_of_clients_add_no_log_lines(start: Start, figure: Figure) -> None:
    with start() as running:
        before, began, sent = running.num_log_bytes(), time.monotonic(), 0
        with witness(running.target) as seen:
            while time.monotonic() - began < 10:
                sent += say(running.target, 10_000)
        figure("debug data of closing clients, sent in 10 s", sent / MEBIBYTE, at_least(100), "MiB")
        figure("log lines that they made", running.num_log_bytes() - before, at_most(0), "bytes")
        figure("other calls that failed meanwhile", seen.num_failed, at_most(0), "calls")
