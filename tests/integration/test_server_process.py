"""Tests of `python -m server` as a user starts it: start, end, exit statuses, reflection, metrics, the HTTP port."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.errors import UserError
from attendant.server.app import serve
from attendant_client import AttendantClient, Generation
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.certificates import new_authority
from tests.configuration import parse_config
from tests.http_serving import Http
from tests.paths import ROOT
from tests.server_process import Running, command, eventually, server

START_SECONDS = 60
RESTARTS = 'attendant_engine_restarts_total{"model": "tiny"}'


def refusal(*arguments: str) -> str:
    """Returns the message with which a server in this process refuses to start."""
    with pytest.raises(UserError) as caught:
        asyncio.run(serve(parse_config(["--port", "0", "--metrics-port", "0", *arguments], {})))
    return str(caught.value)


@pytest.fixture(scope="module")
def running(tiny_bundle_path: Path) -> Iterator[Running]:
    with server(str(tiny_bundle_path), "--max-rows", "12") as started:
        yield started


def test_a_serving_server_prints_its_models_and_is_healthy(running: Running, tiny_bundle_path: Path) -> None:
    version = open_bundle(tiny_bundle_path).manifest.version
    assert f": tiny (version {version}, fp32, cpu); playground on http://127.0.0.1:" in running.line
    with grpc.insecure_channel(running.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "attendant.v1.Seq2Seq", "startup", "liveness"):
            response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_a_client_can_call_the_server_by_reflection_alone(running: Running) -> None:
    with grpc.insecure_channel(running.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert services == {
            "attendant.v1.Seq2Seq",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
        }
        pool = descriptor_pool.DescriptorPool(database)
        for name in services:  # as in tools that describe a server
            assert pool.FindServiceByName(name).methods
        method = pool.FindServiceByName("attendant.v1.Seq2Seq").methods_by_name["Generate"]
        request = message_factory.GetMessageClass(method.input_type)(text="badge", decoding={"beam_size": 2})
        call = channel.unary_unary(
            "/attendant.v1.Seq2Seq/Generate",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        assert call(request, timeout=10).hypotheses[0].tokens


def test_reflection_finds_symbols_by_any_name_that_its_protocol_allows(running: Running) -> None:
    names = ["Seq2Seq", "Seq2Seq.Generate", "Role", "Seq2Seq.None", "None.Generate"]
    symbols = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"attendant.v1.{name}") for name in names]
    with grpc.insecure_channel(running.target) as channel:
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(symbols), timeout=10)
        kinds = [answer.WhichOneof("message_response") for answer in answers]
    assert kinds == ["file_descriptor_response"] * 3 + ["error_response"] * 2


def children(process_id: int) -> list[int]:
    # Each thread has its own list: the processes that it started, or took over from a thread that has ended.
    lists = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def forking(process: "subprocess.Popen[str]") -> tuple[int, list[int]]:
    """Returns the only process that a server with one model has started, and the workers that it has forked."""
    (parent,) = children(process.pid)
    return parent, children(parent)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def answers_of(target: str) -> list[Generation]:
    """Returns the answers to calls that are made at once, with different beams."""
    async with AttendantClient(target) as client:
        asking = (
            client.generate("badge"[: number % 5 + 1], beam_size=1 + number % 3, attention=True) for number in range(60)
        )
        return list(await asyncio.gather(*asking))


def test_several_workers_give_the_bits_of_one(running: Running, tiny_bundle_path: Path) -> None:
    """Checks that several workers give the bits and metrics of a single one, and end with the server."""
    alone = asyncio.run(answers_of(running.target))
    with server(str(tiny_bundle_path), "--workers", "2", "--max-rows", "12") as started:
        parent, workers = forking(started.process)
        assert len(workers) == 2
        for process in (started.process.pid, parent, *workers):  # as when a terminal closes, or by `pkill`
            os.kill(process, signal.SIGHUP)
        for worker in workers:
            memory = psutil.Process(worker).memory_full_info()
            assert memory.uss < memory.rss / 2, "they share the memory of the bundle"
        answers = asyncio.run(answers_of(started.target))
        assert [answer.hypotheses for answer in answers] == [answer.hypotheses for answer in alone]
        metrics = started.metrics()
        assert metrics['attendant_requests_total{"code": "OK", "method": "Generate", "model": "tiny"}'] == 60
        assert metrics['attendant_queue_seconds_count{"model": "tiny"}'] == 60
        assert metrics['attendant_steps_total{"model": "tiny"}'] > 30, "of both"
        assert metrics['attendant_rows_limit{"model": "tiny"}'] == 24
        assert metrics['attendant_rows_running{"model": "tiny"}'] == 0
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(timeout=30) == 0
        assert not any(map(is_running, (parent, *workers)))


@pytest.mark.parametrize(
    "program", [("-c", "from attendant_client.command import main; main()", "serve"), ("-m", "attendant.server")]
)
def test_signals_during_the_import_are_handled(
    tiny_bundle_path: Path, tmp_path: Path, program: tuple[str, ...]
) -> None:
    """Sends signals during the import, because a supervisor may reload or end the server at any time."""
    (tmp_path / "uvloop.py").write_text(
        "import os, signal\n"
        "for number in (signal.SIGHUP, signal.SIGTERM):\n"
        "    print(number.name, flush=True)\n"
        "    os.kill(os.getpid(), number)\n"
        "    assert number is not signal.SIGTERM\n"
    )
    line, environment = command(str(tiny_bundle_path))
    line[1:3] = program
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "SIGHUP\nSIGTERM\n", "")


def signalling(folder: Path, module: str, *numbers: signal.Signals) -> str:
    """Returns a folder for PYTHONPATH: each process that runs this module sends itself signals while Python starts."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if sys.orig_argv[1:3] == ['-m', {module!r}]:\n"
        f"    for number in {[int(number) for number in numbers]}:\n"
        "        os.kill(os.getpid(), number)\n"
    )
    return str(folder)


