"""Tests of reading JSON bodies: the error names every wrong field by its path in the proto."""

import json
import time
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.server.call import UndecodableRequest, rpcs_of
from attendant.server.errors import InvalidArgument, Undecodable
from attendant.server.grpc.requests import WHOLE as WHOLE_KINDS
from attendant.server.grpc.service import SERVICE
from attendant.server.http.bodies import MAX_FAULTS, Body
from attendant_client.v1 import seq2seq_pb2 as messages

RPCS = rpcs_of(SERVICE, Mock())
WHOLE = "must be a whole number from 0 to 4294967295"


def decoded(raw: bytes, method: str = "Generate") -> Any:
    return Body(raw).decoded(RPCS[method])


def error_of(body: Any) -> Exception:
    request = decoded(json.dumps(body).encode())
    assert isinstance(request, UndecodableRequest)
    return request.error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (5, "body is 5, must be an object"),
        (None, "body is null, must be an object"),
        (["a"], "body is a list, must be an object"),
        ({"text": 5}, "text is 5, must be a string"),
        ({"text": "\ud800"}, 'text is "\\ud800", must be a string without half a surrogate pair'),
        ({"tokens": ["a"]}, "tokens is a list, must be an object"),
        ({"tokens": {"tokens": ["a", 5]}}, "tokens.tokens[1] is 5, must be a string"),
        ({"tokens": {"tokens": ["a", None]}}, "tokens.tokens[1] is null, must be a string"),
        ({"tokens": {"tokens": "ab"}}, 'tokens.tokens is "ab", must be a list of strings'),
        ({"decoding": []}, "decoding is a list, must be an object"),
        ({"decoding": ""}, 'decoding is "", must be an object'),
        ({"decoding": {"sampling": []}}, "decoding.sampling is a list, must be an object"),
        (
            {"decoding": {"maskedSourcePositions": ["x", -1, 1]}},
            f'decoding.masked_source_positions[0] is "x", {WHOLE}; decoding.masked_source_positions[1] is -1, {WHOLE}',
        ),
        ({"decoding": {"beamSize": 4, "beam_size": 4}}, "decoding.beam_size is beam_size and beamSize, must be one"),
        ({"decoding": {"lengthPenalty": True}}, "decoding.length_penalty is true, must be a number"),
        ({"decoding": {"beamSize": True}}, f"decoding.beam_size is true, {WHOLE}"),
        ({"decoding": {"suppressUnk": 1}}, "decoding.suppress_unk is 1, must be true or false"),
        ({"requestId": "a\udc00"}, 'request_id is "a\\udc00", must be a string without half a surrogate pair'),
        ({"\ud800": 1}, "body is an object with '\\ud800', must be one with some of request_id, model, "),
        *(
            ({"decoding": {"beamSize": number}}, f"decoding.beam_size is {json.dumps(number)}, {WHOLE}")
            for number in ("٣", "３", "1_0", "+3", " 3", "3 ", "0x3", "1e0", "", "-1", 2**32, -1, 1e300)
        ),
        *(
            ({"decoding": {"patience": number}}, f"decoding.patience is {json.dumps(number)}, must be a number")
            for number in ("٣.٥", "1_0", "+3", " 3", ".5", "5.", "inf", "nan", "1,5", 1e39, "1e39")
        ),
        ({"decoding": {"patience": 10**400}}, f"decoding.patience is 1{'0' * 28}..., must be a number"),
        ({"text": "a", "tokens": {"tokens": []}}, "source is text and tokens, must be one of them"),
        ({"decoding": {"beam_size": 1.5}}, f"decoding.beam_size is 1.5, {WHOLE}"),
        ({"decoding": {"beam_size": -1, "patience": {}}}, f"decoding.beam_size is -1, {WHOLE}; decoding.patience"),
        ({"decoding": {"suppressUnk": "yes"}}, 'decoding.suppress_unk is "yes", must be true or false'),
        ({"decoding": {"sampling": {"topK": "x" * 99}}}, f'decoding.sampling.top_k is "{"x" * 28}..., {WHOLE}'),
        ({"output": {"attenton": True}}, "output is an object with 'attenton', must be one with some of attention"),
        (
            {"beamSize": 4, "temperature": 1},
            "body is an object with 'beamSize, temperature', must be one with beamSize in decoding, and temperature in "
            "decoding.sampling, and some of request_id, ",
        ),
        (
            {"decoding": {"max_lenght_ratio": 2}},
            "decoding is an object with 'max_lenght_ratio', must be one with some of max_length, max_length_ratio, ",
        ),
    ],
)
def test_a_fault_is_named_by_its_path(body: Any, message: str) -> None:
    error = error_of(body)
    assert isinstance(error, InvalidArgument)
    assert str(error).startswith(message)


