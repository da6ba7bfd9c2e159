"""Tests of the Open Inference Protocol over HTTP: the same functions as over gRPC, in the protocol's JSON and bytes."""

import json
from typing import Any

import numpy as np
import pytest

from attendant.server.inference.service import OUTPUTS, pack, unpack
from tests.http_serving import Answer, Http, http_served
from tests.inference import infer_request, inference_stub, text_body
from tests.serving import Served, fake_bundle, fake_stepper, served

INFER = "/v2/models/fake/infer"
TEXTS = ["abc", "de"]
HEADER_LENGTH = "inference-header-content-length"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def tensor(data: Any = TEXTS, **fields: Any) -> dict[str, Any]:
    return text_body(**{"shape": [2], "data": data} | fields)


async def in_bytes(web: Http, request: dict[str, Any], tail: bytes, path: str = INFER, **headers: str) -> Answer:
    head = json.dumps(request).encode()
    headers = {"content_type": "application/octet-stream", HEADER_LENGTH.replace("-", "_"): str(len(head))} | headers
    return await web.post(path, head + tail, **headers)


async def test_health_and_metadata(server: Served, web: Http) -> None:
    version = server.model.label
    for path, expected in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/fake/ready", {"name": "fake", "ready": True}),
        (f"/v2/models/fake/versions/{version}/ready", {"name": "fake", "ready": True}),
    ):
        answer = await web.get(path)
        assert (answer.status, answer.json) == (200, expected)
    assert (await web.get("/v2")).json.keys() == {"name", "version", "extensions"}
    for path in ("/v2/models/fake", f"/v2/models/fake/versions/{version}"):
        metadata = (await web.get(path)).json
        assert (metadata["name"], metadata["versions"]) == ("fake", [version])
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert [output["name"] for output in metadata["outputs"]] == list(OUTPUTS)
    (entry,) = (await web.post("/v2/repository/index", {"ready": True})).json
    assert entry == {"name": "fake", "version": version, "state": "READY", "reason": ""}
    assert (await web.post("/v2/repository/index", None)).json == [entry], "without a body"


async def test_a_starting_server_is_not_ready() -> None:
    async with served(fake_stepper(), ready=False) as starting, http_served(starting) as web:
        assert (await web.get("/v2/health/live")).status == 200
        answer = await web.get("/v2/health/ready")
        assert (answer.status, answer.json) == (503, {"ready": False})
        answer = await web.post(INFER, {"inputs": [tensor()]})
        assert answer.status == 503 and "checking its bundles" in answer.json["error"]


async def test_a_model_whose_engines_have_failed_is_not_ready() -> None:
    stepper = fake_stepper()
    stepper.fail_at_step = 1
    async with served(stepper, fake_bundle("broken"), fake_bundle("sound")) as server, http_served(server) as web:
        assert (await web.post("/v2/models/broken/infer", {"inputs": [tensor()]})).status == 503
        assert [(await web.get(f"/v2/models/{name}/ready")).status for name in ("broken", "sound")] == [404, 200]


async def test_answers_are_those_of_grpc(server: Served, web: Http) -> None:
    stub = inference_stub(server.channel)
    outputs = [{"name": name} for name in OUTPUTS]
    parameters = {"beam_size": {"int64_param": 3}, "num_hypotheses": {"int64_param": 2}}
    expected = await stub.ModelInfer(infer_request(*TEXTS, id="mine", outputs=tuple(OUTPUTS), parameters=parameters))
    request = {
        "id": "mine",
        "inputs": [tensor()],
        "outputs": outputs,
        "parameters": {"beam_size": 3, "num_hypotheses": 2.0},
    }
    answer = await web.post(INFER, request)
    assert answer.status == 200, answer.text
    assert answer.json.keys() == {"model_name", "model_version", "id", "outputs"}
    assert answer.json["id"] == "mine"
    for theirs, ours in zip(expected.outputs, answer.json["outputs"], strict=True):
        assert (ours["name"], ours["datatype"], ours["shape"]) == (theirs.name, theirs.datatype, list(theirs.shape))
        if theirs.datatype == "BYTES":
            assert ours["data"] == [text.decode() for text in theirs.contents.bytes_contents]
        else:
            assert np.array_equal(np.float32(ours["data"]), np.float32(theirs.contents.fp32_contents), equal_nan=True)
    plain = (await web.post(INFER, {"inputs": [tensor()]})).json
    assert "id" not in plain and [output["name"] for output in plain["outputs"]] == ["text", "score", "log_prob"]


