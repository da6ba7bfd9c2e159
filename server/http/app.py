"""The API and the playground, added to the application of the HTTP port."""

import ipaddress
import json
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from attendant.runtime.requests import Violation, shortened
from attendant.server.auth import Shares, is_loopback
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.gatekeeper import Gatekeeper
from attendant.server.grpc.request_context import GIVEN_ID_KEY
from attendant.server.grpc.service import SERVICE, Seq2SeqServicer
from attendant.server.http.bodies import Body, read_body
from attendant.server.http.call import TIMEOUT_HEADER
from attendant.server.http.endpoints import MAX_CALLS, Endpoint, MakeRequest, Method, StreamEndpoint
from attendant.server.http.inference import (
    INFERENCE_ROUTES,
    PREFIX,
    InferenceEndpoint,
    InferenceRoute,
    read_request,
)
from attendant.server.http.inference import SERVICE as INFERENCE
from attendant.server.http.openapi import document
from attendant.server.http.playground import StaticFile, page_routes
from attendant.server.http.problems import HttpError, refusal
from attendant.server.http.routes import ROUTES, STREAM, ApiRoute
from attendant.server.inference.servicer import InferenceServicer
from attendant.server.metrics import Metrics

CODES = {HTTPStatus.NOT_FOUND: "NOT_FOUND", HTTPStatus.METHOD_NOT_ALLOWED: "UNIMPLEMENTED"}
"""Of what Starlette itself refuses."""


def add_api(
    app: Starlette,
    servicer: Seq2SeqServicer,
    inference: InferenceServicer | None,
    gatekeeper: Gatekeeper,
    metrics: Metrics,
    *,
    origins: Sequence[str],
) -> None:
    """Adds the API, its OpenAPI document and the playground.

    Args:
        inference: None: the Open Inference Protocol is not served.
        origins: of pages elsewhere that may use the API from a browser.
    """
    calls = Shares(MAX_CALLS)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("authorization", "content-type", TIMEOUT_HEADER, GIVEN_ID_KEY),
        expose_headers=("retry-after",),
    )

    def endpoint(kind: type[Endpoint], name: str, make_request: MakeRequest) -> Endpoint:
        method = Method(SERVICE.methods_by_name[name], servicer, gatekeeper, calls)
        return kind(method, metrics, make_request)

    def route(verb: str, path: str, answering: ASGIApp) -> BaseRoute:
        middleware = [cors] if origins else []
        # Preflights are answered by the middleware, on the same path.
        methods = [verb, *(["OPTIONS"] if origins else [])]
        return Route(path, answering, methods=methods, middleware=middleware)

    def api_route(one: ApiRoute) -> BaseRoute:
        make_request = partial(_request, one)
        answering: ASGIApp = endpoint(Endpoint, one.method, make_request)
        if one.streaming is not None:
            answering = Either(answering, endpoint(StreamEndpoint, one.streaming, make_request), metrics)
        return route(one.verb, one.path, answering)

    def inference_route(one: InferenceRoute) -> BaseRoute:
        assert inference is not None, "else it has no routes"
        method = Method(INFERENCE.methods_by_name[one.method], inference, gatekeeper, calls)
        answering = InferenceEndpoint(method, metrics, partial(read_request, one))
        return route(one.verb, PREFIX + one.path, answering)

    described = document(has_tokens=gatekeeper.needs_tokens, has_inference=inference is not None)
    described_file = StaticFile("openapi.json", json.dumps(described).encode())
    pages = [Route("/openapi.json", described_file.answer), *page_routes()]
    app.router.routes.extend([*map(api_route, ROUTES), *pages])
    app.router.routes.extend(map(inference_route, INFERENCE_ROUTES if inference is not None else ()))
    app.add_exception_handler(HTTPException, partial(_refused, metrics))


async def _request(route: ApiRoute, request: Request) -> Body | Message:
    """What is asked by a body, or by the parameters of path and query.

    Raises:
        InvalidArgument: the query has others than the route knows.
        HttpError, ClientDisconnect: as `read_body`.
    """
    if unknown := request.query_params.keys() - {*route.query_parameters}:
        limit = f"some of {', '.join(route.query_parameters)}" if route.query_parameters else "empty"
        raise InvalidArgument(Violation("query", shortened(", ".join(sorted(unknown))), limit, quoted=True))
    if route.verb == "POST":
        return await read_body(request)
    request_class = GetMessageClass(SERVICE.methods_by_name[route.method].input_type)
    given = {name: request.query_params.get(name, "") for name in route.query_parameters}
    return request_class(**given | request.path_params)


async def _refused(metrics: Metrics, request: Request, error: Exception) -> Response:
    """What no route takes."""
    assert isinstance(error, HTTPException), "that is what this is for"
    status = HTTPStatus(error.status_code)
    path = request.url.path
    message = f"{request.method} {path[:100]!r}: {status.description}; /openapi.json lists the paths"
    problem = InferenceEndpoint.problem if f"{path}/".startswith(f"{PREFIX}/") else None
    return refusal(request.scope, "", HttpError(status, CODES[status], message, error.headers), metrics, problem)


class Either:
    """Leads a request to one of two endpoints, by its parameter `stream`."""

    def __init__(self, whole: ASGIApp, streamed: ASGIApp, metrics: Metrics) -> None:
        self._by_value = {"0": whole, "1": streamed}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = HTTPConnection(scope).query_params.get(STREAM, "0")
        endpoint = self._by_value.get(given)
        if endpoint is None:
            wrong = Violation(STREAM, shortened(given), "0 or 1", quoted=True)
            endpoint = refusal(scope, "", InvalidArgument(wrong), self._metrics)
        await endpoint(scope, receive, send)


def guard_hosts(app: Starlette, metrics: Metrics, host: str) -> None:
    """Checks the host of each request, whatever its path, if the port listens on a loopback address."""
    if is_loopback(host):
        app.add_middleware(KnownHosts, metrics)


class KnownHosts:
    """Keeps away pages elsewhere whose name has been made to lead to this machine (DNS rebinding).

    On a loopback address, a request must be for `localhost`, for an address, or (in HTTP/1.0) for no host. A browser
    always names one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = HTTPConnection(scope).headers.getlist("host")
        app = self._app if all(map(_is_local, hosts)) else refusal(scope, "", MISDIRECTED, self._metrics)
        await app(scope, receive, send)


MISDIRECTED = HttpError(
    HTTPStatus.MISDIRECTED_REQUEST,
    "INVALID_ARGUMENT",
    "on a loopback address this server answers to the host `localhost` or an address alone; a proxy in front must say "
    "so in the header Host, or let the server listen elsewhere by --host",
)


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