def test_unknown_names_are_one_fault_and_stay_out_of_the_log() -> None:
    error = error_of({f"secret{number}": 1 for number in range(1000)} | {"text": ["secret"]})
    assert isinstance(error, InvalidArgument)
    assert [violation.field for violation in error.violations] == ["body", "text"]
    assert "secret0" in str(error) and len(str(error)) < 500
    assert "secret" not in error.without_quotes


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"text": "a", "text": "b"}',
        b'{"decoding": {"patience": NaN}}',
        b'{"decoding": {"patience": -Infinity}}',
        b'{"decoding": {"beamSize": ' + b"9" * 5000 + b"}}",
        '{"text": "a"}'.encode("utf-16"),
    ],
)
def test_a_body_that_is_no_json_has_the_readers_message(raw: bytes) -> None:
    request = decoded(raw)
    assert isinstance(request.error, Undecodable)
    assert str(request.error).startswith(f"the request, {len(raw)} bytes, is not a message of this method: ")


def test_messages_of_python_become_those_of_a_caller() -> None:
    digits = decoded(b'{"decoding": {"beamSize": ' + b"9" * 5000 + b"}}").error
    assert "5000 digits" in str(digits) and "sys." not in str(digits)
    assert str(decoded(b'{"text": "caf\xe9"}').error).endswith("its byte 13 is not UTF-8, in which JSON is sent")


def test_a_number_that_json_lacks_is_named_without_a_remedy() -> None:
    """In quotation marks, NaN would be refused as well."""
    error = decoded(b'{"decoding": {"patience": NaN}}').error
    assert str(error).endswith("Failed to load JSON: NaN is not JSON")


def test_a_name_that_comes_twice_among_many_is_found_soon() -> None:
    """Large bodies are read one at a time, so a slow one delays those of other clients."""
    names = [f"{number:x}" for number in range(30_000)]
    began = time.thread_time()
    request = decoded(json.dumps(dict.fromkeys(names, 0)).encode()[:-1] + b', "752f": 0}')
    assert "has the member '752f' twice" in str(request.error)
    assert time.thread_time() - began < 1


def test_a_list_of_faults_ends() -> None:
    """Otherwise the answer would be as long as the list."""
    error = error_of({"tokens": {"tokens": [5] * 10_000}})
    assert isinstance(error, InvalidArgument) and len(error.violations) == MAX_FAULTS


def test_the_reader_knows_all_types_of_fields() -> None:
    kinds = {FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL, FieldDescriptor.CPPTYPE_FLOAT, *WHOLE_KINDS}

    def walk(message: Any) -> None:
        for field in message.fields:
            assert field.enum_type is None and (field.message_type is not None or field.cpp_type in kinds)
            if field.is_repeated and field.message_type is None:
                assert field.type == FieldDescriptor.TYPE_STRING or field.cpp_type in WHOLE_KINDS
            if field.message_type is not None:
                walk(field.message_type)

    for request in (messages.GenerateManyRequest, messages.ScoreRequest):
        walk(request.DESCRIPTOR)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: dict[int, st.SearchStrategy[Any]] = {
    **dict.fromkeys(WHOLE_KINDS, st.integers(0, 2**32 - 1)),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
}


