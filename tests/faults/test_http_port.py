"""The HTTP port.

Clients connect to the port and send nothing, half of a request, or one request after another.
"""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from attendant.server.http.port import MAX_CONNECTIONS
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least, at_most
from tests.faults.witness import witness
from tests.server_process import Running

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: "
HALF_BODY = b"\r\n".join(
    (
        b"POST /v1/generate HTTP/1.1",
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Content-Length: 99",
        b"",
        b'{"text":',
    )
)
FEW = 12
"""Number of descriptors or threads that the server opens for itself or for the calls of a witness."""


@contextmanager
def connected(running: Running, number: int, says: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connects `number` clients, which send these bytes and nothing more."""
    with ExitStack() as stack:
        clients = []
        for _ in range(number):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.metrics_port), timeout=10))
            with suppress(OSError):
                client.sendall(says)
            clients.append(client)
        yield clients


def test_idle_connections_stay_within_the_limit_and_keep_no_client_out(start: Start) -> None:
    with start() as running, witness(running.target) as seen:
        running.metrics()
        descriptors, threads = running.num_descriptors(), running.num_threads()
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (descriptors + MAX_CONNECTIONS + 40,) * 2)
        logged = running.num_log_bytes()
        for says in (b"", HALF, HALF_BODY):
            with connected(running, 2 * MAX_CONNECTIONS, says):
                assert running.metrics()['attendant_ready{"model": "tiny"}'] == 1
                assert running.num_descriptors() <= descriptors + MAX_CONNECTIONS + FEW
                assert running.num_threads() <= threads + FEW
        assert running.num_log_bytes() == logged, running.log()
    assert set(seen.codes) == {"OK"}


@pytest.mark.reliability
def test_1000_idle_connections_leave_the_http_port_usable(start: Start, figure: Figure) -> None:
    with start() as running:
        with witness(running.target) as quiet:
            time.sleep(5)
        descriptors, threads = running.num_descriptors(), running.num_threads()
        memory = running.resident_mebibytes()
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (512, 512))
        with witness(running.target) as seen, connected(running, 1000):
            began, scrapes = time.monotonic(), 0
            while time.monotonic() - began < 5:
                assert running.metrics()
                scrapes += 1
            figure("scrapes alongside 1,000 idle connections", scrapes / 5, at_least(1), "per second")
            figure(
                "descriptors for 1,000 idle connections",
                running.num_descriptors() - descriptors,
                at_most(MAX_CONNECTIONS + FEW),
                "",
            )
            figure("threads for them", running.num_threads() - threads, at_most(FEW), "")
            figure("memory for them", running.resident_mebibytes() - memory, at_most(16), "MiB")
        figure("other calls that failed meanwhile", seen.num_failed, at_most(0), "calls")
        figure("p50 of other calls, to that without", seen.quantile(0.5) / quiet.quantile(0.5), at_most(2), "times")
