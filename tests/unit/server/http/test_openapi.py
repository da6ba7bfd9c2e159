"""Tests of the OpenAPI document against a validator, and against the server's routes, messages and answers."""

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from attendant.server.http.app import ROUTES, add_pages
from attendant.server.http.bodies import to_json
from attendant.server.inference.http import INFERENCE_ROUTES, PREFIX
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
