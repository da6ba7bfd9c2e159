"""Tests of models that are added, replaced and removed while a server runs in its own process.

The tests share the server; each has its own model.
"""

import asyncio
import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests import server_process
from tests.paths import ROOT
from tests.repositories import put_policy, put_version
from tests.server_process import Running, server

PATIENCE_SECONDS = 120
PAUSE_SECONDS = 0.005
"""Pause of a client after each answer: without it, the clients would take the time that a version needs to load."""

MAX_ROWS = 8
OTHER_BUNDLE = ROOT / "tests" / "bundle_formats" / "1"
"""A bundle whose answers differ from those of the tiny bundle."""

eventually = partial(server_process.eventually, seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def running(repository: Path, tiny_bundle_path: Path) -> Iterator[Running]:
    options = "--repository-seconds", "0.05", "--max-rows", str(MAX_ROWS), "--light-rows", "1000"
    with server(str(repository), str(tiny_bundle_path), *options) as started:
        yield started
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(60) == 0


@pytest.fixture(scope="module")
def stub(running: Running) -> Iterator[Any]:
    with grpc.insecure_channel(running.target) as channel:
        yield seq2seq_pb2_grpc.Seq2SeqStub(channel)


def asking(model: str, **more: Any) -> messages.GenerateRequest:
    return messages.GenerateRequest(text="badge", model=model, **more)


def version_of(stub: Any, model: str) -> str:
    """Returns the version that answers, or an empty string if the model is not served."""
    try:
        return str(stub.Generate(asking(model), timeout=60).version)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error
        return ""


def served(stub: Any, model: str) -> dict[str, str]:
    """Returns the roles of a model's versions by label."""
    models = stub.ListModels(messages.ListModelsRequest(), timeout=60).models
    return {version.label: messages.Role.Name(version.role) for version in models if version.name == model}


def count(running: Running, name: str, **labels: str) -> float:
    return running.metrics().get(f"attendant_{name}_total{json.dumps(labels, sort_keys=True)}", 0.0)


def num_versions(running: Running, model: str) -> int:
    """Returns the number of a model's versions whose engines have not ended."""
    return sum(key.startswith("attendant_bundle_info") and f'"{model}"' in key for key in running.metrics())


def test_bundles_are_served_alongside_repositories(running: Running, stub: Any, repository: Path) -> None:
    assert served(stub, "first") == {"1": "ROLE_STABLE"}
    plain = stub.GetModel(messages.GetModelRequest(model="tiny"), timeout=60)
    assert plain.label == plain.version == version_of(stub, "tiny") != version_of(stub, "first")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Generate(messages.GenerateRequest(text="badge"), timeout=60)
    assert "model is empty, must be one of first, " in caught.value.details()


async def ask_until(target: str, model: str, ended: asyncio.Event) -> list[str]:
    """Returns the versions that answered a client's calls, and the errors of calls that failed."""
    versions = []
    async with grpc.aio.insecure_channel(target) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        while not ended.is_set():
            try:
                versions.append((await stub.Generate(asking(model), timeout=60)).version)
            except grpc.aio.AioRpcError as error:
                versions.append(f"{error.code().name}: {error.details()}")
            await asyncio.sleep(PAUSE_SECONDS)
    return versions


async def bulk_until(target: str, model: str, ended: asyncio.Event) -> list[str]:
    async with grpc.aio.insecure_channel(target) as channel:

        async def requests() -> Any:
            while not ended.is_set():
                yield asking(model)
                await asyncio.sleep(PAUSE_SECONDS)

        stream = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateBatch(requests())
        return [answer.response.version or f"{answer.error}" async for answer in stream]


def test_replacing_a_version_under_load_drops_no_request(
    running: Running, stub: Any, repository: Path, tiny_bundle_path: Path
) -> None:
    versions = [put_version(tiny_bundle_path, repository, "swap", "2")]
    eventually(lambda: version_of(stub, "swap") == versions[0])
    num_workers = len(psutil.Process(running.process.pid).children())

    async def under_load() -> list[str]:
        ended = asyncio.Event()
        clients = [ask_until(running.target, "swap", ended) for _ in range(4)]
        clients.append(bulk_until(running.target, "swap", ended))
        asking = asyncio.gather(*clients)
        versions.append(await asyncio.to_thread(put_version, tiny_bundle_path, repository, "swap", "10"))
        await asyncio.to_thread(eventually, lambda: version_of(stub, "swap") == versions[-1])
        ended.set()
        return [version for versions_of_client in await asking for version in versions_of_client]

    answers = Counter(asyncio.run(under_load()))
    assert answers.keys() == set(versions), "every call was answered, by one of them"
    assert served(stub, "swap") == {"10": "ROLE_STABLE"}
    assert count(running, "model_loads", model="swap", outcome="served") == 2
    # The engines of the previous version have ended.
    alive = psutil.Process(running.process.pid)
    eventually(lambda: sum(child.status() != psutil.STATUS_ZOMBIE for child in alive.children()) == num_workers)
    assert num_versions(running, "swap") == 1
    shutil.rmtree(repository / "swap")
    eventually(lambda: version_of(stub, "swap") == "")


def test_a_broken_version_never_replaces_a_good_one(
    running: Running, stub: Any, repository: Path, tiny_bundle_path: Path
) -> None:
    good = put_version(tiny_bundle_path, repository, "mended", "1")
    eventually(lambda: version_of(stub, "mended") == good)
    put_version(tiny_bundle_path, repository, "mended", "2", broken=True)
    eventually(lambda: count(running, "model_loads", model="mended", outcome="refused") == 1)
    assert version_of(stub, "mended") == good
    (line,) = [line for line in running.log().splitlines() if 'message="not loaded"' in line and "mended" in line]
    assert "golden example 1" in line and "score is" in line
    # A folder that is not a version, and policies that are invalid or name versions that can't be served.
    (repository / "mended" / "notes").mkdir()
    for policy in ('stable = "3"', 'canary = "2"', "what?", "stabel = 1"):
        before = count(running, "model_loads", model="mended", outcome="refused")
        put_policy(repository, "mended", policy)
        eventually(lambda before=before: count(running, "model_loads", model="mended", outcome="refused") > before)
        assert version_of(stub, "mended") == good
    (repository / "mended" / "serving.toml").unlink()
    mended = put_version(tiny_bundle_path, repository, "mended", "2")
    eventually(lambda: version_of(stub, "mended") == mended)


def test_each_role_serves_its_requests(running: Running, stub: Any, repository: Path, tiny_bundle_path: Path) -> None:
    versions = {label: put_version(tiny_bundle_path, repository, "roles", label) for label in ("1", "2", "3")}
    put_policy(repository, "roles", 'stable = "2"\ncanary = "3"\ncanary_percent = 30\nnamed = ["1"]\n')
    eventually(lambda: served(stub, "roles") == {"2": "ROLE_STABLE", "3": "ROLE_CANARY", "1": "ROLE_NAMED"})
    for version in ("1", versions["1"]):
        assert stub.Generate(asking("roles", version=version), timeout=60).version == versions["1"]
        assert stub.GetModel(messages.GetModelRequest(model="roles", version=version), timeout=60).label == "1"
    score = messages.ScoreRequest(source_text="abc", target_text="AA", model="roles", version="3")
    assert stub.Score(score, timeout=60).version == versions["3"]
    with pytest.raises(grpc.RpcError) as caught:
        stub.Generate(asking("roles", version="9"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "version '9' of roles is not served here; choose from 1, 2, 3"

    with ThreadPoolExecutor(8) as pool:
        answers = Counter(pool.map(lambda _: version_of(stub, "roles"), range(200)))
    # The bounds are five standard deviations of a binomial distribution.
    assert answers.keys() == {versions["2"], versions["3"]} and 27 <= answers[versions["3"]] <= 93
    assert count(running, "routed", model="roles", role="canary") == answers[versions["3"]]
    assert count(running, "routed", model="roles", role="stable") == answers[versions["2"]]

    # The canary is promoted: the same engine becomes the stable one.
    loads = count(running, "model_loads", model="roles", outcome="served")
    put_policy(repository, "roles", 'stable = "3"\n')
    eventually(lambda: served(stub, "roles") == {"3": "ROLE_STABLE"})
    assert version_of(stub, "roles") == versions["3"]
    assert count(running, "model_loads", model="roles", outcome="served") == loads


def test_a_shadow_is_compared_and_its_answers_are_not_returned(
    running: Running, stub: Any, repository: Path, tiny_bundle_path: Path
) -> None:
    stable = put_version(tiny_bundle_path, repository, "shadowed", "1")
    put_version(tiny_bundle_path, repository, "shadowed", "2")
    put_version(OTHER_BUNDLE, repository, "shadowed", "3")
    for label, outcome in (("2", "same"), ("3", "different")):
        put_policy(repository, "shadowed", f'stable = "1"\nshadow = "{label}"\n')
        eventually(lambda label=label: served(stub, "shadowed").get(label) == "ROLE_SHADOW")
        sampled = asking("shadowed", decoding=messages.DecodingOptions(sampling=messages.SamplingOptions()))
        assert stub.Generate(sampled, timeout=60).version == stable, "drawn: not compared"
        assert {version_of(stub, "shadowed") for _ in range(10)} == {stable}
        labels = {"model": "shadowed", "outcome": outcome}
        eventually(lambda labels=labels: count(running, "shadow_answers", **labels) == 10)
    assert count(running, "requests", model="shadowed", method="Generate", code="OK") == 22, "of the callers"
    eventually(lambda: num_versions(running, "shadowed") == 2)  # the first shadow's engine has ended


def test_a_server_survives_a_dead_canary_and_ends_while_a_version_is_loaded(
    tiny_bundle_path: Path, tmp_path: Path
) -> None:
    for label in ("1", "2"):
        put_version(tiny_bundle_path, tmp_path, "first", label)
    put_policy(tmp_path, "first", 'canary = "2"\ncanary_percent = 50\n')
    with (
        server(str(tmp_path), "--repository-seconds", "0.1", "--max-restarts", "0") as started,
        grpc.insecure_channel(started.target) as channel,
    ):
        stub, process = seq2seq_pb2_grpc.Seq2SeqStub(channel), psutil.Process(started.process.pid)
        stable, canary = sorted(process.children(), key=lambda child: child.create_time())
        canary.kill()
        eventually(lambda: served(stub, "first") == {"1": "ROLE_STABLE"})
        assert len({version_of(stub, "first") for _ in range(10)}) == 1
        assert count(started, "model_loads", model="first", outcome="refused") == 1

        put_version(tiny_bundle_path, tmp_path, "first", "3")
        eventually(lambda: any(child.pid not in (stable.pid, canary.pid) for child in process.children()))
        workers = process.children()
        assert stub.Generate(asking("first"), timeout=60).hypotheses
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(60) == 0
        assert "Traceback" not in started.log()
        eventually(lambda: not any(worker.is_running() for worker in workers))