async def test_a_hypothesis_that_is_not_there_has_no_score(web: Http) -> None:
    """Checks that the score of a missing hypothesis is valid JSON, which has no infinity."""
    inputs = [tensor(["a", "abcdefgh"])]
    parameters = {"beam_size": 4, "num_hypotheses": 4, "max_length": 1}
    answer = await web.post(INFER, {"inputs": inputs, "parameters": parameters})
    assert answer.status == 200
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("data", [[["abc"], ["de"]], [["abc", "de"]], ["abc", "de"], [[], ["abc", [], "de"]]])
async def test_tensor_data_may_be_nested(web: Http, data: Any) -> None:
    flat = (await web.post(INFER, {"inputs": [tensor()]})).json
    nested = await web.post(INFER, {"inputs": [tensor(data, shape=[2, 1.0])], "model_name": "fake"})
    assert nested.json["outputs"] == flat["outputs"]


async def test_binary_tensors_are_read_and_returned(web: Http) -> None:
    flat = {
        output["name"]: output["data"] for output in (await web.post(INFER, {"inputs": [tensor()]})).json["outputs"]
    }
    raw = pack([text.encode() for text in TEXTS])
    request = {"inputs": [tensor(parameters={"binary_data_size": len(raw)})]}
    del request["inputs"][0]["data"]
    answer = await in_bytes(web, request, raw)
    assert {output["name"]: output["data"] for output in answer.json["outputs"]} == flat, (
        "asked in bytes, answered in JSON"
    )
    request["parameters"] = {"binary_data_output": True}
    request["outputs"] = [{"name": "text"}, {"name": "score", "parameters": {"binary_data": False}}]
    answer = await in_bytes(web, request, raw)
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers[HEADER_LENGTH])
    text, score = json.loads(answer.text[:length])["outputs"]
    tail = answer.text.encode()[length:]
    assert text["parameters"] == {"binary_data_size": len(tail)} and "data" not in text
    assert [text.decode() for text in unpack(tail) or ()] == flat["text"]
    assert score["data"] == flat["score"]


