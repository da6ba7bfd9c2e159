"""Tests of the Open Inference Protocol with NVIDIA's client, and with a client that sends no raw contents."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.inference import inference_stub, text_tensor
from tests.paths import ROOT
from tests.server_process import Running, server

ADMIN = "admin-token-0123456789"


@pytest.fixture(scope="module")
def running(repository: Path, tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    admins = tmp_path_factory.mktemp("access") / "admins"
    admins.write_text(f"operator {ADMIN}\n")
    options = "--admin-tokens", str(admins), "--repository-seconds", "0"
    with server(str(repository), str(tiny_bundle_path), *options) as started:
        yield started


@pytest.fixture(scope="module")
def replies(running: Running, repository: Path, environment: dict[str, str], expected: Any) -> Any:
    """Runs the client once; returns all that it receives."""
    program = [sys.executable, "-m", "tests.integration.triton_client", running.target, ADMIN, str(repository)]
    run = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def expected(running: Running) -> Any:
    """Returns a function that calls Generate with a text and options."""
    with grpc.insecure_channel(running.target) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)

        def ask(text: str, **options: Any) -> messages.GenerateResponse:
            decoding = messages.DecodingOptions(**options)
            output = messages.OutputOptions(attention=True, token_log_probs=True)
            request = messages.GenerateRequest(text=text, model="tiny", decoding=decoding, output=output)
            return stub.Generate(request, timeout=60)

        yield ask


def test_health_and_metadata(replies: Any) -> None:
    assert replies["live"] and replies["ready"]
    assert replies["model ready"] == [True, True, False] and not replies["unknown ready"]
    assert replies["server"]["name"] == "attendant" and "model_repository" in replies["server"]["extensions"]
    assert replies["model"]["versions"] == ["1"]
    assert replies["model"]["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1"]}]
    shapes = {output["name"]: len(output["shape"]) for output in replies["model"]["outputs"]}
    assert shapes == {
        "text": 2, "score": 2, "log_prob": 2, "tokens": 3, "token_log_probs": 3, "attention": 4, "source_tokens": 2,
        "warnings": 2, "trace": 1, "confidence": 2,
    }  # fmt: skip


def test_answers_are_those_of_generate(replies: Any, expected: Any) -> None:
    alone = [expected(text).hypotheses[0] for text in ("badge", "jab", "face")]
    assert replies["plain"] == {
        name: [[getattr(hypothesis, name)] for hypothesis in alone] for name in ("text", "score", "log_prob")
    }
    assert replies["echoed"] == ["mine", "1"]
    beams = [expected(text, beam_size=4).hypotheses[0].text for text in ("phoneme", "knowledgeable")]
    assert replies["documented"] == [[text] for text in beams]
    assert (
        replies["drawn"][0]
        == replies["drawn"][1]
        == [[expected("badge", sampling={"seed": 5, "top_k": 4}).hypotheses[0].text]]
    )


def test_tensors_are_padded_to_the_longest(replies: Any, expected: Any) -> None:
    options = {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5, "suppress_unk": True, "max_length": 9}
    answers = [expected(text, **options) for text in ("badge", "jab")]
    full = replies["full"]
    assert full["text"] == [[hypothesis.text for hypothesis in answer.hypotheses] for answer in answers]
    longest = max(len(hypothesis.token_log_probs) for answer in answers for hypothesis in answer.hypotheses)
    for place, answer in enumerate(answers):
        source = list(answer.source_tokens)
        padding = [""] * (6 - len(source))
        assert full["source_tokens"][place] == source + padding
        for rank, hypothesis in enumerate(answer.hypotheses):
            rest = longest - len(hypothesis.token_log_probs)
            assert [token for token in full["tokens"][place][rank] if token] == list(hypothesis.tokens)
            assert full["token_log_probs"][place][rank] == list(hypothesis.token_log_probs) + [0.0] * rest
            rows = full["attention"][place][rank]
            cells = [cell for row in rows[: hypothesis.attention.rows] for cell in row[: hypothesis.attention.columns]]
            assert cells == list(hypothesis.attention.weights)
            assert not any(cell for row in rows[hypothesis.attention.rows :] for cell in row)
            assert not any(cell for row in rows for cell in row[hypothesis.attention.columns :])


def test_administrators_load_and_unload_models(replies: Any, running: Running, tiny_bundle_path: Path) -> None:
    assert replies["before"].items() >= {"first/1": "READY"}.items() and len(replies["before"]) == 2
    ready, refused, state = replies["unloaded"]
    assert not ready and refused.startswith("StatusCode.NOT_FOUND: ") and state == "UNAVAILABLE"
    assert replies["broken"].startswith("StatusCode.FAILED_PRECONDITION: 2: the bundle ")
    assert "golden.jsonl: 3 bytes, the manifest has" in replies["broken"]
    ready, states = replies["after"]
    assert ready, "the version before the broken one"
    assert states["first/1"] == "READY" and states["first/2"] == "UNAVAILABLE"
    assert replies["nowhere"] == "StatusCode.NOT_FOUND: model 'nobody' is in no repository; choose from first"
    metrics = running.metrics()
    calls = 'attendant_requests_total{"code": "OK", "method": "ModelInfer", "model": "first"}'
    assert metrics[calls] == 4


def infer(target: str, **fields: Any) -> wire.ModelInferResponse:
    with grpc.insecure_channel(target) as channel:
        stub = inference_stub(channel)
        return stub.ModelInfer(wire.ModelInferRequest(model_name="tiny", **fields), timeout=60)


def test_typed_contents_are_answered_with_typed_contents(running: Running, expected: Any) -> None:
    """Sends typed contents, which KServe's protocol prefers. The shape is that of a batch."""
    answer = infer(running.target, inputs=[text_tensor(b"badge", b"jab", shape=[2, 1])])
    text, score, _ = answer.outputs
    alone = [expected(source).hypotheses[0] for source in ("badge", "jab")]
    assert [raw.decode() for raw in text.contents.bytes_contents] == [hypothesis.text for hypothesis in alone]
    assert list(score.contents.fp32_contents) == [hypothesis.score for hypothesis in alone]
    assert list(text.shape) == [2, 1] and not answer.raw_output_contents