@settings(deadline=None)
@given(st.data())
def test_the_librarys_json_is_read_back(data: st.DataObject) -> None:
    decoding = messages.DecodingOptions()
    for field in messages.DecodingOptions.DESCRIPTOR.fields:
        if field.message_type is None and field.type != FieldDescriptor.TYPE_STRING and data.draw(st.booleans()):
            if field.is_repeated:
                getattr(decoding, field.name).extend(data.draw(st.lists(VALUES[field.cpp_type])))
            else:
                setattr(decoding, field.name, data.draw(VALUES[field.cpp_type]))
    decoding.sampling.seed = data.draw(st.integers(0, 2**64 - 1))
    tokens = data.draw(st.lists(TEXTS))
    request = messages.GenerateRequest(tokens={"tokens": tokens}, decoding=decoding)
    message = decoded(json_format.MessageToJson(request).encode())
    assert json_format.MessageToJson(message) == json_format.MessageToJson(request)


class TestTexts:
    """Lists of texts, with options that their requests share."""

    def test_each_text_is_a_request(self) -> None:
        message = decoded(b'{"texts": ["a", "b"], "model": "m", "decoding": {"beamSize": 2}}', "GenerateMany")
        requests = [messages.GenerateRequest(text=text, model="m", decoding={"beam_size": 2}) for text in "ab"]
        assert message == messages.GenerateManyRequest(requests=requests)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"texts": "a"}, 'texts is "a", must be a list of strings'),
            ({"texts": ["a", 5]}, "texts[1] is 5, must be a string"),
            ({"texts": ["a", None]}, "texts[1] is null, must be a string"),
            ({"texts": ["\ud800"]}, 'texts[0] is "\\ud800", must be a string without half'),
            ({"texts": ["a"], "text": "b"}, "source is texts and text, must be one of them"),
            ({"texts": ["a"], "decoding": []}, "decoding is a list, must be an object"),
            (
                {"texts": ["a"], "requests": []},
                "body is an object with 'requests', must be one with some of request_id",
            ),
            ({"texts": []}, "texts is 0 items long, must be 1 to 256 items long"),
            ({"requests": []}, "requests is 0 items long, must be 1 to 256 items long"),
            ({"texts": ["a"] * 257}, "texts is 257 items long, must be 1 to 256 items long"),
            ({"requests": [{}] * 257}, "requests is 257 items long, must be 1 to 256 items long"),
            ({"requests": ["a"]}, 'requests[0] is "a", must be an object'),
            ({"requests": {}}, "requests is an object, must be a list of objects"),
            ({"requests": [{"text": "a"}, {"text": 5}]}, "requests[1].text is 5, must be a string"),
        ],
    )
    def test_a_fault_is_named_by_its_path(self, body: Any, message: str) -> None:
        request = decoded(json.dumps(body).encode(), "GenerateMany")
        assert isinstance(request.error, InvalidArgument)
        assert str(request.error).startswith(message)


def test_the_requests_own_id_and_model_are_kept() -> None:
    refused = decoded(b'{"requestId": "mine", "model": "g2p", "decoding": 5}')
    assert (refused.request_id, refused.model) == ("mine", "g2p")
    assert decoded(b'{"request_id": 5}').request_id == ""
    assert decoded(b'{"requestId": "half \\ud800"}').request_id == "", "no answer could hold it"


def test_other_forms_of_the_json_mapping_are_accepted() -> None:
    body = {"text": "a", "model": None, "decoding": {"beamSize": "4", "max_length": 9.0, "sampling": {"seed": "7"}}}
    assert decoded(json.dumps(body).encode()) == json_format.ParseDict(body, messages.GenerateRequest())
    error = error_of(body | {"output": 5})
    assert isinstance(error, InvalidArgument) and [violation.field for violation in error.violations] == ["output"]
