"""Undecodable messages."""

import json

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Start

GARBAGE = b"\x0a\xff\xff\xff\xff\x0f"
SERVICE = "/attendant.v1.Seq2Seq/"
UNARY = ("Generate", "Score", "GetModel", "ListModels")


def counted(metrics: dict[str, float], method: str) -> float:
    labels = {"code": "INVALID_ARGUMENT", "method": method, "model": "tiny"}
    return metrics[f"attendant_requests_total{json.dumps(labels, sort_keys=True)}"]


def test_a_message_that_is_none_is_refused_counted_and_one_line(start: Start) -> None:
    good = messages.GenerateRequest(text="badge", request_id="good").SerializeToString()
    with start() as running, grpc.insecure_channel(running.target) as channel:
        for method in (*(SERVICE + response for response in UNARY), "/grpc.health.v1.Health/Check"):
            call = channel.unary_unary(method)
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as refusal:
                    call(GARBAGE, timeout=20)
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "6 bytes" in refusal.value.details()

        contents = [good, GARBAGE, good, GARBAGE, GARBAGE, good]
        answers = channel.stream_stream(SERVICE + "GenerateBatch")(iter(contents), timeout=20)
        responses = [messages.GenerateBatchResponse.FromString(response) for response in answers]
        assert sorted(response.WhichOneof("result") for response in responses) == ["error"] * 3 + ["response"] * 3
        for response in responses:
            if response.WhichOneof("result") == "error":
                assert (response.error.code, response.request_id) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "")

        metrics = running.metrics()
        for method in (*UNARY, "GenerateBatch"):
            assert counted(metrics, method) == 3
        assert metrics['attendant_rejected_total{"model": "tiny", "reason": "undecodable"}'] == 15
        assert metrics['attendant_rejected_total{"model": "", "reason": "undecodable"}'] == 3, "of other services"
        log = running.log()
        assert log.count('message="undecodable message"') == 18
        assert "Traceback" not in log and len(log.splitlines()) < 30

        # A call that sends no message at all.
        with pytest.raises(grpc.RpcError) as refusal:
            channel.stream_unary(SERVICE + "Generate")(iter(()), timeout=20)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