WRONG: list[tuple[Any, str]] = [
    # Errors in tensors that are the same over gRPC are in test_open_inference.py.
    ([], "body is a list, must be an object"),
    ({"inputs": {}}, "inputs is an object, must be a list of objects"),
    ({"inputs": ["a"]}, 'inputs[0] is "a", must be an object'),
    ({"inputs": [{}] * 99}, "inputs is 99 items long, must be at most 16 items long"),
    ({"inputs": [tensor()], "input": 1}, "body is an object with 'input', must be one with some of inputs, id, "),
    ({"inputs": [tensor()], "id": 5}, "id is 5, must be a string"),
    ({"inputs": [tensor()], "id": "\ud800"}, 'id is "\\ud800", must be a string without half'),
    ({"inputs": [tensor()], "model_name": "other"}, "model_name is \"other\", must be 'fake', as in the path"),
    ({"inputs": [tensor(5)]}, "inputs[0].data is 5, must be a list of strings"),
    ({"inputs": [tensor(["a", 5])]}, "inputs[0].data[1] is 5, must be a string"),
    ({"inputs": [tensor(["a", ["\ud800"]])]}, 'inputs[0].data[1] is "\\ud800", must be a string without half'),
    ({"inputs": [tensor(shape=[1, 2.5])]}, "inputs[0].shape[1] is 2.5, must be a whole number"),
    ({"inputs": [tensor(shape=[True, 2])]}, "inputs[0].shape[0] is true, must be a whole number"),
    ({"inputs": [tensor(shape=[2**63, 2])]}, "inputs[0].shape[0] is 9223372036854775808, must be a whole number"),
    ({"inputs": [tensor(shape=None)]}, "inputs[0].shape is null, must be a list of whole numbers"),
    ({"inputs": [tensor(parameters=[])]}, "inputs[0].parameters is a list, must be an object"),
    ({"inputs": [tensor(parameters={"binary_data_size": 9})]}, "inputs[0].parameters.binary_data_size is 9, must be"),
    ({"inputs": [tensor(parameters={"binary_data_size": 0})]}, "inputs[0] is data and binary_data_size, must be one"),
    (
        {"inputs": [tensor()], "outputs": [{"name": "text"}, {"name": "text", "parameters": {"binary_data": True}}]},
        "outputs[1].name is 'text', must be another",
    ),
    ({"inputs": [tensor()], "outputs": [{}]}, "outputs[0].name is null, must be a string"),
    (
        {"inputs": [tensor()], "outputs": [{"name": "text", "parameters": {"binary_data": 1}}]},
        "outputs[0].parameters.binary_data is 1, must be true or false",
    ),
    ({"inputs": [tensor()], "parameters": {"beam_size": True}}, "parameters.beam_size is true, must be a whole number"),
    ({"inputs": [tensor()], "parameters": {"beam_size": [4]}}, "parameters.beam_size is a list, must be a string, a"),
    ({"inputs": [tensor()], "parameters": {"beam_size": None}}, "parameters.beam_size is null, must be a string, a"),
    ({"inputs": [tensor()], "parameters": {"beam_size": 99}}, "parameters.beam_size is 99, must be 1 to 6"),
    ({"inputs": [tensor()], "parameters": {"patience": 10**400}}, "parameters.patience is inf, must be"),
    ({"inputs": [tensor()], "parameters": {"patience": -(10**400)}}, "parameters.patience is -inf, must be"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
async def test_errors_have_the_protocols_form(web: Http, body: Any, message: str) -> None:
    answer = await web.post(INFER, body)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json"), answer.text
    assert answer.json.keys() == {"error"} and answer.json["error"].startswith(message), answer.text


async def test_binary_tensors_of_wrong_length_are_refused(web: Http) -> None:
    raw = pack([b"abc", b"de"])
    without = {key: value for key, value in tensor().items() if key != "data"}
    sized = {"inputs": [without | {"parameters": {"binary_data_size": len(raw)}}]}
    for answer, message in (
        (await in_bytes(web, sized, raw + b"x"), "body is 1 bytes too long, must be as long as its tensors"),
        (
            await in_bytes(web, sized, raw[:-1]),
            "inputs[0].parameters.binary_data_size is 13, must be a number of bytes",
        ),
        (await in_bytes(web, sized, raw[:-1] + b"\xff"), "inputs[text][1] is no UTF-8, must be a text in UTF-8"),
        (await in_bytes(web, sized, b"\x0a" + raw[1:]), "raw_input_contents[0] is cut short"),
        (await in_bytes(web, sized, raw, inference_header_content_length="x"), f"{HEADER_LENGTH} is 'x', must be"),
        (await in_bytes(web, sized, raw, inference_header_content_length="999"), f"{HEADER_LENGTH} is '999'"),
        (
            await in_bytes(web, sized, raw, inference_header_content_length="²"),
            HEADER_LENGTH,
        ),
    ):
        assert answer.status == 400 and answer.json["error"].startswith(message), answer.text


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/fake/versions/9", 404),
        ("GET", "/v2/models/nobody/ready", 404),
        ("POST", "/v2/models/nobody/infer", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", INFER, 405),
        ("GET", "/v2?a=1", 400),
        ("POST", "/v2/repository/models/fake/load", 403),
        ("POST", "/v2/repository/models/fake/unload", 403),
    ],
)
async def test_errors_have_the_http_status_of_their_code(web: Http, verb: str, path: str, status: int) -> None:
    answer = await (
        web.get(path) if verb == "GET" else web.post(path, {"inputs": [tensor()]} if "infer" in path else {})
    )
    assert answer.status == status
    assert answer.json.keys() == {"error"} or path.endswith("/ready")


async def test_a_page_of_another_origin_can_not_call(web: Http) -> None:
    """Sends no content type, as NVIDIA's client does, with and without an origin.

    A browser may send such a request without a preflight, but then it sends its origin.
    """
    body = json.dumps({"inputs": [tensor()]}).encode()
    assert (await web.post(INFER, body, content_type="")).status == 200
    for kind, origin in (("", "https://evil.example"), ("application/octet-stream", "null"), ("", "null")):
        assert (await web.post(INFER, body, content_type=kind, origin=origin)).status == 415
    assert (await web.post(INFER, body, content_type="text/plain")).status == 415


async def test_repositories_are_named(web: Http) -> None:
    answer = await web.post("/v2/repository/index", {"repository_name": "models"})
    assert (answer.status, answer.json["error"]) == (
        400,
        "repository_name is 'models', must be empty: there is no repository",
    )
