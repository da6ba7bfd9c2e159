"""Slow readers.

A bulk stream that is not read must not take engine places or memory from the others.
"""

import itertools
import threading
import time
from contextlib import ExitStack, suppress

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.conftest import Figure
from tests.faults.figures import at_least
from tests.faults.test_bulk_answers import never_reading
from tests.paths import ROOT
from tests.server_process import eventually, server

STALLED = 'attendant_bulk_streams_stalled{"model": ""}'
PLACES = 'attendant_bulk_requests{"model": "g2p-en"}'
NUM_OTHERS = 10
ROUND_SECONDS = 6.0
RIGHT = messages.GenerateRequest(text="badge", output={"attention": True, "token_log_probs": True})


def answers_of_others(target: str, requests: int | None = None, seconds: float | None = None) -> list[int]:
    """Counts the answers that each of ten streams reads: to `requests` requests, or within `seconds`."""
    batch = [messages.GenerateRequest(text="cabbage")]
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        calls = [
            stub.GenerateBatch(iter(batch * requests) if requests else itertools.repeat(batch[0]))
            for _ in range(NUM_OTHERS)
        ]
        counts = [0] * NUM_OTHERS

        def read(number: int) -> None:
            with suppress(grpc.RpcError):  # cancelled, after `seconds`
                for _ in calls[number]:
                    counts[number] += 1

        threads = [threading.Thread(target=read, args=(number,)) for number in range(NUM_OTHERS)]
        for thread in threads:
            thread.start()
        if seconds is not None:
            time.sleep(seconds)
            for call in calls:
                call.cancel()
        for thread in threads:
            thread.join()
    return counts


@pytest.mark.reliability
def test_streams_that_are_never_read_leave_others_their_share(figure: Figure) -> None:
    """Checks ten other streams: 900 requests never read used to leave them 0 of 200 answers in 60 s."""
    alone, alongside = 0, 0
    with server(str(ROOT / "models" / "g2p-en"), "--bulk-seconds", "1") as running:
        answers_of_others(running.target, seconds=2)
        for _ in range(3):
            alone += sum(answers_of_others(running.target, seconds=ROUND_SECONDS))
            with ExitStack() as stack:
                for _ in range(3):
                    stack.enter_context(never_reading(running.target, itertools.repeat(RIGHT)))
                eventually(lambda: running.metrics()[STALLED] == 3 and running.metrics()[PLACES] == 0)
                alongside += sum(answers_of_others(running.target, seconds=ROUND_SECONDS))
    print("answers of ten streams alone:", alone, "alongside three that are not read:", alongside)
    figure(
        "answers of ten streams alongside three that are never read, of those alone",
        alongside / alone,
        at_least(0.9),
        "",
    )