@pytest.mark.parametrize(("number", "status", "line"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 0, "")])
def test_a_signal_between_the_command_and_the_server_ends_it(
    tiny_bundle_path: Path, tmp_path: Path, number: signal.Signals, status: int, line: str
) -> None:
    """Checks a signal at the start of the program by which the command replaces itself."""
    arguments, environment = command(str(tiny_bundle_path), "--port", "0", "--metrics-port", "0")
    arguments[1:3] = "-c", "from attendant_client.command import main; main()", "serve"
    environment["PYTHONPATH"] = f"{signalling(tmp_path, 'attendant.server', number)}:{environment['PYTHONPATH']}"
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.strip() == (line and f"attendant serve: {line}")


def test_signals_to_a_worker_that_starts_do_not_end_it(tiny_bundle_path: Path, tmp_path: Path) -> None:
    """Sends a worker the signals that a terminal or `timeout` sends to all processes of a group."""
    arguments, environment = command(str(tiny_bundle_path), "--port", "0", "--metrics-port", "0")
    folder = signalling(tmp_path, "attendant.server.worker_main", signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving")
        process.terminate()
        _, log = process.communicate(timeout=START_SECONDS)
    assert (process.returncode, "Traceback" in log) == (0, False)


INTERRUPTED_AT_ITS_SOCKETS = """
import os, signal
from attendant.runtime.command import exit_command
from attendant.server import __main__, app

grpc_server = app.grpc_port.grpc_server

def interrupted(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return grpc_server(*arguments, **options)

app.grpc_port.grpc_server = interrupted
exit_command("attendant serve", __main__.main, "cpu")
"""


def test_ctrl_c_while_the_sockets_are_made_ends_the_server_in_order(tiny_bundle_path: Path) -> None:
    arguments, environment = command(str(tiny_bundle_path), "--port", "0", "--metrics-port", "0")
    arguments[1:3] = "-c", INTERRUPTED_AT_ITS_SOCKETS
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "signal=SIGINT" in ended.stderr
    assert "level=error" not in ended.stderr


def test_files_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise SystemExit('imported')")
    line, environment = command(str(tmp_path / "nothing"))
    line[1:3] = "-c", "from attendant_client.command import main; main()", "serve"
    ended = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=START_SECONDS)
    assert (ended.returncode, ended.stderr.startswith("attendant serve: ")) == (2, True)


def test_workers_of_several_threads_load_their_bundle_each(tiny_bundle_path: Path) -> None:
    """Checks that the workers are not forked: forked workers would not have the threads."""
    with server(str(tiny_bundle_path), "--workers", "2", num_threads=4) as started:
        workers = children(started.process.pid)
        assert len(workers) == 2
        assert not any(map(children, workers))


