"""Tests of every call of the client, with a fake server that records the requests."""

import asyncio
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attendant_client import (
    VERSION,
    Answers,
    AttendantClient,
    BlockingClient,
    DeadlineExceeded,
    Delta,
    FinishReason,
    Generation,
    HealthStatus,
    InvalidArgument,
    Limits,
    NotFound,
    Sampling,
    Timings,
)
from attendant_client.types import DecodingFields, OutputFields
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.paths import ROOT
from tests.unit.client.fake_server import Served


async def test_an_answer_becomes_plain_values(client: AttendantClient) -> None:
    answer = await client.generate(
        "ab", request_id="seven", num_hypotheses=2, beam_size=2, attention=True, token_log_probs=True
    )
    assert (answer.request_id, answer.model, answer.version) == ("seven", "fake", "0123456789ab")
    assert answer.source_tokens == ("a", "b")
    assert answer.timings == Timings(
        queue_seconds=0.25, encode_seconds=0.5, decode_seconds=1.0, total_seconds=1.75, steps=4, mean_batch_rows=2.5
    )
    best, second = answer.hypotheses
    assert answer.best is best
    assert (best.text, best.tokens, best.score, best.log_prob) == ("AB", ("A", "B"), -0.5, -1.0)
    assert best.token_log_probs == (-0.25, -0.25, -0.25)
    assert best.attention == ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
    assert (best.finish_reason, second.finish_reason) == (FinishReason.EOS, FinishReason.LENGTH)


async def test_unset_options_are_not_sent(client: AttendantClient, server: Served) -> None:
    answer = await client.generate("ab")
    assert server.seq2seq.requests == [pb.GenerateRequest(text="ab")]
    assert answer.best.attention is None
    assert answer.best.token_log_probs == ()
    await client.generate("ab", sampling=Sampling(), target_prefix=[])
    assert server.seq2seq.requests[1].decoding.HasField("sampling")
    assert server.seq2seq.requests[1].decoding.HasField("target_prefix")


async def test_a_list_is_one_call(client: AttendantClient, server: Served) -> None:
    answers = await client.generate(["ab", ("x", "yz")], beam_size=2)
    assert [answer.best.text for answer in answers] == ["AB", "XYZ"]
    (request,) = server.seq2seq.requests
    assert [request.WhichOneof("source") for request in request.requests] == ["text", "tokens"]
    assert [request.decoding.beam_size for request in request.requests] == [2, 2]
    assert await client.generate([]) == []
    with pytest.raises(InvalidArgument, match=r"^source 1: text: 'bad' is bad") as refused:
        await client.generate(["ab", "bad"])
    assert refused.value.violations and str(pickle.loads(pickle.dumps(refused.value))) == refused.value.message
    for items, kind in (
        (["ab", None], TypeError),
        (["a", "\ud800"], ValueError),
        (["a", "c" * 300_000], InvalidArgument),
    ):
        with pytest.raises(kind, match=r"^source 1: "):
            await client.generate(items)
    for sources in (["a"] * 257, ["c" * 100_000] * 3):
        with pytest.raises(InvalidArgument, match="; generate_many takes any number of sources"):
            await client.generate(sources)
    answers = await client.generate(["ab", "bad"], return_errors=True)
    assert isinstance(answers[0], Generation) and isinstance(answers[1], InvalidArgument)


async def test_every_item_that_is_no_source_has_its_error_in_its_place(client: AttendantClient, server: Served) -> None:
    items: list[Any] = ["ab", None, "\ud800", 7, "bad", ["x", None], "c" * (300 << 10), iter(["y", "z"])]
    kinds = ["Generation", *["InvalidArgument"] * 6, "Generation"]
    answers = await client.generate(items, return_errors=True)
    assert [type(answer).__name__ for answer in answers] == kinds
    assert "source=None: must be a text or its tokens" in str(answers[1]) and answers[-1].best.text == "YZ"
    items[-1] = ("y", "z")
    many = [answer async for answer in client.generate_many(items, return_errors=True, concurrency=np.int64(2))]
    assert [(type(answer), str(answer)) for answer in many[1:-1]] == [
        (type(answer), str(answer)) for answer in answers[1:-1]
    ]
    assert many[-1].best.text == "YZ"
    assert all(isinstance(answer, InvalidArgument) for answer in await client.generate([None], return_errors=True))  # type: ignore[list-item]
    for options in ({"beams": 1}, {"beam_size": "4"}):
        with pytest.raises(TypeError, match="beam"):
            await client.generate(items, return_errors=True, **options)
        with pytest.raises(TypeError, match="beam"):
            _ = [answer async for answer in client.generate_many(items, return_errors=True, **options)]


