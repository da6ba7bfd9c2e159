"""The application of the HTTP port: metrics and probes, the API, and the playground."""

import asyncio
import gzip
import ipaddress
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from attendant.runtime.errors import Violation, shortened
from attendant.server.auth import Gate, Shares, is_loopback
from attendant.server.call import REQUEST_ID_HEADER, RequestLog, Rpc
from attendant.server.errors import AttendantError, InvalidArgument
from attendant.server.http.bodies import Body, HttpError, read_body
from attendant.server.http.endpoints import (
    TIMEOUT_HEADER,
    Endpoint,
    HttpCall,
    MakeRequest,
    Problem,
    StreamEndpoint,
    problem_response,
)

RENDERED_SHARE = 0.1
"""Largest share of the event loop's time for metrics, however many clients request them, and however often."""

OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_END = b"# EOF\n"


class _OneFamily(NamedTuple):
    """A registry of a single family of metrics."""

    family: Metric

    def collect(self) -> list[Metric]:
        return [self.family]


class MetricsPages:
    """Renders the registry: one page at a time, family by family, so that calls are answered in between.

    All requests that wait for a form get the same page, which is rendered after they came.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._awaited: dict[tuple[bool, bool], asyncio.Task[Response]] = {}
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def page(self, *, is_open_metrics: bool, is_gzip: bool) -> Response:
        """Returns a page as OpenMetrics or as Prometheus' text, compressed or not."""
        form = is_open_metrics, is_gzip
        if form not in self._awaited:
            self._awaited[form] = asyncio.create_task(self._render_in_turn(*form))
        # Shielded, since others may wait for the same page when a request is cancelled.
        return await asyncio.shield(self._awaited[form])

    async def _render_in_turn(self, is_open_metrics: bool, is_gzip: bool) -> Response:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            del self._awaited[is_open_metrics, is_gzip]
            encode, content_type = choose_encoder(f"{OPEN_METRICS};version=1.0.0" if is_open_metrics else "")
            pieces, seconds, families = [], 0.0, iter(self._registry.collect())
            while True:
                began = time.monotonic()
                family = next(families, None)
                if family is None:
                    break
                pieces.append(encode(_OneFamily(family)).removesuffix(OPEN_METRICS_END))
                seconds += time.monotonic() - began
                await asyncio.sleep(0)
            page = b"".join(pieces) + (OPEN_METRICS_END if is_open_metrics else b"")
            headers = {"Content-Type": content_type}
            if is_gzip:
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
        codings = request.headers.get("accept-encoding", "").lower().split(",")
        is_gzip = any(coding.partition(";")[0].strip() == "gzip" for coding in codings)
        return await pages.page(is_open_metrics=OPEN_METRICS in request.headers.get("accept", ""), is_gzip=is_gzip)

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if is_serving() else PlainTextResponse("not serving\n", 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)])
    app.router.redirect_slashes = False  # it would redirect to a host that the request names
    return app


MAX_CALLS: Final = 128
"""Limit of the calls at once. There may be twice as many connections, so metrics and probes are always answered."""

STREAM: Final = "stream"  # The query parameter that requests server-sent events.
CODES: Final = {HTTPStatus.NOT_FOUND: "NOT_FOUND", HTTPStatus.METHOD_NOT_ALLOWED: "UNIMPLEMENTED"}
"""The codes of requests that Starlette refuses."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path of the API.

    Attributes:
        path: in OpenAPI's notation; its parameters are fields of the method's request.
        streaming: the method that answers if the query is `stream=1`.
    """

    verb: str
    path: str
    method: str
    streaming: str | None = None


ROUTES: Final = (
    ApiRoute("POST", "/v1/generate", "Generate", streaming="GenerateStream"),
    ApiRoute("POST", "/v1/generate_many", "GenerateMany"),
    ApiRoute("POST", "/v1/score", "Score"),
    ApiRoute("GET", "/v1/models", "ListModels"),
    ApiRoute("GET", "/v1/models/{model}", "GetModel"),
)


def path_parameters(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def query_parameters(route: ApiRoute, request_class: type[Message]) -> list[str]:
    """Returns the names that a route's query may have: the other fields of a GET's request, or `stream`."""
    if route.verb == "GET":
        return [name for name in request_class.DESCRIPTOR.fields_by_name if name not in path_parameters(route.path)]
    return [] if route.streaming is None else [STREAM]


class HttpApi:
    """The paths of an application whose requests are calls of the table's methods."""

    def __init__(self, app: Starlette, gate: Gate, *, origins: Sequence[str]) -> None:
        """Adds the handling of unknown paths. `origins`: pages of these origins may read answers in a browser."""
        self._app = app
        self._gate = gate
        self._log = gate.log
        self._calls = Shares(MAX_CALLS)
        self._problems: dict[str, Problem] = {}
        if origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=("GET", "POST"),
                allow_headers=("authorization", "content-encoding", "content-type", TIMEOUT_HEADER, REQUEST_ID_HEADER),
                expose_headers=("retry-after",),
            )
        app.add_exception_handler(HTTPException, self._refuse)

    def add_service(self, rpcs: Mapping[str, Rpc]) -> None:
        for route in ROUTES:
            rpc = rpcs[route.method]
            make_request = partial(_request, route, query_parameters(route, rpc.request_class), rpc.request_class)
            answer: ASGIApp = self.endpoint(Endpoint, rpc, make_request)
            if route.streaming is not None:
                answer = _Either(answer, self.endpoint(StreamEndpoint, rpcs[route.streaming], make_request), self._log)
            self.add(route.verb, route.path, answer)

    def add(self, verb: str, path: str, answer: ASGIApp) -> None:
        self._app.router.routes.append(Route(path, answer, methods=[verb]))

    def endpoint(self, kind: type[Endpoint], rpc: Rpc, make_request: MakeRequest) -> Endpoint:
        return kind(rpc, self._gate, self._calls, make_request)

    def set_problem(self, prefix: str, problem: Problem) -> None:
        """Sets the form of the errors of unknown paths that begin with a prefix."""
        self._problems[prefix] = problem

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "the handler is for this class"
        status = HTTPStatus(error.status_code)
        path = request.url.path
        message = f"{request.method} {path[:100]!r}: {status.description}; /openapi.json lists the paths"
        problem = next(
            (own for prefix, own in self._problems.items() if f"{path}/".startswith(f"{prefix}/")), problem_response
        )
        return refusal(request.scope, HttpError(status, CODES[status], message, error.headers), self._log, problem)