def test_forked_workers_that_die_are_forked_again_and_end_with_their_server(tiny_bundle_path: Path) -> None:
    with (
        server(str(tiny_bundle_path), "--workers", "2", "--log-format", "json") as started,
        grpc.insecure_channel(started.target) as channel,
    ):
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        request = messages.GenerateRequest(text="badge")
        expected = stub.Generate(request, timeout=60).hypotheses
        # One of two workers dies, then the process that forks them.
        for takes_all, num_restarts in ((False, 1), (True, 3)):
            parent, workers = forking(started.process)
            died = [parent, *workers] if takes_all else workers[:1]
            os.kill(died[0], signal.SIGKILL)

            def are_replaced(died: list[int] = died) -> bool:
                parents = children(started.process.pid)
                new_workers = [worker for parent in parents for worker in children(parent)]
                return len(new_workers) == 2 and not {*parents, *new_workers} & set(died)

            eventually(are_replaced)
            responses = [stub.Generate.future(request, timeout=60) for _ in range(8)]
            assert all(response.result().hypotheses == expected for response in responses)
            eventually(lambda number=num_restarts: started.metrics()[RESTARTS] == number)
        assert '"how": "signal SIGKILL"' in started.log()
        parent, workers = forking(started.process)
        started.process.kill()
        eventually(lambda: not any(map(is_running, (parent, *workers))))


def test_a_port_in_use_is_refused(running: Running, tiny_bundle_path: Path) -> None:
    port = running.target.rpartition(":")[2]
    reason = "Address already in use; choose another"
    message = refusal(str(tiny_bundle_path), "--port", port)
    assert message.startswith(f"--port: can't listen on 127.0.0.1:{port}: {reason}")


def test_options_that_can_not_be_met_are_refused(tiny_bundle_path: Path, tmp_path: Path) -> None:
    bundle = str(tiny_bundle_path)
    message = refusal(bundle, "--host", "no-such-host.invalid")
    assert message.startswith("--host is 'no-such-host.invalid', must be an address or a name of this machine: ")
    assert refusal(bundle, bundle).startswith("two bundles hold a model named tiny: ")
    message = refusal(bundle, "--precision", "int8", "--workers", "2")
    assert message == "precision int8 is not in the bundle tiny; it has fp32"
    assert refusal(str(tmp_path / "nothing")).startswith(f"{tmp_path}/nothing is no folder")
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} is neither a bundle nor a repository: ")
    if not Path("/proc/driver/nvidia/version").exists():
        assert refusal(bundle, "--provider", "cuda").startswith("provider cuda is not available here: ")


MODEL = str(ROOT / "models" / "g2p-en")
PAGE = ROOT / "server" / "http" / "page"
TOKEN = "a-token-of-tests-0123456789"


def test_the_page_and_the_api_encrypted_with_tokens(tmp_path: Path) -> None:
    """Tests the server on its own event loop, uvloop."""
    authority = new_authority(tmp_path)
    certificate, key = authority.issue("server")
    (tmp_path / "tokens").write_text(f"search {TOKEN}\n")
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--tokens", str(tmp_path / "tokens")]
    with server(MODEL, *tls) as running:
        assert f"playground on https://127.0.0.1:{running.metrics_port}/; " in running.line
        web = Http(running.metrics_port, ssl.create_default_context(cafile=str(authority.certificate)))
        check_page(web)
        body = {"text": "phoneme" * 5, "output": {"attention": True}}
        for _ in range(20):
            assert web.ask("POST", "/v1/generate", body).status == 401
            assert web.ask("POST", "/v1/generate?stream=1", body, authorization=f"Bearer {TOKEN}").status == 200
        assert not [line for line in running.log().splitlines() if "error" in line]


def check_page(web: Http) -> None:
    page = web.ask("GET", "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    files = re.findall(r'"(page/[a-z.]+)"', page.text)
    assert set(files) == {f"page/{file.name}" for file in PAGE.iterdir() if file.suffix != ".html"}
    assert all(web.ask("GET", f"/{file}").status == 200 for file in files)


def test_without_the_api_there_are_metrics_and_health_alone(tmp_path: Path) -> None:
    certificate, key = new_authority(tmp_path).issue("server")
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with server(MODEL, "--no-http", *tls) as running:
        assert "playground" not in running.line
        web = Http(running.metrics_port)
        assert running.metrics(), "unencrypted"
        assert web.ask("GET", "/readyz").status == 200
        for path in ("/", "/v1/models", "/openapi.json"):
            assert web.ask("GET", path).status == 404