def text_parameter(name: str, value: str) -> dict[str, Any]:
    return {"parameters": {name: {"string_param": value}}}


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"inputs": []}, "inputs is ''"),
        ({"inputs": [text_tensor(b"a", name="texts")]}, "inputs is 'texts'"),
        ({"inputs": [text_tensor()]}, "inputs[text] is of 0 elements"),
        ({"inputs": [text_tensor(*[b"a"] * 257)]}, "inputs[text] is of 257 elements"),
        ({"inputs": [text_tensor(b"a", b" ")]}, "inputs[text][1] is 0 tokens long"),
        ({"inputs": [text_tensor(b"a", datatype="INT64")]}, "inputs[text].datatype is 'INT64'"),
        ({"inputs": [text_tensor(b"a", shape=[2])]}, "inputs[text].shape is [2]"),
        ({"inputs": [text_tensor(b"a", b"b", shape=[-2, -1])]}, "inputs[text].shape is [-2, -1]"),
        ({"inputs": [text_tensor(b"\xff")]}, "inputs[text][0] is no UTF-8"),
        (
            {"inputs": [text_tensor(b"a", **text_parameter("content_type", "str"))]},
            "inputs[text].parameters is ",
        ),
        (
            {"inputs": [text_tensor(shape=[1])], "raw_input_contents": [b"\x09\0\0\0abc"]},
            "raw_input_contents[0] is cut",
        ),
        ({"raw_input_contents": [b"\x01\0\0\0a"]}, "raw_input_contents is 1"),
        ({"outputs": [{"name": "text"}, {"name": "texts"}]}, "outputs[1].name is 'texts'"),
        ({"outputs": [{"name": "text", **text_parameter("top", "2")}]}, "outputs[0].parameters is 'top'"),
        ({"id": "a\nb"}, "id is 'a\\nb'"),
        ({"parameters": {"speed": {"int64_param": 3}}}, "parameters is 'speed'"),
        ({"parameters": {"beam_size": {}}}, "parameters.beam_size is ''"),
        ({"parameters": {"seed": {"int64_param": -1}}}, "parameters.seed is -1"),
        ({"parameters": {"top_p": {"double_param": 2}}}, "parameters.top_p is 2"),
        (text_parameter("target_prefix", "AA ZZ"), "parameters.target_prefix[1] is 'ZZ'"),
        ({"parameters": {"target_prefix_text": {"int64_param": 2}}}, "parameters.target_prefix_text is 2"),
        (text_parameter("masked_source_positions", "0;2"), "parameters.masked_source_positions is '0;2'"),
        (text_parameter("masked_source_positions", "4294967295"), "parameters.masked_source_positions is 4294967295"),
        (text_parameter("masked_source_positions", "4294967296"), "parameters.masked_source_positions is '4294967296'"),
    ],
)
def test_violations_have_the_protocols_names(running: Running, fields: dict[str, Any], violation: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        infer(running.target, **{"inputs": [text_tensor(b"a")]} | fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(violation)


def test_the_index_is_filtered(running: Running, repository: Path) -> None:
    """Checks that the index can be filtered by readiness and by the name of a repository."""
    with grpc.insecure_channel(running.target) as channel:
        stub = inference_stub(channel)

        def names(**fields: Any) -> set[str]:
            index = stub.RepositoryIndex(wire.RepositoryIndexRequest(**fields), timeout=60)
            return {model.name for model in index.models}

        assert names() == names(ready=True) == {"first", "tiny"}
        assert names(repository_name=repository.name) == {"first"}
        with pytest.raises(grpc.RpcError) as caught:
            names(repository_name="other")
        expected = f"repository_name is 'other', must be empty, or one of {repository.name}"
        assert (caught.value.code().name, caught.value.details()) == ("INVALID_ARGUMENT", expected)


def test_a_target_prefix_may_be_a_text_parameter(running: Running, expected: Any) -> None:
    prefix = {"target_prefix": {"string_param": "AA AE"}, "sampling": {"bool_param": True}}
    answer = infer(running.target, inputs=[text_tensor(b"badge")], parameters=prefix)
    assert answer.outputs[0].contents.bytes_contents[0].startswith(b"AA AE")
