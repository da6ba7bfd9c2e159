"""Tests that the HTTP API has the same answers, refusals, limits and counts as gRPC."""

import asyncio
import contextlib
import gzip
import json
import logging
import ssl
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from attendant.runtime.bundle.manifest import MAX_BEAM, MAX_TOKENS
from attendant.runtime.decoding.options import RANGES
from attendant.server.auth import open_access
from attendant.server.config import ServerConfig
from attendant.server.grpc.port import MAX_REQUEST_BYTES
from attendant.server.http import app
from attendant.server.http import port as http
from attendant.server.http.bodies import to_json
from attendant.server.logs import LineFormatter
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.certificates import new_authority
from tests.http_serving import Answer, Http, http_served
from tests.integration.test_request_ids import id_in, logged
from tests.serving import Served, eventually, fake_stepper, gated_stepper, served

GENERATE = {"text": "abc", "decoding": {"beamSize": 3}}
SCORE = {"sourceText": "abc", "targetText": "AA B", "output": {"attention": True}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the fields that differ between two answers to the same request."""
    return {name: value for name, value in answer.items() if name not in {"timings", "requestId"}}


class TestAnswers:
    async def test_score_is_grpcs_answer_in_json(self, server: Served, web: Http) -> None:
        answer = await web.post("/v1/score", SCORE)
        by_grpc = await server.stub.Score(json_format.ParseDict(SCORE, messages.ScoreRequest()))
        expected = json_format.MessageToDict(by_grpc, always_print_fields_with_no_presence=True)
        assert without_times(answer.json) == without_times(expected)

    async def test_models_are_listed_and_described(self, web: Http) -> None:
        listed = (await web.get("/v1/models")).json["models"]
        assert [model["name"] for model in listed] == ["fake"]
        assert (await web.get("/v1/models/fake")).json == listed[0]

    async def test_weights_of_a_large_answer_are_exact(self) -> None:
        """Checks that weights are read back bit for bit. The server writes them without the protobuf library."""
        weights = [1 / 3, 1e-12, 0.0, 1.0, 1e-30] * 400
        response = messages.GenerateResponse()
        response.hypotheses.add(attention=messages.Attention(rows=20, columns=100, weights=weights))
        response.hypotheses.add(text="none")
        expected = response.SerializeToString()
        text = to_json(response)
        assert json_format.Parse(text, messages.GenerateResponse()).SerializeToString() == expected
        library = messages.GenerateResponse.FromString(expected)
        assert json.loads(text) == json_format.MessageToDict(library, always_print_fields_with_no_presence=True)


class TestCompression:
    @pytest.mark.parametrize("coding", ["gzip", "GZIP"])
    async def test_a_body_may_be_compressed(self, web: Http, coding: str) -> None:
        plain = await web.post("/v1/generate", GENERATE)
        raw = json.dumps(GENERATE).encode()
        answer = await web.post("/v1/generate", gzip.compress(raw), content_encoding=coding)
        assert without_times(answer.json) == without_times(plain.json)

    @pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "gzip, gzip", "gzip,identity", "x"])
    async def test_other_codings_are_refused_and_the_known_one_is_named(self, web: Http, coding: str) -> None:
        answer = await web.post("/v1/generate", GENERATE, content_encoding=coding)
        assert (answer.status, answer.headers["accept-encoding"]) == (415, "gzip")

    @pytest.mark.parametrize(
        "body",
        [
            gzip.compress(b" " * (MAX_REQUEST_BYTES + 1), mtime=0),
            gzip.compress(bytes(MAX_REQUEST_BYTES * 90), mtime=0),
        ],
    )
    async def test_a_body_that_grows_beyond_the_limit_is_not_expanded_further(self, web: Http, body: bytes) -> None:
        assert len(body) <= MAX_REQUEST_BYTES
        tracemalloc.start()
        try:
            answer = await web.post("/v1/generate", body, content_encoding="gzip")
            assert tracemalloc.get_traced_memory()[1] < 16 * MAX_REQUEST_BYTES
        finally:
            tracemalloc.stop()
        assert (answer.status, answer.json["code"]) == (413, "RESOURCE_EXHAUSTED")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            gzip.compress(b"{}", mtime=0)[:-1],
            gzip.compress(b"{}", mtime=0) + b"x",
            zlib.compress(b"{}"),
            gzip.compress(b"{}", mtime=0) * 2,
        ],
    )
    async def test_bytes_that_are_no_gzip_are_refused(self, web: Http, body: bytes) -> None:
        answer = await web.post("/v1/generate", body, content_encoding="gzip")
        assert (answer.status, answer.json["code"]) == (400, "INVALID_ARGUMENT")
        assert "body is cut short, or damaged, must be one file of gzip" in answer.json["detail"]


class TestStreams:
    async def test_data_are_one_line_for_every_reader(self, web: Http) -> None:
        """Some readers, such as httpx's `iter_lines`, end lines at Unicode's separators, too."""
        body = {"text": "ab\u2028c\u2029d\x85e", "decoding": {"splitSentences": True}}
        answer = await web.post("/v1/generate?stream=1", body)
        assert "\u2028" in answer.events[-1][1]["response"]["hypotheses"][0]["text"]
        assert {line[:7] for line in answer.text.splitlines()} == {"", "event: ", "data: {"}

    async def test_an_error_after_the_first_piece_is_an_event(self) -> None:
        async with served(stepper := gated_stepper()) as server, http_served(server) as web:
            body = {"text": "abc", "decoding": {"beamSize": 1, "maxLength": 9, "minLength": 9}}
            call = asyncio.create_task(web.post("/v1/generate?stream=1", body, request_timeout="1.5"))
            for _ in range(3):
                await stepper.arrival()
                stepper.let_one_pass()
            answer = await call
            assert answer.status == 200
            (first, _), (last, problem) = answer.events[0], answer.events[-1]
            assert (first, last, problem["code"]) == ("delta", "error", "DEADLINE_EXCEEDED")
            stepper.open()


class TestProblems:
    @pytest.mark.parametrize(
        ("path", "body", "headers", "status", "code", "says"),
        [
            ("/v1/generate", {"text": ""}, {}, 400, "INVALID_ARGUMENT", "text is"),
            ("/v1/generate", {"text": "a", "model": "no"}, {}, 404, "NOT_FOUND", "choose from fake"),
            ("/v1/generate?%ED%A0%80=1", {}, {}, 400, "INVALID_ARGUMENT", "query is"),
            ("/v1/generate?stream=%ED%A0%80", {}, {}, 400, "INVALID_ARGUMENT", "stream is"),
            # Bodies are tested in tests/unit/server/http/test_json_reading.py.
            ("/v1/generate", b"not JSON", {}, 400, "INVALID_ARGUMENT", "the request, 8 bytes, is not a message"),
            ("/v1/generate?stream=1", {"requestId": "\ud800"}, {}, 400, "INVALID_ARGUMENT", "request_id is "),
            ("/v1/score", {"sourceText": "abc"}, {}, 400, "INVALID_ARGUMENT", "target"),
            ("/v1/generate?stream=yes", {}, {}, 400, "INVALID_ARGUMENT", "stream is 'yes', must be 0 or 1"),
            ("/v1/generate?steam=1", {}, {}, 400, "INVALID_ARGUMENT", "query is 'steam', must be some of stream"),
            ("/v1/generate?stream=1&stream=0", {}, {}, 400, "INVALID_ARGUMENT", "query is 'stream, stream', must be"),
            ("/v1/models/fake?version=2&version=1", None, {}, 400, "INVALID_ARGUMENT", "query is 'version, version'"),
            (
                "/v1/models/fake?verson=2",
                None,
                {},
                400,
                "INVALID_ARGUMENT",
                "query is 'verson', must be some of version",
            ),
            ("/v1/score?stream=1", SCORE, {}, 400, "INVALID_ARGUMENT", "query is 'stream', must be empty"),
            ("/v1/generate?stream=1", {"text": ""}, {}, 400, "INVALID_ARGUMENT", "text is"),
            ("/v1/secret", {}, {}, 404, "NOT_FOUND", "/openapi.json"),
            ("/secret", None, {}, 404, "NOT_FOUND", "/openapi.json"),
            ("/v1/models", {}, {}, 405, "UNIMPLEMENTED", "/openapi.json"),
            ("/v1/generate", b" " * (MAX_REQUEST_BYTES + 1), {}, 413, "RESOURCE_EXHAUSTED", ""),
            ("/v1/generate", b"{}", {"content_type": "text/plain"}, 415, "INVALID_ARGUMENT", "Content-Type"),
            ("/v1/models", None, {"host": "evil.example"}, 421, "", ""),
        ],
    )
    async def test_a_wrong_request_is_answered_with_problem_details_and_logged_by_its_id(
        self,
        web: Http,
        path: str,
        body: Any,
        headers: dict[str, str],
        status: int,
        code: str,
        says: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG, "attendant.server")
        for own_id in ({}, {"x_request_id": "mine"}):
            answer = await asyncio.to_thread(
                web.ask, "GET" if body is None else "POST", path, body, **headers, **own_id
            )
            assert answer.headers["content-type"] == "application/problem+json"
            problem = answer.json
            assert (answer.status, problem["status"], code in problem["code"]) == (status, status, True)
            assert says in problem["detail"] and problem["title"] and problem["type"] == "about:blank"
            request_id = id_in(problem)
            assert request_id == "mine" if own_id else request_id
            (line,) = await logged(caplog, request_id)
            assert (line["code"], line["client"]) == (problem["code"], "127.0.0.1")
        written = "".join(map(LineFormatter("json", "off").format, caplog.records))
        assert "secret" not in written, "texts of callers are not logged"

    async def test_problems_have_the_details_of_the_grpc_status(self, web: Http) -> None:
        out_of_range = {"requestId": "mine", "text": "", "decoding": {"beamSize": 99}}
        of_no_message = {"requestId": "mine", "text": 5, "decoding": {"beamSize": "many"}}
        for wrong in (out_of_range, of_no_message):
            bad_request, request_info = (await web.post("/v1/generate", wrong)).json["details"]
            assert bad_request["@type"] == "type.googleapis.com/google.rpc.BadRequest"
            assert [violation["field"] for violation in bad_request["fieldViolations"]] == [
                "text",
                "decoding.beam_size",
            ]
            assert request_info["requestId"] == "mine"

    @pytest.mark.parametrize("seconds", ["0", "x", "61", "nan", "-1", "1_0", "+1", "inf", ""])
    async def test_an_invalid_deadline_is_refused(self, web: Http, seconds: str) -> None:
        answer = await web.post("/v1/generate", GENERATE, request_timeout=seconds)
        assert answer.status == 400
        assert answer.json["detail"].startswith(f"Request-Timeout is '{seconds}', must be ")

    async def test_a_header_with_an_unprintable_id_is_refused_by_its_own_name(self, web: Http) -> None:
        for path, body in (("/v1/generate", GENERATE), ("/v1/generate?stream=1", GENERATE), ("/v1/score", SCORE)):
            answer = await web.post(path, body, x_request_id="a\tb")
            assert answer.status == 400
            assert answer.json["detail"].startswith("X-Request-Id is 'a\\tb', must be at most 128 characters, none")
            assert (await web.post(path, body, x_request_id="x" * 500)).status == 200, "a long one is cut"

    async def test_a_deadline_that_comes_twice_is_refused(self, web: Http) -> None:
        def ask() -> tuple[int, str]:
            body = json.dumps(GENERATE).encode()
            with contextlib.closing(web.connection()) as connection:
                connection.putrequest("POST", "/v1/generate")
                connection.putheader("Content-Type", "application/json")
                connection.putheader("Content-Length", str(len(body)))
                connection.putheader("Request-Timeout", "5")
                connection.putheader("Request-Timeout", "50")
                connection.endheaders(body)
                answer = connection.getresponse()
                return answer.status, json.load(answer)["detail"]

        status, detail = await asyncio.to_thread(ask)
        assert status == 400 and detail.startswith("Request-Timeout is '5, 50', must be ")

    async def test_a_deadline_that_has_passed_is_exceeded(self, web: Http) -> None:
        for path in ("/v1/generate", "/v1/generate?stream=1"):
            answer = await web.post(path, GENERATE, request_timeout="0.000000001")
            assert (answer.status, answer.json["code"]) == (504, "DEADLINE_EXCEEDED")


class TestRanges:
    """Tests that ranges in the OpenAPI document are the server's, except limits that each model sets itself."""

    @pytest.mark.parametrize("name", RANGES)
    async def test_documented_ranges_are_those_the_server_accepts(self, web: Http, name: str) -> None:
        allowed = RANGES[name]
        section = "output" if name == "trace" else "decoding"
        if name in {"temperature", "top_k", "top_p", "seed"}:
            section += ".sampling"

        async def ask(value: float) -> Answer:
            options: object = {name: value}
            for part in reversed(section.split(".")):
                options = {part: options}
            return await web.post("/v1/generate", {"text": "abc"} | options)

        most, least = allowed.most, allowed.least
        outside = [most + 1, least - 1, *([least] if allowed.is_open else [])]
        for value in outside:
            answer = await ask(value)
            field = f"{section}.{name} is "
            assert answer.status == 400 and answer.json["detail"].startswith(field), value
        if most not in (MAX_BEAM, MAX_TOKENS) and name != "min_length_ratio":
            assert (await ask(most)).status == 200
        if not allowed.is_open:
            assert (await ask(least)).status == 200


class TestBounds:
    async def test_a_client_has_as_many_calls_as_are_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app, "MAX_CALLS", 4)
        async with served(stepper := gated_stepper(), max_rows=2) as server, http_served(server) as web:
            calls = [asyncio.create_task(web.post("/v1/generate", {"text": "abc"})) for _ in range(2)]
            await eventually(lambda: server.model.runner.num_waiting + server.model.runner.num_running == 2)
            answer = await web.post("/v1/generate", {"text": "abc"}, x_request_id="mine")
            assert (answer.status, answer.json["code"]) == (429, "RESOURCE_EXHAUSTED")
            assert answer.json["details"][-1]["requestId"] == "mine"
            assert "2 calls are under way over HTTP, 2 of them from this client" in answer.json["detail"]
            assert (await web.get("/healthz")).status == 200
            stepper.open()
            assert {(await call).status for call in calls} == {200}

    async def test_handshakes_that_do_not_come_make_way(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http, "MAX_HANDSHAKES", 4)
        authority = new_authority(tmp_path)
        certificate, key = authority.issue("server")
        access = open_access(ServerConfig(bundles=(), tls_certificate=certificate, tls_key=key))
        client = ssl.create_default_context(cafile=str(authority.certificate))
        async with served(fake_stepper()) as server, http_served(server, access, tls=client) as web:
            idle = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(12)]
            assert (await web.post("/v1/generate", GENERATE)).status == 200
            for _, writer in idle:
                writer.close()

    async def test_answers_that_are_under_way_are_written_before_the_end(self) -> None:
        async with served(stepper := gated_stepper()) as server:
            async with http_served(server) as web:
                call = asyncio.create_task(web.post("/v1/generate", {"text": "abc"}))
                await stepper.arrival()
                stepper.open()
            assert (await call).status == 200
