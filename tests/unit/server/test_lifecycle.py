"""Tests of health checks over a server's life: liveness, startup and readiness differ."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import cast

import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry

from attendant.server.catalogue import Catalogue, Routes, ServedModel
from attendant.server.lifecycle import ENGINE_DIED, LIVENESS, SERVING, STARTUP, Lifecycle
from attendant.server.metrics import Metrics
from attendant.server.polling import checking
from tests.serving import PATIENCE_SECONDS, eventually


def lifecycle_of(*models: str, metrics: Metrics | None = None) -> Lifecycle:
    """Returns the lifecycle of a server that has loaded these models."""
    catalogue = Catalogue()
    for name in models:
        catalogue.put(Routes(stable=cast(ServedModel, SimpleNamespace(name=name))))
    catalogue.open()
    return Lifecycle(catalogue, metrics or Metrics(CollectorRegistry()))


async def health_of(lifecycle: Lifecycle) -> tuple[bool, bool, bool]:
    """Returns whether the server is alive, has started, and is ready."""
    requests = [health_pb2.HealthCheckRequest(service=name) for name in (LIVENESS, STARTUP, "")]
    answers = [await lifecycle.health.Check(request, None) for request in requests]
    alive, started, ready = (answer.status == SERVING for answer in answers)
    return alive, started, ready


async def goes_on(lifecycle: Lifecycle) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lifecycle.ending(), 0.01)


async def test_liveness_startup_and_readiness_are_separate() -> None:
    lifecycle = lifecycle_of("model")
    await lifecycle.set_open(False)
    assert await health_of(lifecycle) == (True, False, False), "bundles are being loaded"
    await lifecycle.set_open(True)
    assert await health_of(lifecycle) == (True, True, True)
    lifecycle.engine_available("model", False)
    await asyncio.sleep(0)
    assert await health_of(lifecycle) == (True, True, False), "an engine is being started again"
    lifecycle.engine_available("model", True)
    await asyncio.sleep(0)
    await lifecycle.set_open(False)
    assert await health_of(lifecycle) == (True, True, False), "it drains: a supervisor should not kill it"


async def test_a_failure_of_the_last_model_ends_the_server() -> None:
    metrics = Metrics(CollectorRegistry())
    lifecycle = lifecycle_of("broken", "sound", metrics=metrics)
    await lifecycle.set_open(True)
    lifecycle.engine_died("broken")
    await asyncio.sleep(0)
    ready = [metrics.registry.get_sample_value("attendant_ready", {"model": name}) for name in ("broken", "sound")]
    assert ready == [0, 1]
    assert await health_of(lifecycle) == (True, True, True), "the other one is served"
    await goes_on(lifecycle)
    lifecycle.engine_died("sound")
    await lifecycle.ending()
    assert lifecycle.exit_status == ENGINE_DIED


async def test_a_model_that_fails_while_others_are_loaded_does_not_end_the_server() -> None:
    catalogue = Catalogue()
    lifecycle = Lifecycle(catalogue, Metrics(CollectorRegistry()))
    lifecycle.engine_died("broken")
    for name in ("broken", "sound"):
        catalogue.put(Routes(stable=cast(ServedModel, SimpleNamespace(name=name))))
    catalogue.open()
    await lifecycle.set_open(True)
    assert await health_of(lifecycle) == (True, True, True)
    await goes_on(lifecycle)
    lifecycle.engine_died("sound")
    await lifecycle.ending()


async def test_a_server_without_models_is_not_ready() -> None:
    """The last model of a repository may have been removed."""
    lifecycle = lifecycle_of()
    await lifecycle.set_open(True)
    assert await health_of(lifecycle) == (True, True, False)


async def test_a_check_that_fails_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    num_checks = 0

    async def check() -> None:
        nonlocal num_checks
        num_checks += 1
        raise OSError("too many open files")

    with checking(0.001, check):
        await eventually(lambda: num_checks > 2)
    assert len(caplog.records) == num_checks


async def test_a_hangup_reloads_and_ends_nothing() -> None:
    lifecycle, reloaded = lifecycle_of(), asyncio.Event()

    async def reload() -> None:
        reloaded.set()

    lifecycle.install_signal_handlers(reload)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(reloaded.wait(), PATIENCE_SECONDS)
    await goes_on(lifecycle)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
