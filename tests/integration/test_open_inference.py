"""Tests of the Open Inference Protocol over gRPC: tensors, parameters, and models that an administrator loads.

tests/system/test_documents.py runs NVIDIA's client, and tests/system/test_kserve.py KServe's.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from attendant.server.inference.service import pack, unpack
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.inference import inference_stub, text_tensor
from tests.server_process import Running, server

ADMIN = "admin-token-0123456789"
AS_ADMIN = (("authorization", f"Bearer {ADMIN}"),)


@pytest.fixture(scope="module")
def running(repository: Path, tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    admins = tmp_path_factory.mktemp("access") / "admins"
    admins.write_text(f"operator {ADMIN}\n")
    options = "--admin-tokens", str(admins), "--repository-seconds", "0"
    with server(str(repository), str(tiny_bundle_path), *options) as started:
        yield started


@pytest.fixture(scope="module")
def stub(running: Running) -> Iterator[Any]:
    with grpc.insecure_channel(running.target) as channel:
        yield inference_stub(channel)


@pytest.fixture(scope="module")
def expected(running: Running) -> Any:
    """Returns a function that calls Generate with a text and options."""
    with grpc.insecure_channel(running.target) as channel:
        generate = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate

        def ask(text: str, **options: Any) -> messages.GenerateResponse:
            decoding = messages.DecodingOptions(**options)
            output = messages.OutputOptions(attention=True, token_log_probs=True)
            return generate(messages.GenerateRequest(text=text, model="tiny", decoding=decoding, output=output))

        yield ask


def infer(stub: Any, *texts: bytes, **fields: Any) -> wire.ModelInferResponse:
    return stub.ModelInfer(wire.ModelInferRequest(**{"model_name": "tiny", "inputs": [text_tensor(*texts)]} | fields))


def test_health_and_metadata(stub: Any) -> None:
    assert stub.ServerLive(wire.ServerLiveRequest()).live and stub.ServerReady(wire.ServerReadyRequest()).ready
    versions = [("first", ""), ("first", "1"), ("first", "7"), ("nobody", "")]
    requests = [wire.ModelReadyRequest(name=name, version=version) for name, version in versions]
    assert [stub.ModelReady(request).ready for request in requests] == [True, True, False, False]
    described = stub.ServerMetadata(wire.ServerMetadataRequest())
    assert described.name == "attendant" and "model_repository" in described.extensions
    model = stub.ModelMetadata(wire.ModelMetadataRequest(name="first"))
    assert list(model.versions) == ["1"]
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in model.inputs] == [("text", "BYTES", [-1])]
    assert {tensor.name: len(tensor.shape) for tensor in model.outputs} == {
        "text": 2, "score": 2, "log_prob": 2, "tokens": 3, "token_log_probs": 3, "attention": 4, "source_tokens": 2,
        "warnings": 2, "trace": 1, "confidence": 2,
    }  # fmt: skip


def test_answers_are_those_of_generate_in_the_requests_form(stub: Any, expected: Any) -> None:
    """Sends typed contents, which KServe's protocol prefers, and raw ones. The shape is that of a batch."""
    sources, shape = (b"badge", b"jab"), {"shape": [2, 1]}
    typed = infer(stub, inputs=[text_tensor(*sources, **shape)], id="mine")
    text, score, log_prob = typed.outputs
    alone = [expected(source.decode()).hypotheses[0] for source in sources]
    assert [raw.decode() for raw in text.contents.bytes_contents] == [hypothesis.text for hypothesis in alone]
    assert list(score.contents.fp32_contents) == [hypothesis.score for hypothesis in alone]
    assert list(log_prob.contents.fp32_contents) == [hypothesis.log_prob for hypothesis in alone]
    assert (typed.id, list(text.shape), len(typed.raw_output_contents)) == ("mine", [2, 1], 0)
    raw = infer(stub, inputs=[text_tensor(**shape)], raw_input_contents=[pack(sources)])
    assert unpack(raw.raw_output_contents[0]) == list(text.contents.bytes_contents)
    assert raw.raw_output_contents[1] == np.array(score.contents.fp32_contents, np.float32).tobytes()
    assert not any(output.HasField("contents") for output in raw.outputs)


def test_tensors_are_padded_to_the_longest(stub: Any, expected: Any) -> None:
    options = {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5, "suppress_unk": True, "max_length": 9}
    answers = [expected(text, **options) for text in ("badge", "jab")]
    kinds = {int: "int64_param", float: "double_param", bool: "bool_param"}
    parameters = {name: {kinds[type(value)]: value} for name, value in options.items()}
    names = ("text", "tokens", "token_log_probs", "attention", "source_tokens")
    outputs = [{"name": name} for name in names]
    full = {
        output.name: np.array([*output.contents.bytes_contents, *output.contents.fp32_contents]).reshape(output.shape)
        for output in infer(stub, b"badge", b"jab", outputs=outputs, parameters=parameters).outputs
    }
    texts = [[hypothesis.text.encode() for hypothesis in answer.hypotheses] for answer in answers]
    assert full["text"].tolist() == texts
    longest = max(len(hypothesis.token_log_probs) for answer in answers for hypothesis in answer.hypotheses)
    for place, answer in enumerate(answers):
        source = [token.encode() for token in answer.source_tokens]
        assert full["source_tokens"][place].tolist() == source + [b""] * (6 - len(source))
        for rank, hypothesis in enumerate(answer.hypotheses):
            rest = longest - len(hypothesis.token_log_probs)
            tokens = [token.decode() for token in full["tokens"][place, rank].tolist() if token]
            assert tokens == list(hypothesis.tokens)
            assert full["token_log_probs"][place, rank].tolist() == list(hypothesis.token_log_probs) + [0.0] * rest
            cells, attention = full["attention"][place, rank].copy(), hypothesis.attention
            assert cells[: attention.rows, : attention.columns].ravel().tolist() == list(attention.weights)
            cells[: attention.rows, : attention.columns] = 0
            assert not cells.any()


