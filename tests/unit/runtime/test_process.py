"""Tests of the CPUs granted to the process, limits of work, and captured standard error."""

import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from unittest.mock import Mock

import pytest

from attendant.runtime import process
from attendant.runtime.errors import UserError
from attendant.runtime.process import (
    ResourceLimitExceeded,
    available_cpus,
    cgroup_quota,
    limited,
    on_a_thread,
    processor,
    quiet_stderr,
)
from tests.paths import ROOT


def make(root: Path, **limits: str) -> Path:
    """Creates the cgroups a/b with these `cpu.max` files; returns the file that names the process's cgroup."""
    (root / "a" / "b").mkdir(parents=True)
    for place, limit in limits.items():
        folder = {"top": root, "a": root / "a", "b": root / "a" / "b"}[place]
        (folder / "cpu.max").write_text(limit)
    own = root / "own"
    own.write_text("12:pids:/x\n0::/a/b\n")
    return own


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"b": "max 100000\n"}, None),
        ({"b": "150000 100000\n"}, 1.5),
        ({"b": "400000 100000\n", "a": "200000 100000\n"}, 2.0),
        ({"b": "max 100000\n", "top": "50000 100000\n"}, 0.5),
        ({"b": "nonsense\n"}, None),
    ],
)
def test_the_lowest_quota_of_the_cgroup_and_its_parents_is_used(
    tmp_path: Path, limits: dict[str, str], quota: float | None
) -> None:
    assert cgroup_quota(tmp_path, make(tmp_path, **limits)) == quota


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(
    ("limits", "quota"), [({}, None), ({"a/b": -1}, None), ({"a/b": 250000}, 2.5), ({"a/b": 400000, "": 50000}, 0.5)]
)
def test_quotas_of_cgroup_version_1_are_read(
    tmp_path: Path, mount: str, limits: dict[str, int], quota: float | None
) -> None:
    (tmp_path / mount / "a" / "b").mkdir(parents=True)
    for place, limit in limits.items():
        (tmp_path / mount / place / "cpu.cfs_quota_us").write_text(f"{limit}\n")
        (tmp_path / mount / place / "cpu.cfs_period_us").write_text("100000\n")
    own = tmp_path / "own"
    own.write_text("4:memory:/m\n3:cpuset:/x\n1:cpu,cpuacct:/a/b\n0::/\n")
    assert cgroup_quota(tmp_path, own) == quota


def test_a_path_of_the_hosts_leads_to_the_containers_own_root(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    own = tmp_path / "own"
    own.write_text("0::/../../kubepods/pod1\n")
    assert cgroup_quota(tmp_path, own) == 1.5


def test_a_machine_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(("quota", "cpus"), [(None, 8), (2.9, 2), (0.5, 1), (64.0, 8)])
def test_the_lower_of_quota_and_affinity_is_taken(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("attendant.runtime.process.cgroup_quota", lambda: quota)
    assert available_cpus() == cpus


def test_processors_of_one_name_differ_by_family_and_model(tmp_path: Path) -> None:
    def described(cpuinfo: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(cpuinfo)
        return processor(path)

    cpuinfo = (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n"
        "stepping\t: 1\nflags\t\t: fpu avx2 avx512f avx512_vnni\n\n"
    )
    assert described(cpuinfo.format(25, 17) * 2) == "AMD EPYC, family 25 model 17 (avx2, avx512f, avx512_vnni)"
    assert described(cpuinfo.format(26, 2)) == "AMD EPYC, family 26 model 2 (avx2, avx512f, avx512_vnni)"
    # On ARM, the file has no model name. Only Linux has the file.
    assert described("processor\t: 0\nFeatures\t: fp asimd\n") == platform.machine()
    assert processor(tmp_path / "missing") == platform.machine()


def test_a_process_that_can_not_start_a_thread_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(UserError, match="ulimit -v"):
        on_a_thread(int, "a thread")


def test_work_that_ends_after_a_poll_timed_out_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers a fixed bug: the timeout of a poll was taken for an error of the work, and a server did not start."""
    done = Future.done

    def done_when_it_has_ended(future: Future[int]) -> bool:
        wait([future])
        return done(future)

    monkeypatch.setattr(Future, "done", done_when_it_has_ended)
    assert limited(seven_after_a_look, "the work") == 7
    with pytest.raises(TimeoutError, match="its own"):
        limited(fail_by_timeout, "the work")


def seven_after_a_look() -> int:
    time.sleep(2 * process.POLL_SECONDS)
    return 7


def fail_by_timeout() -> None:
    raise TimeoutError("its own")


def test_standard_streams_come_back_whichever_capture_ends_first(capfd: pytest.CaptureFixture[str]) -> None:
    """Covers threads that load models at the same time."""
    first, second = quiet_stderr(), quiet_stderr()
    captured = [first.__enter__()]
    os.write(2, b"one ")
    captured.append(second.__enter__())
    os.write(2, b"two ")
    print("dropped")
    first.__exit__(None, None, None)
    os.write(2, b"three")
    second.__exit__(None, None, None)
    assert [each.text for each in captured] == ["one two ", "two three"]
    print("seen")
    os.write(2, b"seen")
    assert capfd.readouterr() == ("seen\n", "seen")


def test_work_that_is_abandoned_gives_standard_streams_back(capfd: pytest.CaptureFixture[str]) -> None:
    ends, ended = threading.Event(), threading.Event()

    def hang() -> None:
        with quiet_stderr():
            ends.wait()
        ended.set()

    with pytest.raises(ResourceLimitExceeded, match="the work: not done after"):
        limited(hang, "the work", seconds=0.01)
    with quiet_stderr() as captured:
        os.write(2, b"captured")
        ends.set()
        ended.wait()
    assert captured.text == "captured"
    print("seen")
    os.write(2, b"seen")
    assert capfd.readouterr() == ("seen\n", "seen")


def test_standard_error_is_captured_in_a_program_whose_standard_streams_are_closed() -> None:
    program = (
        "import os; from attendant.runtime.process import quiet_stderr\n"
        "with quiet_stderr() as captured: os.write(2, b'native')\n"
        "assert captured.text == 'native' and os.fstat(2).st_rdev"
    )
    closed = ["bash", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(closed, cwd=ROOT, check=False, timeout=60).returncode == 0


def test_log_lines_of_a_server_that_loads_a_model_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stderr(only_failures=True):
        os.write(2, b"a line\n")
    with pytest.raises(ValueError, match="panic"), quiet_stderr(only_failures=True):
        os.write(2, b"dropped\n")
        raise ValueError("panic")
    assert capfd.readouterr().err == "a line\n"
