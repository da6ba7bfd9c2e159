"""Tests of the OpenAPI document against a validator, and against the server's routes, messages and answers."""

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from google.protobuf import json_format
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from attendant.server.http.app import ROUTES, add_pages
from attendant.server.http.bodies import to_json
from attendant.server.inference.http import INFERENCE_ROUTES, PREFIX
from attendant.server.inference.service import OUTPUTS
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.paths import ROOT


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "server" / "http" / "openapi.json").read_text())
    return document


def test_the_committed_document_is_up_to_date(described: dict[str, Any]) -> None:
    program = "import json, openapi; print(json.dumps(openapi.document()))"
    run = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": f"protos:{ROOT}"}, cwd=ROOT, capture_output=True, check=True
    )
    assert json.loads(run.stdout) == described, "run make protos"


def test_the_document_is_valid_openapi(described: dict[str, Any]) -> None:
    validate(described)


def test_the_document_has_every_path(described: dict[str, Any]) -> None:
    ours = {(route.path, route.verb.lower()) for route in ROUTES}
    theirs = {(PREFIX + route.path, route.verb.lower()) for route in INFERENCE_ROUTES}
    assert {(path, verb) for path, item in described["paths"].items() for verb in item} == ours | theirs


def test_the_document_has_every_field_of_every_message(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for message in (messages.GenerateRequest, messages.DecodingOptions, messages.GenerateResponse, messages.Model):
        properties = schemas[message.DESCRIPTOR.name]["properties"]
        assert set(properties) == {field.json_name for field in message.DESCRIPTOR.fields}
    assert schemas["GenerateStreamResponse.Delta"]["properties"]["tokens"] == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert schemas["Model"]["properties"]["architecture"]["additionalProperties"] == {"type": "string"}


def test_the_document_has_every_output_and_what_answers_always_have(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    outputs = schemas["InferRequest"]["properties"]["outputs"]
    assert outputs["items"]["properties"]["name"]["enum"] == list(OUTPUTS)
    assert outputs["maxItems"] == len(OUTPUTS)
    assert "timings" in schemas["GenerateResponse"]["required"]
    assert {"limits", "defaults"} <= set(schemas["Model"]["required"])


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"text": "a", "decoding": {"beamSize": 4, "sampling": {"seed": "7"}}}, True),
        ({"text": "a", "tokens": {"tokens": ["a"]}}, False),
        ({"text": 1}, False),
        ({"decoding": {"beamSize": "four"}}, False),
    ],
)
def test_the_schema_of_a_request_takes_the_same_as_the_server(
    described: dict[str, Any], body: dict[str, Any], fits: bool
) -> None:
    schema = {"$ref": "#/components/schemas/GenerateRequest", "components": described["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == fits
    try:
        json_format.ParseDict(body, messages.GenerateRequest())
        parsed = True
    except json_format.ParseError:
        parsed = False
    assert parsed == fits


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"requests": [{"text": "a"}]}, True),
        ({"texts": ["a"], "decoding": {"beamSize": 4}}, True),
        ({"texts": ["a"], "text": "b"}, False),
        ({"texts": []}, False),
        ({"requests": []}, False),
        ({"requests": [{"txt": "a"}]}, False),
        ({}, False),
    ],
)
def test_a_list_is_of_texts_or_of_requests(described: dict[str, Any], body: dict[str, Any], fits: bool) -> None:
    content = described["paths"]["/v1/generate_many"]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"] | {"components": described["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == fits


def test_an_answer_has_all_that_its_schema_requires(described: dict[str, Any]) -> None:
    response = messages.GenerateResponse(warnings=["a"], timings={"steps": 1})
    response.hypotheses.add(text="a", attention=messages.Attention(rows=1, columns=1, weights=[1.0]))
    result = messages.GenerateBatchResponse(response=response)
    listed = messages.GenerateManyResponse(results=[result, {"error": {"code": 3, "message": "a"}}])
    models = messages.ListModelsResponse(models=[{"limits": {}, "defaults": {"beam_size": 3}, "evaluation": [{}]}])
    for message in (response, listed, models, messages.ScoreResponse()):
        schema = {"$ref": f"#/components/schemas/{message.DESCRIPTOR.name}", "components": described["components"]}
        answer = json.loads(to_json(type(message).FromString(message.SerializeToString())))
        jsonschema.Draft202012Validator(schema).validate(answer)
        required = described["components"]["schemas"][message.DESCRIPTOR.name]["required"]
        assert required
        for name in required:
            lacking = {key: value for key, value in answer.items() if key != name}
            assert not jsonschema.Draft202012Validator(schema).is_valid(lacking)


@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("has_inference", [False, True])
async def test_the_server_adapts_the_document_to_its_options(has_tokens: bool, has_inference: bool) -> None:
    app = Starlette()
    add_pages(app, has_tokens=has_tokens, has_inference=has_inference)
    (route,) = [route for route in app.routes if isinstance(route, Route) and route.path == "/openapi.json"]
    answer = json.loads((await route.endpoint(Request({"type": "http", "headers": []}))).body)
    assert answer["security"] == [{"token": []}] * has_tokens
    assert any(path.startswith("/v2") for path in answer["paths"]) == has_inference and "/v1/score" in answer["paths"]


def test_events_have_a_schema_of_their_own(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    content = described["paths"]["/v1/generate"]["post"]["responses"]["200"]["content"]
    assert content["text/event-stream"]["schema"] == {"$ref": "#/components/schemas/StreamEvent"}
    kinds = {
        event["properties"]["event"]["enum"][0]: event["properties"]["data"]
        for event in schemas["StreamEvent"]["oneOf"]
    }
    names = {name: data["contentSchema"]["$ref"].rpartition("/")[2] for name, data in kinds.items()}
    assert names == {"delta": "DeltaData", "response": "ResponseData", "error": "Problem"}
    assert [schemas[names[name]]["required"] for name in ("delta", "response")] == [["delta"], ["response"]]
