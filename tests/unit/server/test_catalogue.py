"""Tests of repositories' folders and policies, and of leases: an engine ends after its last request."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from attendant.runtime.errors import UserError
from attendant.server.call import RequestLog
from attendant.server.catalogue import Catalogue, Retirement, Routes, ServedModel
from attendant.server.engine.client import EngineClient
from attendant.server.errors import Draining, LoadRefused, NotReady, UnknownModel
from attendant.server.lifecycle import ENGINE_DIED, Lifecycle
from attendant.server.metrics import Metrics
from attendant.server.repository import Policy, Reconciler, is_repository, look_into, read_policy
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import PATIENCE_SECONDS, FakeCall, eventually, fake_bundle, fake_stepper, serve_fake
from tests.unit.server.test_metrics import REFERENCE


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_versions_are_in_the_order_of_their_numbers_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    for label in ("10", "9", "1.9", "1.10", "2026-11-22", "01", ".11", "v12", "12.", "backup"):
        put(tmp_path / "en-fr" / label / "manifest.json")
    put(tmp_path / "en-fr" / "13")
    put(tmp_path / ".hidden" / "1" / "manifest.json")
    put(tmp_path / "Upper" / "1" / "manifest.json")
    assert {name: list(folder.versions) for name, folder in look_into(tmp_path).items()} == {
        "en-fr": ["01", "1.9", "1.10", "9", "10", "2026-11-22"]
    }


def test_a_version_changes_with_any_of_its_files(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "manifest.json")
    put(tmp_path / "m" / "1" / "fp32" / "encoder.onnx")
    before = look_into(tmp_path)
    assert look_into(tmp_path) == before
    os.utime(tmp_path / "m" / "1" / "fp32" / "encoder.onnx", ns=(1, 1))
    changed = look_into(tmp_path)
    assert changed != before
    put(tmp_path / "m" / "serving.toml")
    assert look_into(tmp_path) != changed


def test_repositories_are_recognized_by_their_versions(tmp_path: Path) -> None:
    put(tmp_path / "models" / "m" / "1" / "manifest.json")
    put(tmp_path / "bundle" / "manifest.json")
    put(tmp_path / "bundle" / "fp32" / "1" / "x")
    put(tmp_path / "broken" / "fp32" / "encoder.onnx")
    repositories = {path.name for path in tmp_path.iterdir() if is_repository(path)}
    assert repositories == {"models"} and not is_repository(tmp_path / "nowhere")
    assert not is_repository(tmp_path / ("x" * 300)), "a name that the system refuses"
    with pytest.raises(UserError, match="can't be read: No such file"):
        look_into(tmp_path / "nowhere")


def test_the_stable_version_follows_the_policy(tmp_path: Path) -> None:
    put(tmp_path / "serving.toml", 'canary = "4"\ncanary_percent = 2.5\nshadow = "3"\nnamed = ["1"]')
    policy = read_policy(tmp_path / "serving.toml")
    assert policy.stable_choices(["1", "2", "3", "4"]) == ["2", "1"]
    assert read_policy(tmp_path / "nowhere").stable_choices(["1", "2"]) == ["2", "1"]
    assert Policy(stable="1").stable_choices(["1", "2"]) == ["1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stabel = '1'", "stabel is no field, must be one of stable, canary, "),
        ("stable = 1", 'stable is 1, must be a version in quotes, e.g. "3"'),
        ("named = '1'", "named is '1', must be a list"),
        ("named = [1]", "named.0 is 1, must be a version in quotes"),
        ("canary = '2'", ": canary_percent is unset, must be 0 to 100"),
        ("canary = '2'\ncanary_percent = 101", "canary_percent is 101, must be a number from 0 to 100"),
        ("canary_percent = [5]", "canary_percent is [5], must be a number from 0 to 100"),
        ("canary", "Expected '='"),
        (f"named = {'[' * 5000}", ""),
        ("stable = '\udcff'", "'utf-8' codec can't decode"),
    ],
)
def test_an_invalid_policy_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "serving.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as caught:
        read_policy(path)
    assert str(caught.value).startswith(f"{path}: ") and reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_policy_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "serving.toml")
    with pytest.raises(UserError, match=r"serving\.toml: a FIFO$"):
        read_policy(tmp_path / "serving.toml")
    (tmp_path / "policy").write_text('stable = "7"')
    (tmp_path / "linked").symlink_to("policy")
    assert read_policy(tmp_path / "linked").stable == "7"
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("dangling", "loop"):  # which is not the policy of a model without one
        with pytest.raises(UserError, match=f"{name} can't be read: "):
            read_policy(tmp_path / name)
    put(tmp_path / "marked", "\ufeff" + 'stable = "7"')
    assert read_policy(tmp_path / "marked").stable == "7"


def reconciler_of(*repositories: Path, start: Any = None) -> tuple[Reconciler, Catalogue, Metrics]:
    metrics, catalogue = Metrics(CollectorRegistry()), Catalogue()
    lifecycle = Lifecycle(catalogue, metrics)
    return Reconciler(repositories, catalogue, metrics, start or Mock(), lifecycle), catalogue, metrics


async def test_a_name_in_two_repositories_stops_no_other_model(tmp_path: Path) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise UserError("this test has no bundles")

    repositories = [tmp_path / "one", tmp_path / "other"]
    for path in ("one/a/1", "other/b/1"):
        (tmp_path / path).mkdir(parents=True)
    reconciler, catalogue, _ = reconciler_of(*repositories, start=never)
    assert await reconciler.look([]) == 2
    for path in ("other/a/1", "other/c/1"):
        (tmp_path / path).mkdir(parents=True)
    await reconciler.follow(at_once=True)  # as on SIGHUP; otherwise a change is applied at the second poll
    assert {(entry.name, entry.label) for entry in reconciler.index()} == {("a", "1"), ("b", "1"), ("c", "1")}
    catalogue.open()
    with pytest.raises(LoadRefused, match=r"two models are named a, \S+/one/a and \S+/other/a: "):
        await reconciler.load("a")


async def test_a_repository_that_has_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reconciler, _, _ = reconciler_of(tmp_path / "models")

    async def num_warnings(**options: bool) -> int:
        caplog.clear()
        for _ in range(3):
            await reconciler.follow(**options)
        return caplog.messages.count("the repositories are not followed now")

    assert (await num_warnings(), await num_warnings()) == (1, 0)
    assert await num_warnings(at_once=True) == 3, "an administrator has asked"
    (tmp_path / "models").mkdir()
    assert await num_warnings() == 0
    (tmp_path / "models").rmdir()
    assert await num_warnings() == 1


async def test_a_folder_that_can_not_be_read_stops_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a/1", "b/1/fp32", "c/1", "c/2", "d/1"):
        (tmp_path / path).mkdir(parents=True)
    list_folder, system_stat = Path.iterdir, Path.stat

    def iterdir(path: Path) -> Any:
        if path.name in ("a", "fp32", "d"):
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    def stat(path: Path, **options: bool) -> os.stat_result:
        if path in (tmp_path / "d", tmp_path / "c" / "2"):  # links into folders that can't be searched, stale mounts
            raise OSError(116, "Stale file handle")
        return system_stat(path, **options)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(Path, "stat", stat)
    assert is_repository(tmp_path)
    folders = look_into(tmp_path)
    assert {name: list(folder.versions) for name, folder in folders.items()} == {
        "a": [],
        "b": ["1"],
        "c": ["1", "2"],
        "d": [],
    }
    why = f"can't be read: Permission denied: give user {os.geteuid()} access to it and to its folders"
    assert [folder.unreadable for folder in folders.values()] == [
        f"{tmp_path / 'a'} {why}",
        "",
        "",
        f"{tmp_path / 'd'} {why}",
    ]


async def test_an_only_model_that_can_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "1").mkdir(parents=True)
    list_folder = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "a":
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert is_repository(tmp_path)
    reconciler, _, _ = reconciler_of(tmp_path)
    await reconciler.look([])
    with pytest.raises(UserError, match=r"/a can't be read: Permission denied: give user \d+ access"):
        await reconciler.open()


async def test_why_a_version_is_refused_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise UserError("it is refused:", ["a is missing", "b is missing"])

    (tmp_path / "a" / "1").mkdir(parents=True)
    reconciler, _, _ = reconciler_of(tmp_path, start=start)
    await reconciler.look([])
    with pytest.raises(UserError) as refusal:
        await reconciler.open()
    line = "it is refused: - a is missing - b is missing"
    assert refusal.value.differences == (f"a/1: {line}",) and caplog.records[0].reason == line


async def test_a_served_model_stays_while_its_folder_can_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(path: Path, label: str, **_: Any) -> ServedModel:
        return replace(version(metrics), label=label)

    reconciler, catalogue, metrics = reconciler_of(tmp_path, start=start)
    (tmp_path / "fake" / "1").mkdir(parents=True)
    await reconciler.look([])
    await reconciler.open()
    catalogue.open()
    before = catalogue.routes("fake").stable
    caplog.clear()
    monkeypatch.setattr("attendant.server.repository._versions", Mock(side_effect=PermissionError(13, "Denied")))
    await reconciler.follow(at_once=True)
    assert catalogue.routes("fake").stable is before
    (record,) = caplog.records
    assert record.message == "not loaded" and f"{tmp_path / 'fake'} can't be read: Denied" in record.reason


async def test_a_model_that_is_removed_leaves_no_alarm_and_shares_no_threads(tmp_path: Path) -> None:
    metrics, catalogue, shared = Metrics(CollectorRegistry()), Catalogue(), list[int]()

    async def start(path: Path, label: str, *, name: str, num_models: int, **_: Any) -> ServedModel:
        shared.append(num_models)
        return replace(serve_fake(fake_stepper(), metrics, fake_bundle(name)), label=label)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model": "b", **labels})

    lifecycle = Lifecycle(catalogue, metrics)
    reconciler = Reconciler([tmp_path], catalogue, metrics, start, lifecycle)
    (tmp_path / "a" / "1").mkdir(parents=True)
    (tmp_path / "notes").mkdir()  # no model
    assert await reconciler.look([]) == 1
    await reconciler.open()
    catalogue.open()
    await lifecycle.set_open(True)
    for name in ("b", "c"):
        (tmp_path / name / "1").mkdir(parents=True)
        await reconciler.load(name)
    assert shared == [1, 2, 3], "each load counts those before it, and itself"
    catalogue.routes("b").stable.metrics.watch_drift(REFERENCE)
    assert value("attendant_ready") == 1 and value("attendant_drift_index", signal="source_tokens") is not None
    await reconciler.unload("b")
    assert value("attendant_ready") is value("attendant_drift_index", signal="source_tokens") is None
    lifecycle.engine_died("a")
    assert lifecycle.is_serving, "c is served"
    await reconciler.unload("c")
    await asyncio.wait_for(lifecycle.ending(), PATIENCE_SECONDS)
    assert lifecycle.exit_status == ENGINE_DIED


async def test_a_version_whose_engines_fail_before_it_is_served_has_failed(tmp_path: Path) -> None:
    metrics, catalogue, deaths = Metrics(CollectorRegistry()), Catalogue(), list[Callable[[], None]]()

    async def start(path: Path, label: str, *, on_death: Callable[[], None], **_: Any) -> ServedModel:
        deaths.append(on_death)
        if label == "2":  # the canary takes a while to load
            deaths[0]()
        return replace(version(metrics), label=label)

    lifecycle = Lifecycle(catalogue, metrics)
    reconciler = Reconciler([tmp_path], catalogue, metrics, start, lifecycle)
    for label in ("1", "2"):
        (tmp_path / "fake" / label).mkdir(parents=True)
    put(tmp_path / "fake" / "serving.toml", 'stable = "1"\ncanary = "2"\ncanary_percent = 5')
    catalogue.open()
    await lifecycle.set_open(True)
    await reconciler.load("fake")
    await asyncio.wait_for(lifecycle.ending(), 1)
    assert lifecycle.exit_status == ENGINE_DIED


async def test_a_load_is_refused_before_the_server_serves_and_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a" / "1").mkdir(parents=True)
    loading = asyncio.Event()

    async def start(*_: Any, **__: Any) -> Any:
        loading.set()
        await asyncio.Event().wait()

    reconciler, catalogue, _ = reconciler_of(tmp_path, start=start)
    for change in (reconciler.load, reconciler.unload):
        with pytest.raises(NotReady):
            await change("a")
    catalogue.open()
    for change in (reconciler.load, reconciler.unload):
        with pytest.raises(UnknownModel, match="'alone' is in no repository"):  # it may be served from a bundle
            await change("alone")
    with reconciler.following(60):
        load = asyncio.create_task(reconciler.load("a"))
        await loading.wait()
    with pytest.raises(Draining):
        await load


async def test_a_look_at_once_ends_with_the_server(tmp_path: Path) -> None:
    """On SIGHUP, just before SIGTERM: a version that was loaded during the drain would answer, and then be killed."""
    (tmp_path / "a").mkdir()
    loading = asyncio.Event()

    async def start(*_: Any, **__: Any) -> Any:
        loading.set()
        await asyncio.Event().wait()

    reconciler, catalogue, _ = reconciler_of(tmp_path, start=start)
    catalogue.open()
    with reconciler.following(60):
        (tmp_path / "a" / "1").mkdir()
        look = asyncio.create_task(reconciler.follow_now())
        await asyncio.wait_for(loading.wait(), PATIENCE_SECONDS)
    await asyncio.wait_for(asyncio.wait([look]), PATIENCE_SECONDS)
    loading.clear()
    catalogue.closing.set()
    await asyncio.wait_for(reconciler.follow_now(), PATIENCE_SECONDS)
    assert not loading.is_set()


async def test_a_model_without_a_stable_version_is_not_loaded(tmp_path: Path) -> None:
    reconciler, catalogue, _ = reconciler_of(tmp_path)
    catalogue.open()
    (tmp_path / "fake" / "v1").mkdir(parents=True)
    with pytest.raises(LoadRefused, match="no stable version: a folder that is named by numbers"):
        await reconciler.load("fake")
    for label, why in (("v1", "must be numbers"), ("2", "no folder")):
        put(tmp_path / "fake" / "serving.toml", f'stable = "{label}"')
        with pytest.raises(LoadRefused, match=f"{why}.*/fake/{label}$"):
            await reconciler.load("fake")
    (tmp_path / "fake" / "1").mkdir()
    put(tmp_path / "fake" / "serving.toml", 'canary = "1"\ncanary_percent = 5')
    with pytest.raises(LoadRefused, match="neither canary nor shadow"):
        await reconciler.load("fake")
    assert reconciler.index() and not catalogue.all()


async def test_a_version_of_several_roles_is_loaded_once_and_none_without_a_stable_one(tmp_path: Path) -> None:
    for label in ("1", "2", "3"):
        (tmp_path / "fake" / label).mkdir(parents=True)
    metrics, catalogue, loads = Metrics(CollectorRegistry()), Catalogue(), list[str]()
    catalogue.open()

    async def start(path: Path, label: str, **_: Any) -> ServedModel:
        if label == "3":
            raise UserError("broken")
        loads.append(label)
        return replace(version(metrics), label=label)

    reconciler = Reconciler([tmp_path], catalogue, metrics, start, Lifecycle(catalogue, metrics))
    put(tmp_path / "fake" / "serving.toml", 'stable = "3"\nnamed = ["1"]')
    await reconciler.follow(at_once=True)
    await reconciler.follow(at_once=True)
    assert not loads and not catalogue.all()
    assert metrics.registry.get_sample_value("attendant_ready", {"model": "fake"}) == 0, "which alerts"
    put(tmp_path / "fake" / "serving.toml", 'stable = "none')
    await reconciler.follow(at_once=True)
    assert {entry.reason for entry in reconciler.index()} == {"refused: the server's log has the reason"}
    roles = 'canary = "1"\ncanary_percent = 5\nshadow = "1"\nnamed = ["2", "1", "1"]'
    put(tmp_path / "fake" / "serving.toml", roles)
    await reconciler.follow(at_once=True)
    assert loads == ["2", "1"] and not list(reconciler.ending)
    assert [model.label for model in catalogue.routes("fake").all()] == ["2", "1"]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[EngineClient]:
    engines: list[EngineClient] = []
    monkeypatch.setattr(EngineClient, "stop", lambda engine: engines.append(engine))  # binds as a method
    return engines


def version(metrics: Metrics) -> ServedModel:
    return serve_fake(fake_stepper(), metrics, fake_bundle())


async def test_an_engine_ends_after_the_last_lease(metrics: Metrics, stopped: list[EngineClient]) -> None:
    catalogue, retirement, old, new = Catalogue(), Retirement(), version(metrics), version(metrics)
    catalogue.put(Routes(stable=old))
    catalogue.open()
    leases = [catalogue.lease("fake") for _ in range(2)]
    catalogue.put(Routes(stable=new))
    retirement.add(old)
    for lease in leases:
        assert lease is old
        await asyncio.sleep(0.01)
        assert not stopped and list(retirement) == [old.runner]
        await asyncio.to_thread(lease.leases.release)
    await eventually(lambda: stopped == [old.runner])
    assert not list(retirement) and not old.leases.acquire() and catalogue.lease("fake") is new


async def test_an_unused_version_ends_at_once(metrics: Metrics, stopped: list[EngineClient]) -> None:
    retirement, unused = Retirement(), version(metrics)
    retirement.add(unused)
    await eventually(lambda: stopped == [unused.runner])


async def test_a_request_between_two_routes_gets_the_new_version(metrics: Metrics, stopped: list[EngineClient]) -> None:
    """The request has read the old routes when their version ends."""
    old, new = version(metrics), version(metrics)
    await old.leases.retire()

    class Changing(Catalogue):
        def routes(self, name: str) -> Routes:
            routes = super().routes(name)
            self.put(Routes(stable=new))
            return routes

    catalogue: Any = Changing()
    catalogue.put(Routes(stable=old))
    catalogue.open()
    assert catalogue.lease("fake") is new


@pytest.mark.parametrize("name", ["", "fake"])
async def test_a_request_counts_for_its_model_if_that_is_removed_meanwhile(metrics: Metrics, name: str) -> None:
    catalogue = Catalogue()
    catalogue.put(Routes(stable=version(metrics)))
    catalogue.open()
    with RequestLog(catalogue, metrics).begin("Score", FakeCall(), messages.ScoreRequest(model=name)) as record:
        record.lease(name, "")
        catalogue.drop("fake")
    labels = {"model": "fake", "method": "Score", "code": "OK"}
    assert metrics.registry.get_sample_value("attendant_requests_total", labels) == 1