async def test_numbers_of_numpy_are_numbers(client: AttendantClient, server: Served) -> None:
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.uint8(5), top_p=np.float64(0.5), seed=np.int64(3))
    await client.generate(
        np.str_("ab"), beam_size=np.int64(4), num_hypotheses=np.array(3), length_penalty=np.float32(0.5),
        attention=np.bool_(True), sampling=sampling, timeout=np.float32(20),
    )  # fmt: skip
    await client.score("ab", "X", include_eos=np.bool_(False))
    request, scored = server.seq2seq.requests
    decoding = request.decoding
    assert (request.text, decoding.beam_size, decoding.num_hypotheses, decoding.length_penalty) == ("ab", 4, 3, 0.5)
    assert request.output.attention and not scored.include_eos
    assert decoding.sampling == pb.SamplingOptions(temperature=0.5, top_k=5, top_p=0.5, seed=3)
    with pytest.raises(TypeError, match="beam_size="):
        await client.generate("ab", beam_size=np.float64(1.5))


async def test_a_list_of_answers_has_a_table(client: AttendantClient) -> None:
    answers = await client.generate(["<i>", "bad"], return_errors=True)
    assert isinstance(answers, Answers) and isinstance(answers, list)
    page = answers._repr_html_()
    assert page.count("<tr>") == 3 and "&lt;I&gt;" in page and "<i>" not in page and "InvalidArgument" in page
    assert pickle.loads(pickle.dumps(answers[:1])) == answers[:1]
    assert answers[:1]._repr_html_().count("<tr>") == 2
    many = Answers(answers * 60)._repr_html_()
    assert many.count("<tr>") == 101 and "and 20 more" in many


