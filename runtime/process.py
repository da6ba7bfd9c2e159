"""The process and its host: its processor and CPUs, its standard error, and work with limits of time and memory.

Native libraries write to standard error at any log level. A model from elsewhere may run endlessly, or take all
memory; a library that traces may ignore an interruption.
"""

import io
import os
import platform
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from attendant.runtime.errors import UserError

CPUINFO: Final = Path("/proc/cpuinfo")
INSTRUCTIONS: Final = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""Instruction sets that make products of matrices much faster, as /proc/cpuinfo names them."""

MAX_THREADS: Final = 1024  # Threads or workers: a machine that can't start more would take long to find that out.
CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """Returns the CPUs that this process may use: the lower of its affinity and its container's quota, at least 1.

    `os.cpu_count()` counts the machine's: a pool of that size in a container with a small quota is throttled.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def cgroup_quota(root: Path = CGROUP_ROOT, own_cgroup: Path = OWN_CGROUP) -> float | None:
    """Returns the CPUs that cgroup v2 or v1 grants this process; None if there is no limit.

    A limit holds for everything below it, so the lowest on the way up to the root counts. In a container the path may
    be the host's and not exist: then the root is the container's own.
    """
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines for quota in _quotas_of(root, line)]
    return min(quotas, default=None)


def _quotas_of(root: Path, line: str) -> Iterator[float]:
    """Yields the limits of a line of /proc/self/cgroup, hierarchy:controllers:path, and of its parents.

    A line of version 2 has no controllers.
    """
    _, controllers, path = line.split(":", 2)
    if not controllers:
        mount, quota_of = root, _quota_v2
    elif "cpu" in controllers.split(","):
        # Mounted under the names of its controllers, or linked under its own name.
        mount, quota_of = root / (controllers if (root / controllers).is_dir() else "cpu"), _quota_v1
    else:
        return
    folder = mount / path.lstrip("/")
    for level in (folder, *folder.parents):
        if (level == mount or mount in level.parents) and (quota := quota_of(level)) is not None:
            yield quota


def _quota_v2(folder: Path) -> float | None:
    """Reads `cpu.max`: "<microseconds> <period>", or "max <period>"."""
    try:
        granted, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)


def _quota_v1(folder: Path) -> float | None:
    """Reads `cpu.cfs_quota_us`, -1 for none, and `cpu.cfs_period_us`."""
    try:
        granted, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return granted / period if granted > 0 else None


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Returns the processor's name, family, model and instruction sets, as far as /proc/cpuinfo has them.

    Virtual machines give processors of several generations one name, while their integer products differ by a factor of
    two: family and model distinguish them.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    facts: dict[str, str] = dict(re.findall(r"^(model name|cpu family|model|flags)\s*: (.*)$", text, re.MULTILINE))
    name = facts.get("model name", platform.machine())
    if "model" in facts and "cpu family" in facts:
        name += f", family {facts['cpu family']} model {facts['model']}"
    if "flags" not in facts:
        return name
    flags = facts["flags"].split()
    return f"{name} ({', '.join(flag for flag in INSTRUCTIONS if flag in flags)})"