def test_parameters_of_sampling_and_prefixes(stub: Any, expected: Any) -> None:
    parameters = {"seed": {"int64_param": 5}, "top_k": {"int64_param": 4}}
    drawn = infer(stub, b"badge", parameters=parameters).outputs[0].contents.bytes_contents[0]
    assert drawn.decode() == expected("badge", sampling={"seed": 5, "top_k": 4}).hypotheses[0].text
    parameters = {"target_prefix": {"string_param": "AA AE"}, "sampling": {"bool_param": True}}
    assert infer(stub, b"badge", parameters=parameters).outputs[0].contents.bytes_contents[0].startswith(b"AA AE")


def test_whole_numbers_may_be_doubles(stub: Any) -> None:
    """Over HTTP, 2.0 is 2 as well."""
    wide, doubled = (
        {"num_hypotheses": number, "beam_size": number} for number in ({"int64_param": 2}, {"double_param": 2})
    )
    assert infer(stub, b"badge", parameters=doubled) == infer(stub, b"badge", parameters=wide)


def test_administrators_load_and_unload_models(stub: Any, running: Running, repository: Path) -> None:
    def states() -> dict[str, str]:
        models = stub.RepositoryIndex(wire.RepositoryIndexRequest()).models
        return {f"{model.name}/{model.version}": model.state for model in models}

    def refusal(method: str, request: Any) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, method)(request, metadata=AS_ADMIN)
        return f"{caught.value.code().name}: {caught.value.details()}"

    before = states()
    assert before["first/1"] == "READY" and len(before) == 2
    # NVIDIA's client always sends this parameter.
    unload = wire.RepositoryModelUnloadRequest(model_name="first", parameters={"unload_dependents": {}})
    stub.RepositoryModelUnload(unload, metadata=AS_ADMIN)
    assert states()["first/1"] == "UNAVAILABLE"
    request = wire.ModelInferRequest(model_name="first", inputs=[text_tensor(b"a")])
    assert refusal("ModelInfer", request).startswith("NOT_FOUND: ")
    shutil.copytree(repository / "first" / "1", repository / "first" / "2")
    (repository / "first" / "2" / "golden.jsonl").write_text("{}\n")
    load = wire.RepositoryModelLoadRequest(model_name="first")
    broken = refusal("RepositoryModelLoad", load)
    assert broken.startswith("FAILED_PRECONDITION: 2: the bundle ") and "golden.jsonl: 3 bytes" in broken
    assert states().items() >= {"first/1": "READY", "first/2": "UNAVAILABLE"}.items(), "the version before is served"
    unknown = refusal("RepositoryModelLoad", wire.RepositoryModelLoadRequest(model_name="nobody"))
    assert unknown.startswith("NOT_FOUND: model 'nobody' is in no repository")
    calls = 'attendant_requests_total{"code": "OK", "method": "ModelInfer", "model": "first"}'
    assert infer(stub, b"a", model_name="first").outputs and running.metrics()[calls] == 1


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
        ({"inputs": [text_tensor(b"a", shape=[])]}, "inputs[text].shape is [], must be 1 to 8 sizes"),
        ({"inputs": [text_tensor(b"a", shape=[1] * 9)]}, "inputs[text].shape is 9 sizes long, must be 1 to 8 sizes"),
        (
            {"inputs": [text_tensor(b"a") | {"contents": {"bytes_contents": [b"a"], "int_contents": [1]}}]},
            "inputs[text].contents is 'int_contents'",
        ),
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
        ({"outputs": [{"name": "attention"}, {"name": "attention"}]}, "outputs[1].name is 'attention', must be"),
        ({"outputs": [{"name": "text", **text_parameter("top", "2")}]}, "outputs[0].parameters is 'top'"),
        ({"id": "a\nb"}, "id is 'a\\nb'"),
        (
            {"parameters": {"beam": {"int64_param": 3}, "zest": {"bool_param": True}, "size": {}}},
            "parameters is 'beam', 'size', 'zest', must be some of beam_size, ",
        ),
        ({"parameters": {"trace": {"int64_param": 99}}}, "parameters.trace is 99, must be 0 to 32"),
        ({"parameters": {"beam_size": {"double_param": 2.5}}}, "parameters.beam_size is 2.5, must be a whole number"),
        ({"parameters": {"seed": {"double_param": 2.0**64}}}, "parameters.seed is 18446744073709551616, must be"),
        ({"parameters": {"seed": {"double_param": 1e300}}}, "parameters.seed is 1e+300, must be"),
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
def test_violations_have_the_protocols_names(stub: Any, fields: dict[str, Any], violation: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        infer(stub, b"a", **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(violation)


def test_the_index_is_filtered(stub: Any, repository: Path) -> None:
    """Checks that the index can be filtered by readiness and by the name of a repository."""

    def names(**fields: Any) -> set[str]:
        return {model.name for model in stub.RepositoryIndex(wire.RepositoryIndexRequest(**fields)).models}

    assert names() == names(ready=True) == {"first", "tiny"}
    assert names(repository_name=repository.name) == {"first"}
    with pytest.raises(grpc.RpcError) as caught:
        names(repository_name="other")
    expected = f"repository_name is 'other', must be empty, or one of {repository.name}"
    assert (caught.value.code().name, caught.value.details()) == ("INVALID_ARGUMENT", expected)
