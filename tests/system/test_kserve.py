"""KServe's own client, from PyPI and unchanged, asks a server by the Open Inference Protocol."""

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


def test_it_works_unchanged() -> None:
    python = python_of("kserve")
    with server(str(ROOT / "models" / MODEL)) as running, grpc.insecure_channel(running.target) as channel:
        told = json.loads(run(python, Path(__file__).with_name("kserve_client.py"), running.target, MODEL))
        stub, decoding = seq2seq_pb2_grpc.Seq2SeqStub(channel), messages.DecodingOptions(beam_size=2)
        ours = [
            stub.Generate(messages.GenerateRequest(text=text, decoding=decoding), timeout=60).hypotheses[0]
            for text in ("phoneme", "knowledgeable")
        ]
    assert told["live"] and told["ready"] and told["model ready"]
    assert told["server"] == "attendant" and told["inputs"] == [["text", "BYTES", [-1]]]
    outputs = {name: [[getattr(one, name)] for one in ours] for name in ("text", "score", "log_prob")}
    assert told["raw"] == told["typed"] == {"id": "mine", "model": MODEL, "outputs": outputs}
    tokens, attention = told["chosen"]["outputs"]["tokens"], told["chosen"]["outputs"]["attention"]
    assert [[token for token in one if token] for (one,) in tokens] == [one.text.split() for one in ours]
    assert len(attention) == 2
    assert told["refused"][0] == "INVALID_ARGUMENT" and "'beem_size'" in told["refused"][1]
    assert told["unknown"] is False
