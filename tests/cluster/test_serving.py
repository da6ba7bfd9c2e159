"""Tests of bundles on Ray Serve: nodes and replicas that start, end and die during continuous calls."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from attendant_client import AttendantClient, InvalidArgument, NotFound, Unauthenticated
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.cluster.conftest import Nodes, command
from tests.paths import ROOT
from tests.ports import free_ports
from tests.repositories import put_version

BUNDLE, OTHER = str(ROOT / "models" / "g2p-en"), str(ROOT / "tests" / "bundle_formats" / "1")
CALLERS = 8
PATIENCE_SECONDS = 120
TOKEN = "search-token-0123456789"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def serving(nodes: Nodes) -> Iterator[Callable[..., str]]:
    """Yields a function that deploys bundles and returns their address."""
    from ray import serve

    (port,) = free_ports(1)

    def deployed(*bundles: str, **scale: object) -> str:
        options = [part for name, value in scale.items() for part in (f"--{name.replace('_', '-')}", value)]
        command("serve", *bundles, "--port", port, *options)
        return f"localhost:{port}"

    yield deployed
    serve.shutdown()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.1)


def num_replicas() -> int:
    """Returns the number of replicas that run."""
    from ray import serve

    (deployment,) = serve.status().applications["attendant"].deployments.values()
    return deployment.replica_states.get("RUNNING", 0)


def replica_of(answer: Any) -> str:
    """Returns the process that made an answer: ids that the server makes begin with it."""
    return str(answer.request_id.partition("-")[0])


@asynccontextmanager
async def calls(target: str, *, retries: bool = False, callers: int = CALLERS) -> AsyncIterator[Counter[str]]:
    """Runs callers that make calls without a pause until the block has ended; a call that fails raises.

    Args:
        retries: retries as the Python client does.

    Yields:
        The number of answers of each replica.
    """
    answers = Counter[str]()
    ending = asyncio.Event()
    options = (("grpc.service_config", json.dumps(SERVICE_CONFIG)), ("grpc.enable_retries", int(retries)))
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        generate = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate  # type: ignore[no-untyped-call]

        async def caller() -> None:
            while not ending.is_set():
                answer = await generate(messages.GenerateRequest(text="knowledgeable"), timeout=PATIENCE_SECONDS)
                answers[replica_of(answer)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
            await until(lambda: answers.total() > 10 * callers)
            yield answers
            answers.clear()
            await until(lambda: answers.total() > 10 * callers)
            ending.set()


async def test_every_call_is_answered_as_by_a_server(serving: Callable[..., str]) -> None:
    async with AttendantClient(serving(BUNDLE)) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:  # the proxies get the deployment a moment later
                try:
                    alone = await client.generate("badge", beam_size=2, attention=True)
                    break
                except NotFound:
                    await asyncio.sleep(0.1)
        assert alone.best.text == "B AE1 JH" and alone.best.attention is not None
        assert [answer.best.text for answer in await client.generate(["badge", "face"])] == ["B AE1 JH", "F EY1 S"]
        stream = client.stream("badge")
        assert "".join([delta.text async for delta in stream]) == stream.generation.best.text == "B AE1 JH"
        texts = ["badge", "", "face"] * 20
        answers = [answer async for answer in client.generate_many(texts, return_errors=True)]
        assert all(isinstance(answer, InvalidArgument) for answer in answers[1::3])
        assert {answer.best.text for answer in answers[2::3]} == {"F EY1 S"}  # type: ignore[union-attr]
        assert (await client.score("badge", "B AE1 JH")).log_prob == pytest.approx(alone.best.log_prob)
        assert [model.name for model in await client.models()] == ["g2p-en"]
        with pytest.raises(InvalidArgument) as refused:
            await client.generate("badge", beam_size=1000)
        assert [violation.field for violation in refused.value.violations] == ["decoding.beam_size"]
        with pytest.raises(InvalidArgument, match="beam_size is 1000"):
            [delta async for delta in client.stream("badge", beam_size=1000)]
        with pytest.raises(NotFound):
            await client.generate("badge", model="none")


async def test_replicas_come_and_go_with_the_load(serving: Callable[..., str]) -> None:
    target = serving(BUNDLE, max_replicas=2, ongoing_requests=2, upscale_seconds=0, downscale_seconds=1)
    async with calls(target) as answers:
        await until(lambda: num_replicas() == 2)
        answers.clear()
        await until(lambda: answers.total() > 50 * CALLERS)
        assert len(answers) == 2 and min(answers.values()) > answers.total() / 4
    async with calls(target, callers=1):
        await until(lambda: num_replicas() == 1)


async def test_an_update_costs_no_call(serving: Callable[..., str], tmp_path: Path) -> None:
    """Checks that no call fails, even without retries."""
    put_version(Path(BUNDLE), tmp_path, "g2p-en", "2")
    async with calls(serving(BUNDLE)) as answers:
        before = set(answers)
        await asyncio.to_thread(serving, str(tmp_path / "g2p-en" / "2"))
        answers.clear()
        await until(lambda: answers and before.isdisjoint(answers))


async def test_a_call_needs_a_token(serving: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"search {TOKEN}\n")
    target = serving(BUNDLE, tokens=tmp_path / "tokens")
    async with AttendantClient(target) as stranger, AttendantClient(target, token=TOKEN) as known:
        with pytest.raises(Unauthenticated):
            await stranger.generate("badge")
        with pytest.raises(Unauthenticated):
            [delta async for delta in stranger.stream("badge")]
        assert (await known.generate("badge")).best.text == "B AE1 JH"


async def test_models_take_turns_in_a_replica(serving: Callable[..., str]) -> None:
    async with AttendantClient(serving(BUNDLE, OTHER, models_held=1)) as client:
        with pytest.raises(InvalidArgument, match="model"):
            await client.generate("badge")
        for _ in range(2):
            for model in ("g2p-en", "tiny"):
                assert (await client.generate("badge", model=model)).model == model
                assert [served.name for served in await client.models()] == [model]


async def test_a_node_that_dies_costs_no_call_that_is_tried_again(nodes: Nodes, serving: Callable[..., str]) -> None:
    mortal = nodes.add()
    # A node has two CPUs, so one node has no room for all replicas.
    target = await asyncio.to_thread(serving, BUNDLE, min_replicas=3, max_replicas=3)
    async with calls(target, retries=True) as answers:
        await until(lambda: len(answers) == 3)
        await asyncio.to_thread(nodes.kill, mortal)
        for _ in range(2):  # calls in flight, then later calls
            answers.clear()
            await until(lambda: answers.total() > 20 * CALLERS)
        assert len(answers) < 3
