"""Tests of deploy/nginx with Debian's nginx and real servers: calls are balanced, and survive the end of a server."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from attendant_client import AttendantClient, AttendantError, Generation
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.certificates import Authority, new_authority
from tests.paths import ROOT
from tests.ports import free_ports
from tests.server_process import Running, server

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
BUNDLE = str(ROOT / "models" / "g2p-en")
CALLERS = 16
PATIENCE_SECONDS = 20

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NGINX is None, reason="there is no nginx; apt-get install nginx")]


@dataclass
class Proxy:
    """nginx with the configuration in deploy/nginx, changed to the test's ports and files."""

    folder: Path
    servers: list[Running]
    spare: Running
    port: int
    authority: Authority
    down: set[int] = field(default_factory=set)

    def client(self) -> AttendantClient:
        return AttendantClient(f"localhost:{self.port}", root_certificates=self.authority.certificate.read_bytes())

    def configure(self) -> None:
        text = (ROOT / "deploy" / "nginx" / "attendant.conf").read_text()
        certificate, key = self.authority.issue("proxy")
        for old, new in (
            ("443", f"127.0.0.1:{self.port}"),
            ("/etc/nginx/tls/tls.crt", str(certificate)),
            ("/etc/nginx/tls/tls.key", str(key)),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        places = re.findall(r"(10\.0\.0\.\d+:50051)(.*);", text)
        assert len(places) == len(self.servers)
        for number, ((place, options), running) in enumerate(zip(places, self.servers, strict=True)):
            out = " down" if number in self.down else ""
            text = text.replace(f"{place}{options};", f"{running.target}{options}{out};")
        (self.folder / "attendant.conf").write_text(text)
        (self.folder / "nginx.conf").write_text(
            f"pid {self.folder}/nginx.pid;\nworker_processes 2;\nevents {{ worker_connections 1024; }}\n"
            f"http {{ access_log off; include {self.folder}/attendant.conf; }}\n"
        )

    def command(self, *arguments: str) -> list[str]:
        assert NGINX is not None
        files = "-e", f"{self.folder}/error.log", "-p", str(self.folder), "-c", f"{self.folder}/nginx.conf"
        return [NGINX, *files, *arguments]

    def reload(self) -> None:
        self.configure()
        subprocess.run(self.command("-s", "reload"), check=True, timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Starts nginx in front of three servers, with a fourth in reserve. Each test ends another server."""
    folder = tmp_path_factory.mktemp("nginx")
    with ExitStack() as stack:
        *servers, spare = [stack.enter_context(server(BUNDLE)) for _ in range(4)]
        (port,) = free_ports(1)
        started = Proxy(folder, servers, spare, port, new_authority(folder / "tls"))
        started.configure()
        process = stack.enter_context(subprocess.Popen(started.command("-g", "daemon off;")))
        stack.callback(process.terminate)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not (folder / "nginx.pid").exists():
            assert process.poll() is None and time.monotonic() < give_up, (folder / "error.log").read_text()
            time.sleep(0.02)
        yield started


def num_answered(running: Running) -> float:
    return running.metrics().get('attendant_requests_total{"code": "OK", "method": "Generate", "model": "g2p-en"}', 0)


async def ended(running: Running, number: signal.Signals) -> int:
    """Sends a signal to a server; returns its exit status."""
    running.process.send_signal(number)
    return await asyncio.to_thread(running.process.wait, PATIENCE_SECONDS)


async def more(answered: list[str]) -> None:
    """Waits for more answers than calls could be in flight."""
    wanted = len(answered) + 20 * CALLERS
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(answered) < wanted:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def calls(proxy: Proxy, *, retries: bool) -> AsyncIterator[list[str]]:
    """Runs callers that send requests without a pause until the block ends; raises if a call fails.

    Args:
        retries: use the retry policy of the Python client. Without a policy, gRPC sends a call again only if no server
            has read it, for example a call that meets nginx's GOAWAY at a reload.

    Yields:
        The best text of every answer so far.
    """
    answered: list[str] = []
    ending = asyncio.Event()
    options = [("grpc.service_config", json.dumps(SERVICE_CONFIG))] if retries else []
    credentials = grpc.ssl_channel_credentials(proxy.authority.certificate.read_bytes())
    async with grpc.aio.secure_channel(f"localhost:{proxy.port}", credentials, options=options) as channel:
        generate = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate

        async def caller() -> None:
            while not ending.is_set():
                answer = await generate(messages.GenerateRequest(text="badge"), timeout=PATIENCE_SECONDS)
                answered.append(answer.hypotheses[0].text)

        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(caller())
            await more(answered)
            yield answered
            await more(answered)
            ending.set()
    assert len(set(answered)) == 1


async def test_every_kind_of_call_passes_and_calls_take_turns(proxy: Proxy) -> None:
    async with proxy.client() as client:
        alone = await client.generate("badge", beam_size=2)
        for _ in range(59):
            assert (await client.generate("badge", beam_size=2)).hypotheses == alone.hypotheses
        assert [num_answered(running) for running in proxy.servers] == pytest.approx([20] * 3, abs=4)
        stream = client.stream("badge", beam_size=2)
        assert "".join([delta.text async for delta in stream]) == stream.generation.best.text == alone.best.text
        # nginx holds nothing back: each request of the stream is sent after the answer to the previous one.
        async with client.bulk() as bulk:
            for _ in range(3):
                assert (await bulk.generate("badge", beam_size=2)).best == alone.best
        # One stream is larger than nginx's default limit for a body. The server refuses each text that is too long.
        sources = ["badge", "x" * 100_000] * 20
        results = [answer async for answer in client.generate_many(sources, beam_size=2, return_errors=True)]
        assert all(isinstance(result, AttendantError) for result in results[1::2])
        assert all(result.best == alone.best for result in results[::2] if isinstance(result, Generation))


async def test_servers_are_exchanged_one_by_one_without_a_lost_call(proxy: Proxy) -> None:
    """Checks that callers without a retry policy lose no call."""
    async with calls(proxy, retries=False) as answered:
        proxy.down.add(0)
        proxy.reload()
        await more(answered)
        assert await ended(proxy.servers[0], signal.SIGTERM) == 0
        proxy.down.clear()
        proxy.servers[0] = proxy.spare
        proxy.reload()
        await more(answered)
    assert num_answered(proxy.spare) > CALLERS


@pytest.mark.parametrize(("place", "number"), [(1, signal.SIGTERM), (2, signal.SIGKILL)])
async def test_a_server_that_goes_costs_no_call_that_is_retried(
    proxy: Proxy, place: int, number: signal.Signals
) -> None:
    async with calls(proxy, retries=True) as answered:
        await ended(proxy.servers[place], number)
        await more(answered)
