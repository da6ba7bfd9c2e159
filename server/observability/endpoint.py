"""GET /metrics, on a thread of its own: it answers while models are loaded and while the engine is busy."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from attendant.runtime.errors import UserError


@contextmanager
def metrics_endpoint(host: str, port: int, registry: CollectorRegistry) -> Iterator[int]:
    """Serves until the end of the context; gives the port that is bound.

    Raises:
        UserError: the port is in use, or the host is none of this machine's.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"--metrics-port: can't listen on {host}:{port}: {reason}; choose another one") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
