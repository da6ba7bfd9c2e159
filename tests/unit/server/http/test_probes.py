"""Tests of /metrics and the health pages: content negotiation, and the cost of many scrapers."""

import asyncio
import gzip
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from attendant.server.http.app import MetricsPages, http_app

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("a", "Of a.", ["x"], registry=registry).labels('"\n').inc()
    Histogram("b_seconds", "Of b.", registry=registry).observe(0.1)
    return registry


async def get(app: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Calls the app without a socket; returns status, headers and body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    raw_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": raw_headers,
        "root_path": "",
    }
    await app(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("accept_encoding", ["", "br;q=1.0, GZIP;q=0.5"])
@pytest.mark.parametrize("accept", ["", PROMETHEUS, "text/plain;version=1.0.0;escaping=dots"])
async def test_a_metrics_page_equals_the_librarys(
    registry: CollectorRegistry, accept: str, accept_encoding: str
) -> None:
    encode, content_type = choose_encoder(OPEN_METRICS if "openmetrics" in accept else "")
    app = http_app(registry, lambda: True)
    status, headers, body = await get(app, "/metrics", accept=accept, accept_encoding=accept_encoding)
    assert (status, headers["content-type"]) == (200, content_type)
    assert headers.get("content-encoding", "") == ("gzip" if accept_encoding else "")
    assert (gzip.decompress(body) if accept_encoding else body) == encode(registry)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["x", "9" * 1000])
async def test_invalid_accept_headers_get_a_valid_content_type(registry: CollectorRegistry, version: str) -> None:
    app = http_app(registry, lambda: True)
    for media_type in ("application/openmetrics-text", "text/plain"):
        status, headers, _ = await get(app, "/metrics", accept=f"{media_type};version={version};escaping={version}")
        assert status == 200
        assert headers["content-type"] in {PLAIN, choose_encoder(OPEN_METRICS)[1]}


async def test_health_and_readiness_follow_the_servers_state(registry: CollectorRegistry) -> None:
    serving = False
    app = http_app(registry, lambda: serving)
    assert (await get(app, "/healthz"))[0] == 200
    assert (await get(app, "/readyz"))[::2] == (503, b"not serving\n")
    serving = True
    assert (await get(app, "/readyz"))[0] == 200
    assert [(await get(app, path))[0] for path in ("/", "/metrics/", "//x/metrics")] == [404, 404, 404]
    assert [(await get(app, "/metrics", method))[0] for method in ("POST", "DELETE")] == [405, 405]


class Slow:
    """A collector of 10 metric families, each of which takes 1 ms or more."""

    def __init__(self) -> None:
        self.num_pages = 0

    def collect(self) -> Iterator[Metric]:
        self.num_pages += 1
        for number in range(10):
            time.sleep(0.001)
            yield GaugeMetricFamily(f"slow_{number}", "Of slow.", value=self.num_pages)

    def describe(self) -> Iterator[Metric]:
        return iter(())


@pytest.fixture
def slow() -> tuple[Slow, MetricsPages]:
    registry, collector = CollectorRegistry(), Slow()
    registry.register(collector)  # type: ignore[arg-type]
    return collector, MetricsPages(registry)


async def test_all_waiting_callers_get_the_same_page(slow: tuple[Slow, MetricsPages]) -> None:
    collector, pages = slow
    page = partial(pages.page, is_open_metrics=False, is_gzip=False)
    tasks = [asyncio.create_task(page()) for _ in range(100)]
    tasks[0].cancel()
    responses = await asyncio.gather(*tasks[1:])
    assert collector.num_pages == 1 and len({response.body for response in responses}) == 1
    assert b" 2.0" in (await page()).body, "never older than the question"


async def test_calls_are_answered_between_families_and_pages(slow: tuple[Slow, MetricsPages]) -> None:
    """Scrapers request pages in a loop. Other tasks run between families, and rendering pauses after each page."""
    collector, pages = slow

    async def scrape(is_open_metrics: bool, is_gzip: bool) -> None:
        while True:
            await pages.page(is_open_metrics=is_open_metrics, is_gzip=is_gzip)

    forms = [(is_open_metrics, is_gzip) for is_open_metrics in (False, True) for is_gzip in (False, True)]
    scraping = [asyncio.create_task(scrape(*form)) for form in forms for _ in range(10)]
    turns, began = 0, time.monotonic()
    while collector.num_pages < 6:
        turns += 1
        await asyncio.sleep(0.001)
    # Each of five pages took 10 ms or more, and was followed by a pause nine times as long.
    assert time.monotonic() - began >= 5 * 0.1 and turns >= 50
    for task in scraping:
        task.cancel()
    await asyncio.gather(*scraping, return_exceptions=True)
