"""The worker's own look at the socket that it was given."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from attendant.server.engine import worker
from attendant.server.engine.protocol import framed
from attendant.server.engine.worker import StrangeSocket, inherited
from tests.paths import ROOT


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def run_worker(descriptor: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "attendant.server.process.worker_main", str(descriptor), "0"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    return subprocess.run(
        command, env=environment, pass_fds=[descriptor], capture_output=True, text=True, timeout=240, check=False
    )


def test_a_pair_from_the_parent_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(os, "getppid", os.getpid)
    with ours, inherited(theirs.detach()) as connection:
        ours.sendall(b"x")
        assert connection.recv(1) == b"x"


def test_a_pair_of_another_process_is_not() -> None:
    ours, theirs = socket.socketpair()
    with ours, pytest.raises(StrangeSocket, match=f"process {os.getpid()}'s"):
        inherited(theirs.detach())


@pytest.mark.parametrize("kind", ["network", "named"])
def test_nothing_is_unpickled_of_a_socket_that_others_can_reach(tmp_path: Path, kind: str) -> None:
    if kind == "network":
        door, address = socket.socket(socket.AF_INET), ("127.0.0.1", 0)
        door.bind(address)
    else:
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(tmp_path / "door"))
    door.listen()
    with door, socket.socket(door.family) as stranger:
        stranger.connect(door.getsockname())
        accepted, _ = door.accept()
        with accepted:
            stranger.sendall(framed(Bomb(tmp_path / "exploded")))
            run = run_worker(accepted.fileno())
    assert run.returncode == 2
    assert run.stderr == "worker: only a server starts a worker, and gives it a socket: others can reach this one\n"
    assert not (tmp_path / "exploded").exists()


def test_what_is_no_socket_at_all(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(StrangeSocket, match="descriptor"):
        inherited(file.fileno())


def test_the_credentials_are_the_kernels() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        raw = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, worker.CREDENTIALS.size)
        assert worker.CREDENTIALS.unpack(raw) == (os.getpid(), os.getuid(), os.getgid())
