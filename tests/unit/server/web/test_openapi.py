"""The OpenAPI document against a validator, and against what the server says."""

from typing import Any

import jsonschema
import pytest
from google.protobuf import json_format
from openapi_spec_validator import validate

from attendant.server.web.openapi import document
from attendant.server.web.problems import STATUSES
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.unit.server.test_errors import EXAMPLES


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def test_it_is_valid(described: dict[str, Any]) -> None:
    validate(described)


def test_every_field_of_every_message_is_there(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for message in (messages.GenerateRequest, messages.DecodingOptions, messages.GenerateResponse, messages.Model):
        properties = schemas[message.DESCRIPTOR.name]["properties"]
        assert set(properties) == {field.json_name for field in message.DESCRIPTOR.fields}
    assert schemas["GenerateStreamResponse.Delta"]["properties"]["tokens"] == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert schemas["Model"]["properties"]["architecture"]["additionalProperties"] == {"type": "string"}


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"text": "a", "decoding": {"beamSize": 4, "sampling": {"seed": "7"}}}, True),
        ({"text": "a", "tokens": {"tokens": ["a"]}}, False),
        ({"text": 1}, False),
        ({"decoding": {"beamSize": "four"}}, False),
    ],
)
def test_the_schema_of_a_request_takes_what_the_server_takes(
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


def test_every_code_has_a_status() -> None:
    codes = {one.code for one in EXAMPLES}
    assert codes <= set(STATUSES)
