"""Unknown fields and source text.

The server's memory of unknown fields is bounded. test_log.py checks that the log has no source text.
"""

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most

UNKNOWN_FIELD = bytes([0xFA, 0x7F])
"""Tag of field 2047, which is length-delimited."""


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
    """Checks the cache of decoding options, which used to keep unknown fields: 1,024 entries of 250 kB each."""
    with start() as running:
        flood_with_unknown_fields(running.target, 50, 250_000)
        before = running.resident_mebibytes()
        flood_with_unknown_fields(running.target, 1500, 250_000)
        more = running.resident_mebibytes() - before
    figure("memory more, 1,500 requests of distinct unknown fields of 250 kB", more, at_most(32), "MiB")
