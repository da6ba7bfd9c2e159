"""Clients: credentials and rates.

Secrets must appear only in their files, even if messages and files are malformed. No call may fail while certificates
and tokens are exchanged under load.
"""

import asyncio
import hashlib
import secrets
import ssl
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from attendant.server.auth import POLL_SECONDS, Access, open_access
from attendant.server.config import ServerConfig
from attendant.server.grpc.handlers import GrpcCall
from attendant.server.grpc.port import bind
from attendant_client import AttendantClient, AttendantError
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.certificates import Authority, put
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most
from tests.server_process import Running

PATIENCE_SECONDS = 30.0
NUM_TIMED = 20_000


async def log_line(running: Running, words: str, times: int = 1) -> None:
    """Waits until the log has these words `times` times."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while running.log().count(words) < times:
        assert time.monotonic() < give_up, f"not in the log: {words}"
        await asyncio.sleep(0.05)


async def test_secrets_appear_only_in_their_files(start: Start, authority: Authority, tmp_path: Path) -> None:
    in_file, hashed, wrong, malformed = (secrets.token_urlsafe(32) for _ in range(4))
    tokens, (certificate, key) = tmp_path / "tokens", authority.issue("server")
    tokens.write_text(f"search {in_file}\nmail sha256:{hashlib.sha256(hashed.encode()).hexdigest()}\n")
    private = key.read_text()
    options = (f"--tokens={tokens}", f"--tls-certificate={certificate}", f"--tls-key={key}", "--log-level=debug")
    with start(*options, "--log-format=json", "--no-http") as running:
        roots = authority.certificate.read_bytes()
        refusals = ""
        for token in (in_file, hashed, wrong, f"{in_file} {hashed}", ""):
            async with AttendantClient(running.target, root_certificates=roots, token=token) as client:
                for call in (client.generate("badge"), client.models(), client.model("none"), client.score("a", "B")):
                    try:
                        await call
                    except AttendantError as error:
                        refusals += str(error)
        tokens.write_text(f"search {in_file}\nmail {malformed} {hashed}\n")
        key.write_text(private.replace("PRIVATE", "PUBLIC"))
        await log_line(running, "reloaded", times=2)
        process = Path(f"/proc/{running.process.pid}")
        metrics = str(running.metrics())
        seen = {
            "the log": running.log(),
            "what clients are told": refusals,
            "metrics": metrics,
            "the first line": running.line,
            "the command line": (process / "cmdline").read_text(),
            "the environment": (process / "environ").read_text(),
        }
    assert "UNAUTHENTICATED" in seen["the log"] and "not known" in refusals
    assert ", line 2 must have, after its token, only " in seen["the log"]
    for secret in (in_file, hashed, wrong, malformed, private.splitlines()[1]):
        assert not [where for where, text in seen.items() if secret in text]
    assert "search" not in metrics.replace('"phase": "search"', ""), "labels come from closed sets"


async def exchanged(start: Start, authority: Authority, folder: Path, rounds: int) -> Counter[str]:
    """Counts the codes of calls, each on its own connection, while certificate, key and tokens are exchanged."""
    certificate, key, tokens = folder / "tls.crt", folder / "tls.key", folder / "tokens"
    put(authority.issue("server-0"), (certificate, key))
    kept = secrets.token_urlsafe(32)
    tokens.write_text(f"search {kept}\n")
    roots = authority.certificate.read_bytes()
    codes: Counter[str] = Counter()
    with start(f"--tls-certificate={certificate}", f"--tls-key={key}", f"--tokens={tokens}") as running:

        async def ask() -> None:
            while True:
                async with AttendantClient(running.target, root_certificates=roots, token=kept) as client:
                    try:
                        await client.health(timeout=PATIENCE_SECONDS)
                        await client.generate("badge", timeout=PATIENCE_SECONDS)
                        codes["OK"] += 1
                    except AttendantError as error:
                        codes[error.code.name] += 1

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for number in range(1, rounds + 1):
            newer = secrets.token_urlsafe(32)
            new_certificate, new_key = authority.issue(f"server-{number}")
            certificate.write_bytes(new_certificate.read_bytes())
            await asyncio.sleep(POLL_SECONDS / 3)
            key.write_bytes(new_key.read_bytes())
            tokens.write_text(f"search {kept}\nmail {newer}\n")
            await log_line(running, "message=reloaded", times=2 * number)
            async with AttendantClient(running.target, root_certificates=roots, token=newer) as client:
                assert (await client.generate("badge")).hypotheses
            served_now = await asyncio.to_thread(served_certificate, running.target)
            assert served_now == new_certificate.read_text().strip()
        for task in asking:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return codes


def served_certificate(target: str) -> str:
    """Returns the certificate that a new connection gets, as PEM."""
    host, port = target.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port))).strip()


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.reliability)])
async def test_replacing_certificates_and_tokens_fails_no_call(
    start: Start, authority: Authority, tmp_path: Path, figure: Figure, rounds: int
) -> None:
    codes = await exchanged(start, authority, tmp_path, rounds)
    name = f"calls that failed while certificates and tokens were exchanged {rounds} times"
    figure(name, float(codes.total() - codes["OK"]), at_most(0), f"of {codes.total()}")


async def growth_by_strangers(running: Running, num_calls: int) -> float:
    """Returns how much a server's memory grows, in MiB, by `num_calls` calls with different wrong tokens."""
    async with grpc.aio.insecure_channel(running.target) as channel:
        stub: Any = seq2seq_pb2_grpc.Seq2SeqStub(channel)  # type: ignore[no-untyped-call]

        async def ask(many: int) -> None:
            for _ in range(many):
                metadata = (("authorization", f"Bearer {secrets.token_urlsafe(32)}"),)
                call = stub.Generate(messages.GenerateRequest(text="badge"), metadata=metadata)
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

        await ask(100)
        before = running.resident_mebibytes()
        await asyncio.gather(*(ask(num_calls // 20) for _ in range(20)))
        return running.resident_mebibytes() - before


@pytest.mark.reliability
async def test_calls_with_wrong_tokens_leave_no_memory_behind(start: Start, tmp_path: Path, figure: Figure) -> None:
    (tmp_path / "tokens").write_text(f"search {secrets.token_urlsafe(32)}\n")
    with start(f"--tokens={tmp_path / 'tokens'}", "--client-requests-per-second=20") as running:
        grown = await growth_by_strangers(running, 40_000)
    figure("memory after 40,000 calls with as many wrong tokens", grown, at_most(16), "MiB more")


@pytest.mark.reliability
@pytest.mark.parametrize("by", ["address", "token", "certificate"])
async def test_identifying_a_client_and_checking_its_rate_is_fast(
    authority: Authority, tmp_path: Path, figure: Figure, by: str
) -> None:
    """Measures how long it takes to identify the client and check its rate, in the context of a real call."""
    token = secrets.token_urlsafe(32)
    others = "".join(f"client {secrets.token_urlsafe(32)}\n" for _ in range(1000))
    (tmp_path / "tokens").write_text(f"{others}search {token}\n")
    certificate, key = authority.issue("server")
    options: dict[str, Any] = {"client_requests_per_second": 1e9, "client_bytes_per_second": 1e12}
    if by == "token":
        options["tokens"] = tmp_path / "tokens"
    if by == "certificate":
        options |= {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.certificate}
    access = open_access(ServerConfig(bundles=(), **options))
    microseconds = 0.0

    async def answer(request: bytes, context: Any) -> bytes:
        nonlocal microseconds
        began = time.perf_counter()
        for _ in range(NUM_TIMED):
            access.rates.take(access.client_of(GrpcCall(context)), len(request))
        microseconds = (time.perf_counter() - began) / NUM_TIMED * 1e6
        return b""

    server = grpc.aio.server()
    methods = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", methods),))
    port = bind(server, "127.0.0.1", 0, access.grpc_credentials())
    await server.start()
    async with channel_to(f"127.0.0.1:{port}", access, authority) as channel:
        await channel.unary_unary("/test.Service/Ask")(b"badge", metadata=(("authorization", f"Bearer {token}"),))
    await server.stop(None)
    figure(f"cost of the gatekeeper per call, client identified by its {by}", microseconds, at_most(20), "microseconds")


def channel_to(target: str, access: Access, authority: Authority) -> grpc.aio.Channel:
    if access.certificates is None:
        return grpc.aio.insecure_channel(target)
    certificate, key = (file.read_bytes() for file in authority.issue("client"))
    roots = authority.certificate.read_bytes()
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots, key, certificate))
