"""KServe's and NVIDIA's own clients, from PyPI and unchanged, call a server by the Open Inference Protocol."""

import json
from pathlib import Path

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.environments import python_of, run
from tests.paths import ROOT
from tests.server_process import server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "g2p-en"


@pytest.mark.parametrize(
    ("environment", "client", "num_answers"),
    [("tritonclient-http", "triton", 16), ("kserve", "kserve_http", 2), ("kserve", "kserve_grpc", 2)],
)
def test_clients_of_the_protocol_get_the_servers_answers(environment: str, client: str, num_answers: int) -> None:
    program = Path(__file__).with_name("inference_clients.py")
    with server(str(ROOT / "models" / MODEL)) as running, grpc.insecure_channel(running.target) as channel:
        target = running.target if client == "kserve_grpc" else f"127.0.0.1:{running.metrics_port}"
        report = json.loads(run(python_of(environment), program, client, target, MODEL))
        requests = [{"text": text, "decoding": {"beam_size": 2}} for text in ("phoneme", "knowledgeable")]
        listed = messages.GenerateManyRequest(requests=requests)
        answer = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateMany(listed, timeout=60)
    texts = [result.response.hypotheses[0].text for result in answer.results]
    assert report["live"] and report["ready"] and report["model ready"] == [True, False]
    assert report["texts"] == [texts] * num_answers
    status, message = report["refused"]
    assert status in ("400", "INVALID_ARGUMENT") and "beem_size" in message
    if client == "triton":
        assert (report["server"], report["index"]) == ("attendant", ["READY"])
        assert report["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