def open_standard_streams() -> None:
    """Opens closed streams (`2>&-`, a daemon's): else other files and sockets would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class CapturedText:
    """The text that was written to standard error; set when the context has ended."""

    text = ""


class _Capture:
    """Keeps standard error in memory, and drops standard output of Python code.

    Attributes:
        current: the capture that all threads share; None if there is none.
        num_users: contexts that have not ended.
    """

    current: "ClassVar[_Capture | None]" = None

    def __init__(self) -> None:
        self.num_users = 0
        open_standard_streams()
        # In memory, because a read-only file system has no folder for temporary files.
        self._kept = os.memfd_create("attendant-stderr")
        self._stderr, self._stdout = os.dup(2), sys.stdout
        os.dup2(self._kept, 2)
        sys.stdout = io.StringIO()  # Other threads may flush it, e.g. at the end of a command.

    def size(self) -> int:
        return os.fstat(self._kept).st_size

    def text_from(self, begin: int) -> str:
        return os.pread(self._kept, self.size() - begin, begin).decode(errors="replace")

    def end(self) -> None:
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        sys.stdout = self._stdout
        _Capture.current = None

    def close(self) -> None:
        os.close(self._kept)


_capture_lock = threading.Lock()


@contextmanager
def quiet_stderr(*, only_failures: bool = False) -> Iterator[CapturedText]:
    """Captures standard error, for the whole process, also of native code.

    Used only while a model is loaded. Threads that capture at the same time share the buffer, so each may also get the
    text of others.

    Args:
        only_failures: write the text to standard error if the block succeeds: a server that loads a further model logs
            meanwhile.
    """
    captured = CapturedText()
    with _capture_lock:
        capture = _Capture.current = _Capture.current or _Capture()
        capture.num_users += 1
        begin = capture.size()
    has_failed = True
    try:
        yield captured
        has_failed = False
    finally:
        with _capture_lock:
            captured.text = capture.text_from(begin)
            capture.num_users -= 1
            if not capture.num_users:
                if capture is _Capture.current:
                    capture.end()
                capture.close()
        if only_failures and not has_failed:
            with suppress(OSError):  # its disk may be full
                os.write(2, captured.text.encode())


LOAD_SECONDS: Final = 120.0
LOAD_MIB: Final = 4096
"""Default limits of loading and checking one bundle."""
MIB: Final = 2**20
NO_THREAD: Final = (
    "no thread can be started: allow this process more memory (ulimit -v) or threads (ulimit -u, pids.max)"
)
POLL_SECONDS: Final = 0.02  # A process grows by some 60 MB at most in this time.
PAGE_BYTES: Final = resource.getpagesize()

T = TypeVar("T")

_abandoned: list[threading.Thread] = []


class ResourceLimitExceeded(UserError):
    """Work that exceeded its limits. Its thread can't be stopped, so the process should end."""


def limited(
    function: Callable[[], T], subject: str, *, seconds: float = LOAD_SECONDS, mib: int = LOAD_MIB, remedy: str = ""
) -> T:
    """Calls the function and returns its result, within limits of time and memory.

    It runs on a thread of its own: native code can't be interrupted, but the thread can be abandoned. `exit_command`
    then ends the process without waiting for it.

    Args:
        subject: begins the message, e.g. "the bundle x".
        seconds: of the clock.
        mib: growth of the process's memory; checked on Linux.
        remedy: ends the message.

    Raises:
        ResourceLimitExceeded: it exceeded them.
    """
    began, had = time.monotonic(), resident_bytes()
    with abandonable(function, "limited") as future:
        # `future.result(timeout)` raises TimeoutError, which the function may raise as well.
        while not wait([future], POLL_SECONDS).done:
            if (grown := (resident_bytes() - had) // MIB) > mib:
                raise ResourceLimitExceeded(f"{subject}: took {grown} MiB of memory, may take {mib}{remedy}")
            if time.monotonic() - began > seconds:
                raise ResourceLimitExceeded(f"{subject}: not done after {seconds:g} s{remedy}")
        return future.result()


def interruptible(function: Callable[[], T]) -> T:
    """Calls the function on a thread and returns its result, so that Ctrl-C interrupts only the caller.

    For libraries that swallow KeyboardInterrupt, or turn it into an error of their own. After an interruption the
    process should end.
    """
    with abandonable(function, "interruptible") as future:
        return future.result()


@contextmanager
def abandonable(function: Callable[[], T], name: str) -> Iterator[Future[T]]:
    """Calls the function on a thread; if it still runs at the block's end, it is abandoned."""
    thread, future = on_a_thread(function, name)
    try:
        yield future
    finally:
        if thread.is_alive() and not future.done():
            _abandoned.append(thread)
            with _capture_lock:
                if _Capture.current is not None:  # the abandoned work may never end it
                    _Capture.current.end()


def on_a_thread(function: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Calls a function on a daemon thread. Raises UserError: no thread can be started."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as raised:
            future.set_exception(raised)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise UserError(NO_THREAD) from None
    return thread, future


def has_abandoned_work() -> bool:
    return any(thread.is_alive() for thread in _abandoned)


def resident_bytes() -> int:
    """Returns the memory of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError):
        return 0
