"""The HTTP port of a server in this process, and calls to it."""

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from attendant.server.app import add_http_api
from attendant.server.auth import Access, Gate
from attendant.server.call import rpcs_of
from attendant.server.grpc.requests import AnswerBudget
from attendant.server.grpc.service import SERVICE, Seq2SeqServicer
from attendant.server.http.app import guard_hosts, http_app
from attendant.server.http.port import http_server
from attendant.server.inference.service import InferenceServicer
from tests.serving import PATIENCE_SECONDS, Served, no_repositories

JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Returns the names and the data of server-sent events."""
        pieces = self.text.removesuffix("\n\n").split("\n\n")
        lines = [piece.split("\n") for piece in pieces]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@dataclass(frozen=True, slots=True)
class Http:
    """Calls the HTTP port of a server."""

    port: int
    tls: ssl.SSLContext | None = None

    def connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=self.tls)

    def ask(self, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Sends a request on a new connection; a `body` that is neither text nor bytes is sent as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, str | bytes):
            body = json.dumps(body)
        connection = self.connection()
        try:
            connection.request(verb, path, body, (JSON if body is not None else {}) | sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, received, answer.read().decode())
        finally:
            connection.close()

    async def get(self, path: str, **headers: str) -> Answer:
        return await asyncio.to_thread(self.ask, "GET", path, **headers)

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        return await asyncio.to_thread(self.ask, "POST", path, body, **headers)


@asynccontextmanager
async def http_served(
    server: Served, access: Access | None = None, *, origins: Sequence[str] = (), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Http]:
    """Opens the HTTP port of a server; `tls` is the client's context."""
    access = access or Access()
    app = http_app(server.metrics.registry, lambda: server.lifecycle.is_serving)
    servicer = Seq2SeqServicer(server.log, AnswerBudget(unread_seconds=PATIENCE_SECONDS))
    reconciler = no_repositories(server.catalogue, server.metrics)
    inference = InferenceServicer(server.log, reconciler, lambda: server.lifecycle.is_serving)
    gate, rpcs = Gate(access, server.log), inference.rpcs(access.health)
    add_http_api(app, rpcs_of(SERVICE, servicer), rpcs, gate, origins=origins)
    guard_hosts(app, server.log, "127.0.0.1")
    async with http_server(app, "127.0.0.1", 0, access.http_context) as port:
        yield Http(port, tls)
