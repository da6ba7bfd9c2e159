"""Answers of a bulk stream.

Refused requests must wait for room like others: a client that sends them and reads nothing is held back.
"""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from attendant.server.grpc.service import SERVICE_NAME
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most

OF_STREAMS = {"grpc_method": "GenerateBatch", "grpc_service": SERVICE_NAME, "grpc_type": "bidi_stream"}
RECEIVED = f"grpc_server_msg_received_total{json.dumps(OF_STREAMS)}"


@contextmanager
def never_reading(target: str, requests: Iterator[messages.GenerateRequest]) -> Iterator[Any]:
    """Opens a bulk stream on its own connection; the client sends all it can and reads nothing."""
    # Without bandwidth probing, a connection's window is 64 KiB at any speed.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateBatch(requests)
        yield call
        call.cancel()


@pytest.mark.reliability
def test_refused_requests_with_long_ids_use_little_memory(start: Start, figure: Figure) -> None:
    """Checks the memory: 9,800 messages with a request_id of 250 kB used to take 2.1 GiB in 7.8 s."""
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
