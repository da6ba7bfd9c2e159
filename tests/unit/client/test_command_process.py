"""Tests of the command in its own process: pipes, signals, terminals."""

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.attacker import frame
from tests.paths import ROOT
from tests.unit.client.fake_server import Served

PATIENCE_SECONDS = 60.0
"""Time within which a process must end, on a busy machine."""

COMMAND = [sys.executable, "-c", "import sys; from attendant_client.command import main; sys.exit(main())"]


@pytest.fixture
def environment(server: Served) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "client"), "ATTENDANT_TARGET": server.target, "TERM": "xterm"}


def start(environment: dict[str, str], *arguments: str, **streams: int) -> "subprocess.Popen[bytes]":
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, **pipes)  # type: ignore[call-overload, no-any-return]


def test_each_answer_is_printed_before_the_next_line_is_read(environment: dict[str, str]) -> None:
    with start(environment, "generate", "-") as process:
        assert process.stdin and process.stdout and process.stderr
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == word.upper() + b"\n"
        process.stdin.close()
        assert process.stdout.read() == process.stderr.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 0


def test_ctrl_c_while_waiting_for_a_line_ends_the_command(environment: dict[str, str]) -> None:
    with start(environment, "generate", "-") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ONE\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr.read() == b"\nattendant: interrupted\n"


HALF_MADE = """
import asyncio, sys

class Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        raise KeyboardInterrupt  # before what its `__del__` looks at is there

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop

asyncio.set_event_loop_policy(Policy())
from attendant_client.command import main; sys.exit(main())
"""


def test_ctrl_c_during_the_start_of_the_event_loop_ends_the_command(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", HALF_MADE, "generate", "one"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nattendant: interrupted\n")


def test_a_reader_that_goes_away_is_not_a_failure(environment: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text("word\n" * 5000)
    with source.open("rb") as lines, start(environment, "generate", "-", stdin=lines.fileno()) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"WORD\n"
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "pipe"])
def test_a_bar_on_a_terminal_and_messages_above_it(
    environment: dict[str, str], tmp_path: Path, *, as_file: bool
) -> None:
    content = b"one\nbad\n" + b"word\n" * 20
    (tmp_path / "lines").write_bytes(content)
    controller, terminal = pty.openpty()
    with (tmp_path / "lines").open("rb") as lines:
        streams = {"stdin": lines.fileno()} if as_file else {}
        with start(environment, "generate", "-", stderr=terminal, **streams) as process:
            os.close(terminal)
            out, _ = process.communicate(None if as_file else content, timeout=30)
            shown = b""
            while chunk := _read(controller):
                shown += chunk
    os.close(controller)
    assert out == b"ONE\n\n" + b"WORD\n" * 20
    assert process.returncode == 2
    assert b"attendant: line 2: text: 'bad' is bad" in shown
    assert b"22 lines" in shown
    assert (b"100%" in shown) is as_file


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 4096)
    except OSError:
        return b""  # Linux reports EIO when the other end is closed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["generate a", "--help"])
def test_a_full_disk_is_one_line(environment: dict[str, str], arguments: str) -> None:
    environment |= {"PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("wb") as full, start(environment, *arguments.split(), stdout=full.fileno()) as process:
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, b"attendant: standard input or output: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("arguments", "status"), [("generate bad", 1), ("generate a", 0), ("generate", 2)])
def test_messages_that_have_no_place_change_no_status(environment: dict[str, str], arguments: str, status: int) -> None:
    with Path("/dev/full").open("wb") as full, start(environment, *arguments.split(), stderr=full.fileno()) as process:
        process.communicate(timeout=30)
    assert process.returncode == status


def test_standard_input_that_is_closed_is_one_line(environment: dict[str, str]) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "generate", "-"]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"standard input, which is closed" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
@pytest.mark.parametrize("arguments", ["generate - --json", "generate bad"])
def test_closed_outputs_are_not_written(environment: dict[str, str], arguments: str, closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments.split()]
    done = subprocess.run(command, env=environment, input=b"a\n", capture_output=True)
    assert done.returncode == (2 if "bad" in arguments else 0), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        ("open('/none/x')", b"/none/x: No such file or directory"),
        ("(_ for _ in ()).throw(OSError('no place: set X'))", b"no place: set X"),
        ("asyncio.run(asyncio.wait_for(asyncio.sleep(1), 0))", b"standard input or output: TimeoutError"),
    ],
)
def test_an_error_of_the_system_is_a_line_with_its_file_and_reason(
    environment: dict[str, str], failing: str, line: bytes
) -> None:
    program = (
        f"import asyncio; from attendant_client import command; command._run = lambda _: {failing}; command.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.stderr == b"attendant: " + line + b"\n"


def test_what_a_server_sends_at_its_end_is_not_printed(environment: dict[str, str]) -> None:
    settings, last_words = frame(4, b""), frame(7, bytes(7) + b"\x0b" + b"too_many_pings")
    environment.pop("GRPC_VERBOSITY", None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with start(environment, "health", "--target", target, "--timeout", "0.3") as process:
            connection, _ = listener.accept()
            connection.sendall(settings + last_words)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
            connection.close()
    assert process.returncode == 1 and err.count(b"\n") == 1 and b"too_many_pings" not in err
