"""Answers of a bulk stream.

Requests that are refused must wait for room like others: a client that sends them and reads nothing is held back.
"""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from attendant.server.engine.shares import MAX_ANSWER_BYTES
from attendant.server.grpc.lists import REFUSAL_BYTES
from attendant.server.grpc.service import SERVICE_NAME
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most
from tests.faults.witness import witness
from tests.server_process import Running, eventually

OF_STREAMS = {"grpc_method": "GenerateBatch", "grpc_service": SERVICE_NAME, "grpc_type": "bidi_stream"}
RECEIVED = f"grpc_server_msg_received_total{json.dumps(OF_STREAMS)}"
MAX_REFUSALS = MAX_ANSWER_BYTES // 2 // REFUSAL_BYTES
WINDOW_BYTES = 65_536
LEAST_ANSWER_BYTES = 200


@contextmanager
def never_reading(target: str, requests: Iterator[messages.GenerateRequest]) -> Iterator[Any]:
    """A bulk stream on a connection of its own, whose client sends what it may and reads nothing."""
    # Without its probing a connection takes 64 KiB, whatever its speed.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateBatch(requests)
        yield call
        call.cancel()


def stands_still(running: Running, name: str, seconds: float = 1.0) -> float:
    """A metric's value, once it has not changed for so long."""
    before = -1.0
    while (now := running.metrics().get(name, 0.0)) != before or not now:
        before = now
        time.sleep(seconds)
    return now


def test_refused_requests_wait_for_memory(start: Start) -> None:
    wrong = messages.GenerateRequest(request_id="i" * 20_000, text="badge", decoding={"beam_size": 99, "patience": 99})
    with start() as running, witness(running.target) as seen:
        before = running.resident_mebibytes()
        with never_reading(running.target, itertools.repeat(wrong)):
            num_read = stands_still(running, RECEIVED)
            assert num_read <= 1 + MAX_REFUSALS + WINDOW_BYTES // LEAST_ANSWER_BYTES
            assert running.metrics()['attendant_bulk_answers_bytes{"model": ""}'] <= MAX_ANSWER_BYTES / 2
            assert running.resident_mebibytes() < before + 64, "the requests themselves, 160 MiB, are not kept"
        eventually(lambda: running.metrics()['attendant_bulk_answers_bytes{"model": ""}'] == 0)
    assert set(seen.codes) == {"OK"}


@pytest.mark.reliability
def test_memory_under_refused_requests(start: Start, figure: Figure) -> None:
    """9,800 messages with a request_id of 250 kB used to take 2.1 GiB in 7.8 s."""
    wrong = messages.GenerateRequest(request_id="i" * 250_000, text="badge")
    with start() as running:
        before = running.resident_mebibytes()
        most, began = before, time.monotonic()
        with never_reading(running.target, itertools.repeat(wrong)):
            while time.monotonic() < began + 60:
                most = max(most, running.resident_mebibytes())
                time.sleep(0.1)
        print("requests read:", running.metrics()[RECEIVED])
    figure("memory more, 60 s of refused requests with ids of 250 kB, never read", most - before, at_most(64), "MiB")
