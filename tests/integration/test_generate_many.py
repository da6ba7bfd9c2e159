"""Tests of GenerateMany over a real socket: a list of requests in one call."""

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.integration.test_service import long_request, metadata_of
from tests.serving import Served, eventually, failure, fake_stepper, gated_stepper, served

Generate = messages.GenerateRequest
Many = messages.GenerateManyRequest


def ended(server: Served, code: str, model: str = "fake") -> float:
    return server.sample("attendant_requests_total", model=model, method="GenerateMany", code=code)


def without_timings(response: messages.GenerateResponse) -> messages.GenerateResponse:
    response.ClearField("timings")
    return response


async def test_each_is_answered_in_its_place_as_its_own_call_would_be() -> None:
    async with served(fake_stepper(), max_waiting=1000) as server:
        requests = [
            Generate(request_id=str(number), text="abcdefgh"[: 1 + number % 8], decoding={"beam_size": 1 + number % 5})
            for number in range(100)
        ]
        requests[7].text = "\u00a0"
        requests[8].model = "none"
        results = (await server.stub.GenerateMany(Many(requests=requests))).results
        assert [result.request_id for result in results] == [request.request_id for request in requests]
        for number, (request, result) in enumerate(zip(requests, results, strict=True)):
            if number in (7, 8):
                error = await failure(server.stub.Generate(request))
                assert (result.error.code, result.error.message) == (error.code().value[0], error.details())
            else:
                unary = await server.stub.Generate(request)
                assert without_timings(result.response) == without_timings(unary)
        assert ended(server, "OK") == 98
        assert ended(server, "INVALID_ARGUMENT") == 1 == ended(server, "NOT_FOUND", model="")


@pytest.mark.parametrize("num", [0, 257])
async def test_a_list_that_is_too_long_is_refused(num: int) -> None:
    async with served(fake_stepper()) as server:
        error = await failure(server.stub.GenerateMany(Many(requests=[Generate(text="a")] * num)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == f"requests is {num} items long, must be 1 to 256 items long"
        assert ended(server, "INVALID_ARGUMENT") == 1


async def test_a_list_is_admitted_as_a_whole_or_not_at_all() -> None:
    async with served(gated_stepper(), max_rows=2, max_waiting=10) as server:
        error = await failure(server.stub.GenerateMany(Many(requests=[long_request()] * 20)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "grpc-retry-pushback-ms" in metadata_of(error)
        await eventually(lambda: server.model.runner.num_waiting == 0)
        assert ended(server, "RESOURCE_EXHAUSTED") == 20


async def test_answers_that_could_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendant.server.grpc.requests.MAX_ANSWER_BYTES", 1 << 20)
    async with served(fake_stepper()) as server:
        draws = Generate(text="abc", decoding={"num_hypotheses": 4, "sampling": {}}, output={"attention": True})
        error = await failure(server.stub.GenerateMany(Many(requests=[draws] * 200)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith("requests is 200 items long, whose answers may take 2 MiB")
        assert ended(server, "INVALID_ARGUMENT") == 200
