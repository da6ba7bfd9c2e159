"""GET /metrics, on a thread of its own: it answers while models are loaded and while the engine is busy."""

import threading
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from attendant.runtime.errors import UserError


class MetricsEndpoint:
    """A running HTTP server; a context manager that ends it.

    Attributes:
        port: the one that is bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Binds and serves.

        Raises:
            UserError: the port is in use, or the host is none of this machine's.
        """
        try:
            served: tuple[WSGIServer, threading.Thread] = start_http_server(port, host, registry)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"--metrics-port: can't listen on {host}:{port}: {reason}; choose another one") from None
        self._server, self._thread = served
        self.port: int = self._server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
