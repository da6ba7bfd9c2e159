"""Tests of a worker's reports on plain values, and of its check of the inherited socket."""

import math
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.engine.engine import HELD_PART, MESSAGE_BYTES, MIN_PART, PROGRESS_SECONDS, Outbox, in_messages
from attendant.server.engine.messages import Outcomes, framed
from attendant.server.errors import Cancelled
from attendant.server.worker_main import StrangeSocket, inherited
from tests.paths import ROOT
from tests.unit.server.engine.test_admission import result

MANY = 1000


def keys(outbox: Outbox) -> list[int]:
    return [key for key, _ in outbox.take()[0]]


def test_an_empty_outbox_is_never_due() -> None:
    outbox = Outbox()
    assert not outbox.is_due(0, 1e9, 0.0)
    outbox.add([], [], now=0.0)
    assert not outbox.is_due(0, 1e9, 0.0)


def test_an_outcome_of_few_requests_is_sent_at_once() -> None:
    outbox = Outbox()
    outbox.add([(0, result(1.0))], [], now=10.0)
    assert outbox.is_due(MIN_PART, 10.0, 0.0)
    assert not outbox.is_due(MIN_PART + 1, 10.0, 0.0)


def test_outcomes_are_held_until_enough_requests_have_ended() -> None:
    outbox = Outbox()
    for key in range(3):
        outbox.add([(key, result(1.0))], [], now=10.0)
        assert outbox.is_due(9, 10.0, 0.0) == (key == 2)
    assert keys(outbox) == [0, 1, 2], "in the order in which they ended"
    assert not outbox.is_due(0, 1e9, 0.0) and outbox.take() == ([], [])


def test_outcomes_are_held_for_at_most_a_part_of_the_shortest_duration() -> None:
    outbox = Outbox()
    outbox.add([(0, result(4.0))], [], now=10.0)
    outbox.add([(1, result(1.0))], [], now=10.0)
    assert not outbox.is_due(MANY, 10.0 + 0.99 * HELD_PART, 0.0)
    assert outbox.is_due(MANY, 10.0 + 1.01 * HELD_PART, 0.0)
    assert outbox.is_due(MANY, 10.0 + 0.5 * HELD_PART, 0.6 * HELD_PART), "the next round ends too late"
    outbox.take()
    outbox.add([(2, result(4.0))], [], now=20.0)
    assert not outbox.is_due(MANY, 20.0 + 1.01 * HELD_PART, 0.0), "outcomes that were sent no longer count"


def test_an_error_is_sent_at_once_with_all_held_outcomes() -> None:
    outbox = Outbox()
    outbox.add([(0, result(1.0)), (1, Cancelled())], [], now=10.0)
    assert outbox.is_due(MANY, 10.0, 0.0)
    assert keys(outbox) == [0, 1]


def test_answers_with_much_attention_are_divided_into_messages() -> None:
    """The event loop runs other tasks between the messages."""
    (hypothesis,) = result(1.0).hypotheses
    weights = np.zeros((100, MESSAGE_BYTES // 1000), np.float32)
    large = result(1.0)._replace(hypotheses=(hypothesis._replace(attention=weights),) * 2)
    outcomes: Outcomes = [(key, large if key % 3 else Cancelled()) for key in range(20)]
    messages = in_messages(outcomes)
    assert [outcome for message in messages for outcome in message] == outcomes
    assert 1 < len(messages) < len(outcomes)
    for message in messages:
        assert len(framed(message)) < MESSAGE_BYTES + 3 * weights.nbytes
    assert in_messages([]) == [[]]
    assert len(in_messages([(key, result(1.0)) for key in range(MANY)])) == 1


def test_progress_is_held_for_a_moment_and_reported_once() -> None:
    outbox = Outbox()
    steps: Sequence[tuple[int, Progress]] = [(7, Progress(1, (5,))), (8, Progress(3, (6,))), (7, Progress(2, (4, 3)))]
    for key, progress in steps:
        outbox.add([], [(key, progress)], now=10.0)
    assert not outbox.is_due(1, 10.0, 0.0), "held even if few requests run: progress frees no place"
    assert not outbox.is_due(1, 10.0 + 0.99 * PROGRESS_SECONDS, 0.0)
    assert outbox.is_due(MANY, 10.0 + 1.01 * PROGRESS_SECONDS, 0.0)
    assert outbox.take() == ([], [(7, Progress(1, (5, 4, 3))), (8, Progress(3, (6,)))])
    assert not outbox.is_due(0, 1e9, 0.0)


def test_progress_is_sent_with_outcomes() -> None:
    """The step that ends a request reports no progress, so held progress came before the outcome."""
    outbox = Outbox()
    outbox.add([], [(7, Progress(1, (5,)))], now=10.0)
    outbox.add([(7, result(1.0))], [], now=10.001)
    assert outbox.is_due(1, 10.001, 0.0)
    assert outbox.take() == ([(7, result(1.0))], [(7, Progress(1, (5,)))])


def test_a_first_token_is_not_held() -> None:
    outbox = Outbox()
    outbox.add([], [(7, Progress(0, (5,)))], now=10.0)
    assert outbox.is_due(MANY, 10.0, 0.0)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_everything_is_sent_once_and_in_time(seed: int, num_running: int) -> None:
    rng = random.Random(seed)
    steps = [[rng.uniform(0.001, 10.0) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(0, 30))]
    outbox = Outbox()
    sent: list[int] = []
    send_by: list[float] = []
    for now, totals in enumerate(steps):
        outbox.add([(len(send_by) + place, result(total)) for place, total in enumerate(totals)], [], float(now))
        send_by += [now + HELD_PART * total for total in totals]
        if outbox.is_due(num_running, float(now), 0.0):
            sent += keys(outbox)
        assert min(send_by[len(sent) :], default=math.inf) > now, "nothing is held for longer than it may be"
    assert sent + keys(outbox) == list(range(len(send_by)))


class Bomb:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def run_worker(descriptor: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "attendant.server.worker_main", str(descriptor), "0"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    return subprocess.run(
        command, env=environment, pass_fds=[descriptor], capture_output=True, text=True, timeout=240, check=False
    )


def test_a_socket_pair_from_the_parent_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(os, "getppid", os.getpid)
    with ours, inherited(theirs.detach()) as connection:
        ours.sendall(b"x")
        assert connection.recv(1) == b"x"


def test_a_socket_pair_of_another_process_is_refused() -> None:
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


def test_a_file_is_no_socket(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(StrangeSocket, match="descriptor"):
        inherited(file.fileno())
