"""Leases: a version's engine ends after its last request, and no request gets a version that has ended."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attendant.server.catalogue.models import Catalogue, Retirement, Routes, ServedModel
from attendant.server.engine.client import EngineClient
from attendant.server.metrics import Metrics
from tests.serving import eventually, fake_bundle, fake_stepper, serve_fake


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[EngineClient]:
    engines: list[EngineClient] = []
    monkeypatch.setattr(EngineClient, "stop", lambda engine: engines.append(engine))  # a method
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
    """It has read the old routes when the version ends."""
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
