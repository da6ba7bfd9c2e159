"""Bodies that are no message: every field that is wrong, in the proto's words."""

import json
from typing import Any

import pytest
from google.protobuf import json_format

from attendant.server.errors import InvalidArgument, Undecodable
from attendant.server.servicers.undecodable import UndecodableRequest
from attendant.server.web.bodies import decoder_of
from attendant_client.v1 import seq2seq_pb2 as messages

DECODE = decoder_of("/attendant.v1.Seq2Seq/Generate", messages.GenerateRequest)
WHOLE = "must be a whole number from 0 to 4294967295"


def error_of(body: Any) -> Exception:
    found = DECODE(json.dumps(body).encode())
    assert isinstance(found, UndecodableRequest)
    return found.error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (5, "body is 5, must be an object"),
        (None, "body is null, must be an object"),
        (["a"], "body is a list, must be an object"),
        ({"text": 5}, "text is 5, must be a string"),
        ({"text": "\ud800"}, 'text is "\\ud800", must be a string without half a surrogate pair'),
        ({"tokens": ["a"]}, "tokens is a list, must be an object"),
        ({"tokens": {"tokens": ["a", 5]}}, "tokens.tokens is a list, must be a list of strings"),
        ({"text": "a", "tokens": {"tokens": []}}, "source is text and tokens, must be one of them"),
        ({"decoding": {"beamSize": "x"}}, f'decoding.beam_size is "x", {WHOLE}'),
        ({"decoding": {"beam_size": 1.5}}, f"decoding.beam_size is 1.5, {WHOLE}"),
        (
            {"decoding": {"beam_size": -1, "patience": {}}},
            f"decoding.beam_size is -1, {WHOLE}; decoding.patience",
        ),
        ({"decoding": {"suppressUnk": "yes"}}, 'decoding.suppress_unk is "yes", must be true or false'),
        ({"decoding": {"sampling": True}}, "decoding.sampling is true, must be an object"),
        ({"decoding": {"sampling": {"topK": "x" * 99}}}, f'decoding.sampling.top_k is "{"x" * 28}..., {WHOLE}'),
        (
            {"output": {"attenton": True}},
            "output is an object with 'attenton', must be one with some of attention",
        ),
    ],
)
def test_a_fault_is_told_by_its_path(body: Any, message: str) -> None:
    error = error_of(body)
    assert isinstance(error, InvalidArgument)
    assert str(error).startswith(message)


def test_names_that_there_are_not_are_one_fault_and_stay_out_of_the_log() -> None:
    error = error_of({f"secret{number}": 1 for number in range(1000)} | {"text": ["secret"]})
    assert isinstance(error, InvalidArgument)
    assert [one.field for one in error.violations] == ["body", "text"]
    assert "secret0" in str(error) and len(str(error)) < 500
    assert "secret" not in error.without_quotes


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 100_000, b'{"text": "a", "text": "b"}'])
def test_what_is_no_json_is_told_in_the_readers_words(raw: bytes) -> None:
    found = DECODE(raw)
    assert isinstance(found.error, Undecodable)
    assert str(found.error).startswith(f"the request, {len(raw)} bytes, is no message of this method's: ")


def test_the_requests_own_id_is_kept() -> None:
    assert DECODE(b'{"requestId": "mine", "decoding": 5}').request_id == "mine"
    assert DECODE(b'{"request_id": 5}').request_id == ""


def test_what_the_mapping_allows_is_no_fault() -> None:
    body = {"text": "a", "model": None, "decoding": {"beamSize": "4", "max_length": 9.0, "sampling": {"seed": "7"}}}
    assert DECODE(json.dumps(body).encode()) == json_format.ParseDict(body, messages.GenerateRequest())
    error = error_of(body | {"output": 5})
    assert isinstance(error, InvalidArgument) and [one.field for one in error.violations] == ["output"]