def add_pages(app: Starlette, *, has_tokens: bool, has_inference: bool) -> None:
    """Adds the OpenAPI document, and the playground: one page with its style and its program, all from memory."""
    folder = files("attendant.server.http")
    document = json.loads((folder / "openapi.json").read_text(encoding="utf-8"))
    if has_tokens:
        document["security"] = [{"token": []}]
    if not has_inference:
        document["paths"] = {path: item for path, item in document["paths"].items() if not path.startswith("/v2")}
    contents = {"/openapi.json": json.dumps(document).encode()}
    for file in (folder / "page").iterdir():
        contents["/" if file.name == "index.html" else f"/page/{file.name}"] = file.read_bytes()
    app.router.routes.extend(static_file(path, content) for path, content in contents.items())


async def _request(
    route: ApiRoute, parameters: Sequence[str], request_class: type[Message], request: Request
) -> Body | Message:
    """Returns the request in a body, or in the parameters of path and query.

    Raises:
        InvalidArgument: the query has other parameters, or one of them twice.
        HttpError, ClientDisconnect: as `read_body`.
    """
    check_query(request, parameters)
    if route.verb == "POST":
        return await read_body(request)
    fields = {name: request.query_params.get(name, "") for name in parameters}
    return request_class(**fields | request.path_params)


def check_query(request: Request, parameters: Sequence[str] = ()) -> None:
    """Raises InvalidArgument if the query of a request has others than these parameters, or one of them twice."""
    names = [name for name, _ in request.query_params.multi_items()]
    if unknown := set(names) - set(parameters):
        limit = f"some of {', '.join(parameters)}" if parameters else "empty"
        raise InvalidArgument(Violation("query", shortened(", ".join(sorted(unknown))), limit, quoted=True))
    if len(set(names)) < len(names):
        raise InvalidArgument(Violation("query", shortened(", ".join(names)), "parameters that differ", quoted=True))


def refusal(scope: Scope, error: AttendantError, log: RequestLog, problem: Problem = problem_response) -> Response:
    """Counts and logs a request that reached no method, and returns its response."""
    call = HttpCall(scope)
    log.refused("", call, error)
    return problem(error, call.request_id)


class _Either:
    """Leads a request to one of two endpoints, by its parameter `stream`."""

    def __init__(self, whole: ASGIApp, streamed: ASGIApp, log: RequestLog) -> None:
        self._by_value = {"0": whole, "1": streamed}
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = HTTPConnection(scope).query_params.get(STREAM, "0")
        endpoint = self._by_value.get(value)
        if endpoint is None:
            wrong = Violation(STREAM, shortened(value), "0 or 1", quoted=True)
            endpoint = refusal(scope, InvalidArgument(wrong), self._log)
        await endpoint(scope, receive, send)


TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
    "svg": "image/svg+xml",
}

HEADERS: Final = {
    # The page may load and call only this server, and no page may frame it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def static_file(path: str, content: bytes) -> Route:
    """Returns the route of a file that does not change while the server runs."""
    media_type = TYPES["html" if path == "/" else path.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)

    return Route(path, answer)


MISDIRECTED: Final = HttpError(
    HTTPStatus.MISDIRECTED_REQUEST,
    "INVALID_ARGUMENT",
    "on a loopback address this server answers to the host `localhost`, the name in --host or an address alone; a "
    "proxy in front must send one of these in the header Host, or let the server listen elsewhere by --host",
)


def guard_hosts(app: Starlette, log: RequestLog, host: str) -> None:
    """Checks the host of each request, for any path, if the port listens on a loopback address."""
    if is_loopback(host):
        app.add_middleware(KnownHosts, log, host)


class KnownHosts:
    """Refuses pages of another site whose name has been made to lead to this machine (DNS rebinding).

    On a loopback address, a request must be for `localhost`, the name in --host, an address, or (in HTTP/1.0) no host.
    A browser always names one.
    """

    def __init__(self, app: ASGIApp, log: RequestLog, host: str) -> None:
        self._app = app
        self._log = log
        self._names = {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = HTTPConnection(scope).headers.getlist("host")
        app = self._app if all(map(self._is_local, hosts)) else refusal(scope, MISDIRECTED, self._log)
        await app(scope, receive, send)

    def _is_local(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or name.endswith(".localhost") or bool(ipaddress.ip_address(name))
        except ValueError:
            return False
