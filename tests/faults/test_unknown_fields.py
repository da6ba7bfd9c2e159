"""Unknown fields and source text.

What clients make up is not remembered beyond a bound, and what they write is not in the log.
"""

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most

SECRET = "opensesame"
UNKNOWN_FIELD = bytes([0xFA, 0x7F])
"""Field 2047, of some length."""


@pytest.mark.parametrize("option", [(), ("--log-texts", "on")], ids=["by default", "by option"])
def test_the_log_holds_no_texts(start: Start, option: tuple[str, ...]) -> None:
    requests = (
        messages.GenerateRequest(text=SECRET),
        messages.GenerateRequest(tokens={"tokens": ["a", SECRET]}),
        messages.GenerateRequest(text="abc", decoding={"target_prefix": {"tokens": [SECRET]}}),
        messages.GenerateRequest(text="abc", model=SECRET),
    )
    with start("--log-level", "debug", *option) as running, grpc.insecure_channel(running.target) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        codes = []
        for request in requests:
            try:
                stub.Generate(request)
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
                assert SECRET in error.details(), "the caller is told"
        for _ in stub.GenerateBatch(iter(requests)):
            pass
        assert codes == ["OK", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "NOT_FOUND"]
        log = running.log()
        assert log.count('message="request ended"') == 8
        assert (SECRET in log) == bool(option)


def flood_with_unknown_fields(target: str, count: int, size: int) -> None:
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/attendant.v1.Seq2Seq/Generate")
        for number in range(count):
            unknown = UNKNOWN_FIELD + varint(size) + f"{number:0{size}}".encode()
            decoding = messages.DecodingOptions(beam_size=1).SerializeToString() + unknown
            request = messages.GenerateRequest(text="abc").SerializeToString()
            call(request + bytes([5 << 3 | 2]) + varint(len(decoding)) + decoding)


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


@pytest.mark.reliability
def test_memory_under_distinct_unknown_fields(start: Start, figure: Figure) -> None:
    """Decoding options were remembered with whatever came with them: 1,024 of 250 kB each."""
    with start() as running:
        flood_with_unknown_fields(running.target, 50, 250_000)
        before = running.resident_mebibytes()
        flood_with_unknown_fields(running.target, 1500, 250_000)
        more = running.resident_mebibytes() - before
    figure("memory more, 1,500 requests of distinct unknown fields of 250 kB", more, at_most(32), "MiB")