async def test_a_stream_gives_pieces_and_then_the_answer(client: AttendantClient) -> None:
    stream = client.stream("ab", beam_size=2)
    with pytest.raises(RuntimeError, match="read to its end"):
        _ = stream.generation
    assert [delta async for delta in stream] == [Delta(tokens=("A",), text="A"), Delta(tokens=("B",), text="B")]
    assert stream.generation.best.text == "AB"
    with pytest.raises(InvalidArgument):
        [delta async for delta in client.stream("bad")]
    left, closed = client.stream("abc"), client.stream("abc")
    async for delta in left:
        assert delta.text == "A"
        break
    await closed.aclose()
    for used in (stream, left, closed):
        with pytest.raises(RuntimeError, match="make another one"):
            [delta async for delta in used]


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (None, {}, TypeError, "source=None: must be a text or its tokens"),
        ({"text": "ab"}, {}, TypeError, "source={'text': 'ab'}: must be a text or its tokens"),
        ("ab", {"sampling": 1}, TypeError, r"sampling=1: must be a Sampling, such as"),
        ("a" * 300_000, {}, InvalidArgument, "the request has 300,004 bytes, must have at most 262,144"),
        ("\udc80", {}, ValueError, "text="),
        ("ab", {"beam_sise": 4}, TypeError, "no option beam_sise; choose from alternatives, attention, beam_size"),
        ("ab", {"temperature": 0.8}, TypeError, r"no option temperature; choose from sampling=Sampling\(temperature="),
        (("a", 1), {}, TypeError, r"source=\('a', 1\): each token must be a text"),
        ("ab", {"target_prefix": "A"}, TypeError, "target_prefix='A': must be a list of tokens; a text belongs into"),
        ("ab", {"target_prefix_text": ["A"]}, TypeError, r"target_prefix_text=\['A'\]: must be a text"),
        ("ab", {"masked_source_positions": [0, -1]}, ValueError, r"\(0, -1\): must be a list of places, each a whole"),
        ("ab", {"length_penalty": 10**400}, ValueError, "length_penalty=100.*: must be a number"),
        ("ab", {"beam_size": True}, TypeError, "beam_size=True: must be a whole number from 0 to 4294967295"),
        ("ab", {"sampling": Sampling(top_k=-1)}, ValueError, "top_k=-1"),
        ("ab", {"timeout": 0}, ValueError, "timeout=0: must be more than 0"),
        ("ab", {"timeout": "5"}, TypeError, "timeout='5': must be a number of seconds"),
    ],
)
async def test_requests_that_no_server_accepts_are_not_sent(
    client: AttendantClient, server: Served, source: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await client.generate(source, **options)
    assert server.seq2seq.requests == []


@pytest.mark.parametrize("value", [np.zeros((200, 9)), "x\ny" * 1000], ids=["array", "text"])
async def test_wrong_values_of_any_size_are_shown_in_one_line(client: AttendantClient, value: Any) -> None:
    async def many() -> None:
        await anext(client.generate_many(["a"], concurrency=value))

    calls: list[Callable[[], Any]] = [
        *(partial(client.generate, "ab", **{name: value}) for name in ("beam_size", "sampling", "timeout")),
        *(many, partial(AttendantClient, value)),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as error:
            await call()
        assert "\n" not in str(error.value) and len(str(error.value)) < 200


async def test_arguments_of_a_wrong_kind_are_refused(client: AttendantClient) -> None:
    frame = SimpleNamespace(columns=["text"])  # its columns' names would be decoded

    async def many(sources: Any) -> Any:
        return await anext(client.generate_many(sources))

    calls: list[tuple[Any, str]] = [
        (partial(client.model, 3), "^model=3: must be a text"),
        (partial(client.model, "fake", 3), "^version=3: must be a text"),
        (partial(client.health, 3), "^service=3: must be a text"),
        *((partial(many, each), f"^sources={each!r}: must be a list of texts") for each in ("face", {"id": "a"}, None)),
        *((partial(call, frame), "is a data frame: give the texts of a column")
          for call in (client.generate, many, partial(client.score, "a"))),
        *((partial(call, beam_size=4), "no option beam_size")
          for call in (partial(client.score, "a", "b"), client.models, client.model, client.health, client.bulk)),
    ]  # fmt: skip
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            await call()


async def test_a_deadline_may_be_farther_than_grpc_can_count(client: AttendantClient) -> None:
    assert (await client.generate("ab", timeout=1e300)).best.text == "AB"


async def test_a_closed_client_raises(server: Served) -> None:
    client = AttendantClient(server.target)
    await client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        await client.generate("ab")
    for open_stream in (client.bulk, lambda: client.stream("ab")):
        with pytest.raises(RuntimeError, match="the client is closed"):
            open_stream()


def test_there_is_an_option_for_every_field_of_the_api() -> None:
    def fields(message: Any) -> set[str]:
        return {field.name for field in message.DESCRIPTOR.fields}

    assert set(DecodingFields.__annotations__) == fields(pb.DecodingOptions)
    assert set(OutputFields.__annotations__) == fields(pb.OutputOptions)
    assert set(Sampling.__dataclass_fields__) == fields(pb.SamplingOptions)
    assert set(Limits.__dataclass_fields__) == fields(pb.Limits)


async def test_a_score_has_plain_values(client: AttendantClient, server: Served) -> None:
    score = await client.score("ab", "X Y", attention=True, request_id="r", model="m")
    assert (score.log_prob, score.token_log_probs) == (-1.5, (-0.5, -0.5, -0.5))
    assert (score.source_tokens, score.target_tokens) == (("a", "b"), ("X", "Y"))
    assert (score.request_id, score.model, score.version) == ("r", "m", "0123456789ab")
    assert score.attention == ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
    without = await client.score(["a"], ["X"], include_eos=False, version="7")
    assert without.log_prob == -0.5
    assert without.attention is None
    assert server.seq2seq.requests[1] == pb.ScoreRequest(
        source_tokens=pb.Tokens(tokens=["a"]),
        target_tokens=pb.Tokens(tokens=["X"]),
        include_eos=False,
        version="7",
        output=pb.OutputOptions(token_log_probs=True),
    )


async def test_models_are_listed_and_described(client: AttendantClient) -> None:
    models = await client.models()
    assert [model.name for model in models] == ["fake", "other"]
    model = await client.model("fake")
    assert model == models[0]
    assert model.limits == Limits(
        max_source_tokens=64,
        max_target_tokens=48,
        max_beam_size=8,
        max_num_hypotheses=4,
        max_source_characters=512,
        max_target_characters=384,
    )
    assert model.architecture == {"cell": "lstm", "attention": "dot"}
    assert model.defaults == {"beam_size": 1, "length_penalty": 0.5}
    assert [(e.metric, e.value, e.protocol, e.num_examples) for e in model.evaluation] == [
        ("wer", 33.5, "test words", 12000)
    ]
    assert (model.precision, model.provider, model.manifest_json) == ("fp32", "cpu", '{"name": "fake"}')
    assert (model.source_vocabulary_size, model.target_vocabulary_size) == (32, 80)
    assert (model.label, model.role) == ("", "UNSPECIFIED")
    named = await client.model("fake", "7")
    assert (named.label, named.role) == ("7", "NAMED")
    with pytest.raises(NotFound, match="'none' is not served here"):
        await client.model("none")


async def test_health_follows_the_servers_status(client: AttendantClient, server: Served) -> None:
    assert await client.health() is HealthStatus.SERVING
    server.health.enter_graceful_shutdown()
    assert await client.health() is HealthStatus.NOT_SERVING
    with pytest.raises(NotFound):
        await client.health("no.such.Service")


async def test_every_call_has_a_deadline_by_default(server: Served) -> None:
    async with AttendantClient(server.target) as client:
        await client.generate("a")
        await client.generate("a", timeout=5)
        await client.models(timeout=None)
    async with AttendantClient(server.target, timeout=7) as client:
        await client.model()
        await client.score("a", "X", timeout=3)
    # Without a deadline, gRPC returns several centuries.
    left = [min(99, round(seconds or 99)) for seconds in server.seq2seq.seconds_left]
    assert left == [30, 5, 99, 7, 3]


async def test_the_token_and_the_version_are_sent(server: Served) -> None:
    async with AttendantClient(server.target, token="secret") as client:
        await client.generate("a")
    async with AttendantClient(server.target) as client:
        await client.generate("a")
    first, second = server.seq2seq.metadata
    assert first["authorization"] == "Bearer secret"
    assert "authorization" not in second
    assert str(first["user-agent"]).startswith(f"attendant-client/{VERSION} ")


async def test_a_call_has_an_id_of_the_clients_unless_the_request_has_one(
    client: AttendantClient, server: Served
) -> None:
    await client.generate("a")
    await client.generate("a", request_id="mine")
    first, second = server.seq2seq.metadata
    assert len(first["x-request-id"]) == 32 and "x-request-id" not in second

    async def streamed(source: str, **options: Any) -> None:
        _ = [delta async for delta in client.stream(source, **options)]

    for request_id in ("", "mine"):
        for call in (client.generate, streamed):
            with pytest.raises(DeadlineExceeded, match=r"0\.1 s") as passed:
                await call("slower", request_id=request_id, timeout=0.1)
            assert passed.value.request_id == (request_id or server.seq2seq.metadata[-1]["x-request-id"])
        with pytest.raises(DeadlineExceeded) as passed:
            await client.generate(["slower", "a"], request_id=request_id, timeout=0.1)
        assert passed.value.request_id == server.seq2seq.requests[-1].requests[0].request_id != ""


async def test_generate_many_keeps_the_order_of_its_sources(client: AttendantClient, server: Served) -> None:
    sources = ["slow", *(f"w{number}" for number in range(60))]
    answers = [answer.best.text async for answer in client.generate_many(sources, concurrency=8, beam_size=1)]
    assert answers == [source.upper() for source in sources]
    assert server.seq2seq.max_in_flight == 1, "one stream"
    assert all(request.decoding.beam_size == 1 for request in server.seq2seq.requests)


@pytest.mark.parametrize(
    ("source", "error"),
    [(None, TypeError), ("\ud800", ValueError), ("c" * 300_000, InvalidArgument), ("bad", InvalidArgument)],
)
async def test_an_error_of_generate_many_has_its_sources_place(
    client: AttendantClient, source: Any, error: type[Exception]
) -> None:
    answers = client.generate_many(["slow", "b", source, "bad"], concurrency=2)
    assert [(await anext(answers)).best.text for _ in range(2)] == ["SLOW", "B"]
    with pytest.raises(error, match=r"^source 2: "):
        await anext(answers)


def test_the_blocking_client_has_every_call(server: Served) -> None:
    with BlockingClient(server.target, timeout=20) as client:
        assert client.generate("ab", beam_size=2).best.text == "AB"
        assert [answer.best.text for answer in client.generate(["ab", "c"])] == ["AB", "C"]
        assert [answer.best.text for answer in client.generate_many(iter("abc"))] == ["A", "B", "C"]
        assert client.score("ab", "AB").log_prob == -1.0
        assert [model.name for model in client.models()] == ["fake", "other"]
        assert client.model("fake").name == "fake"
        assert client.health() is HealthStatus.SERVING
        stream = client.stream("ab")
        assert list(stream) == [Delta(tokens=("A",), text="A"), Delta(tokens=("B",), text="B")]
        assert stream.generation.best.text == "AB"
        with pytest.raises(InvalidArgument):
            client.generate("bad")
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.generate("a")
    client.close()


def test_leaving_a_blocking_iterator_early_cancels_its_calls(server: Served) -> None:
    with BlockingClient(server.target) as client:
        for answer in client.generate_many(["a", "b"] * 100, concurrency=2):
            assert answer.best.text == "A"
            break
        for delta in client.stream("abc"):
            assert delta.text == "A"
            break
        assert client.generate("a").best.text == "A"
    assert len(server.seq2seq.requests) < 50


def test_ctrl_c_interrupts_a_blocking_iterator(server: Served) -> None:
    def interrupt() -> None:
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGINT)

    with BlockingClient(server.target) as client:
        for _ in range(3):
            threading.Timer(0.1, interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                list(client.generate_many(itertools.repeat("slow"), concurrency=8))
        assert client.generate("a").best.text == "A"


def test_a_client_belongs_to_the_event_loop_of_its_first_call(server: Served) -> None:
    client, loop = AttendantClient(server.target), asyncio.new_event_loop()
    assert loop.run_until_complete(client.generate("ab")).best.text == "AB"
    with pytest.raises(RuntimeError, match="make one for this loop"):
        asyncio.run(client.generate("ab"))
    loop.run_until_complete(client.close())
    loop.close()


FORKED = """
import os, sys
from attendant_client import BlockingClient
client = BlockingClient(sys.argv[1], timeout=20)
if (child := os.fork()) == 0:
    print(client.generate("child").best.text, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(client.generate("parent").best.text, flush=True)
client.close()
if (child := os.fork()) == 0:
    for each in (BlockingClient(sys.argv[1]), BlockingClient(sys.argv[1])):
        try:
            each.generate("child")
        except RuntimeError as error:
            print(str(error)[:33], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_before_the_first_call_is_harmless_and_later_ones_are_refused(server: Served) -> None:
    command = [sys.executable, "-c", FORKED, server.target]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["CHILD", "PARENT", *["gRPC does not work in a process t"] * 2]


def test_sources_that_call_the_same_blocking_client_are_refused(server: Served) -> None:
    with BlockingClient(server.target) as client, BlockingClient(server.target) as other:
        answers = other.generate_many(each.best.text for each in client.generate_many(["a", "b"]))
        assert [each.best.text for each in answers] == ["A", "B"]
        with pytest.raises(RuntimeError, match="use another one"):
            list(client.generate_many(client.generate(text).best.text for text in "ab"))


def test_closing_a_blocking_client_ends_the_calls_of_other_threads(server: Served) -> None:
    client = BlockingClient(server.target, timeout=None)
    outcomes: list[BaseException] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except (CancelledError, RuntimeError) as ended:
            outcomes.append(ended)

    calls: list[Callable[[], object]] = [
        lambda: client.generate("slow"),
        lambda: list(client.generate_many(itertools.repeat("slow"))),
        lambda: list(client.stream("slow")),
    ]
    suspended = client.generate_many(itertools.repeat("a"))
    assert next(suspended).best.text == "A"
    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    client.close()
    for thread in threads:
        thread.join(5)
    assert len(outcomes) == len(calls)
    suspended.close()
