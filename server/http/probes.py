"""What is served over HTTP: the metrics, and whether the server lives and serves."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from attendant.server.metrics import Form, Pages


def http_app(registry: CollectorRegistry, is_serving: Callable[[], bool]) -> Starlette:
    """The ASGI application.

    GET /metrics    the registry, as Prometheus' text or as OpenMetrics, gzip if wanted
    GET /healthz    200 as long as the event loop turns
    GET /readyz     200 while health is SERVING, else 503
    """
    pages = Pages(registry)

    async def metrics(request: Request) -> Response:
        form = Form.asked_for(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
        return Response(await pages.page(form), headers=form.headers)

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if is_serving() else PlainTextResponse("not serving\n", 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)])
    app.router.redirect_slashes = False  # to a host that the request names
    return app
