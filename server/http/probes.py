"""The pages that every HTTP port has: metrics, and whether the server lives and serves."""

import asyncio
import gzip
import time
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

RENDERED_SHARE = 0.1
"""Largest share of the event loop's time for metrics, however many clients request them, and however often."""

OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_END = b"# EOF\n"


class Form(NamedTuple):
    """The forms of a page: OpenMetrics or Prometheus' text, compressed or not."""

    is_open_metrics: bool
    is_gzip: bool

    @classmethod
    def of(cls, accept: str, accept_encoding: str) -> "Form":
        """Chooses a form by a request's headers, nothing of which is repeated in the answer."""
        encodings = {part.split(";")[0].strip().lower() for part in accept_encoding.split(",")}
        return cls(OPEN_METRICS in accept, "gzip" in encodings)


class _OneFamily(NamedTuple):
    """A family of metrics in the place of a registry."""

    family: Metric

    def collect(self) -> list[Metric]:
        return [self.family]


class MetricsPages:
    """Renders the registry: one page at a time, family by family, so that calls are answered in between.

    All who wait for a form get the same page. It is never older than their requests.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._awaited: dict[Form, asyncio.Task[Response]] = {}
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def page(self, form: Form) -> Response:
        if form not in self._awaited:
            self._awaited[form] = asyncio.create_task(self._render_in_turn(form))
        # Shielded, since others may wait for the same page when a request is cancelled.
        return await asyncio.shield(self._awaited[form])

    async def _render_in_turn(self, form: Form) -> Response:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            del self._awaited[form]
            encode, content_type = choose_encoder(f"{OPEN_METRICS};version=1.0.0" if form.is_open_metrics else "")
            pieces, seconds, families = [], 0.0, iter(self._registry.collect())
            while True:
                began = time.monotonic()
                family = next(families, None)
                if family is None:
                    break
                pieces.append(encode(_OneFamily(family)).removesuffix(OPEN_METRICS_END))
                seconds += time.monotonic() - began
                await asyncio.sleep(0)
            page = b"".join(pieces) + (OPEN_METRICS_END if form.is_open_metrics else b"")
            headers = {"Content-Type": content_type}
            if form.is_gzip:
                began = time.monotonic()
                page = await asyncio.to_thread(gzip.compress, page)
                headers["Content-Encoding"] = "gzip"
                seconds += time.monotonic() - began
            self._not_before = time.monotonic() + seconds * (1 / RENDERED_SHARE - 1)
            return Response(page, headers=headers)


def http_app(registry: CollectorRegistry, is_serving: Callable[[], bool]) -> Starlette:
    """Returns the ASGI application.

    GET /metrics    the registry, as Prometheus' text or as OpenMetrics, gzip if wanted
    GET /healthz    200 as long as the event loop turns
    GET /readyz     200 while health is SERVING, else 503
    """
    pages = MetricsPages(registry)

    async def metrics(request: Request) -> Response:
        headers = request.headers
        return await pages.page(Form.of(headers.get("accept", ""), headers.get("accept-encoding", "")))

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if is_serving() else PlainTextResponse("not serving\n", 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)])
    app.router.redirect_slashes = False  # it would redirect to a host that the request names
    return app
