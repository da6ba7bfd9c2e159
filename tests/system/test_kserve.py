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
    ("environment", "client", "num_answers"), [("tritonclient-http", "tritonclient", 16), ("kserve", "kserve", 2)]
)
def test_kserves_http_clients_get_the_servers_answers(environment: str, client: str, num_answers: int) -> None:
    program = Path(__file__).with_name("inference_http_clients.py")
    with server(str(ROOT / "models" / MODEL)) as running, grpc.insecure_channel(running.target) as channel:
        target = f"127.0.0.1:{running.metrics_port}"
        report = json.loads(run(python_of(environment), program, client, target, MODEL))
        requests = [{"text": text, "decoding": {"beam_size": 2}} for text in ("phoneme", "knowledgeable")]
        listed = messages.GenerateManyRequest(requests=requests)
        answer = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateMany(listed, timeout=60)
    texts = [result.response.hypotheses[0].text for result in answer.results]
    assert report["live"] and report["ready"] and report["model ready"] == [True, False]
    assert report["texts"] == [texts] * num_answers
    status, message = report["refused"]
    assert status == "400" and "beem_size" in message
    if client == "tritonclient":
        assert (report["server"], report["index"]) == ("attendant", ["READY"])
        assert report["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_kserves_grpc_client_gets_the_servers_answers() -> None:
    python = python_of("kserve")
    with server(str(ROOT / "models" / MODEL)) as running, grpc.insecure_channel(running.target) as channel:
        report = json.loads(run(python, Path(__file__).with_name("kserve_client.py"), running.target, MODEL))
        stub, decoding = seq2seq_pb2_grpc.Seq2SeqStub(channel), messages.DecodingOptions(beam_size=2)
        ours = [
            stub.Generate(messages.GenerateRequest(text=text, decoding=decoding), timeout=60).hypotheses[0]
            for text in ("phoneme", "knowledgeable")
        ]
    assert report["live"] and report["ready"] and report["model ready"]
    assert report["server"] == "attendant" and report["inputs"] == [["text", "BYTES", [-1]]]
    outputs = {name: [[getattr(hypothesis, name)] for hypothesis in ours] for name in ("text", "score", "log_prob")}
    assert report["raw"] == report["typed"] == {"id": "mine", "model": MODEL, "outputs": outputs}
    tokens, attention = report["chosen"]["outputs"]["tokens"], report["chosen"]["outputs"]["attention"]
    assert [[token for token in row if token] for (row,) in tokens] == [best.text.split() for best in ours]
    assert len(attention) == 2
    assert report["refused"][0] == "INVALID_ARGUMENT" and "'beem_size'" in report["refused"][1]
    assert report["unknown"] is False
