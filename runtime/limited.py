"""Work that may not end, may take all memory, or can't be interrupted: a stranger's model, a library that traces."""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from attendant.runtime.errors import UserError
from attendant.runtime.quiet import speak_again

LOAD_SECONDS: Final = 120.0
LOAD_MIB: Final = 4096
"""What loading and checking one bundle may take, unless somebody says otherwise."""

MIB: Final = 2**20
POLL_SECONDS: Final = 0.02
"""A kernel hands out some 60 MB meanwhile."""

PAGE_BYTES: Final = resource.getpagesize()

T = TypeVar("T")

_given_up: list[threading.Thread] = []


class TookTooMuch(UserError):
    """Work that was given up. Its thread can't be stopped, so the process had better end."""


def limited(
    function: Callable[[], T],
    what: str,
    *,
    seconds: float = LOAD_SECONDS,
    mib: int = LOAD_MIB,
    remedy: str = "",
) -> T:
    """What the function returns or raises, as long as it keeps within its limits.

    It runs on a thread of its own: native code that does not end can't be interrupted, but it can be left behind.
    `exit_command` then ends the process without waiting for it.

    Args:
        what: begins the message, e.g. "the bundle x".
        seconds: of the clock.
        mib: memory that the process may grow by meanwhile; watched where the system tells it (Linux).
        remedy: ends the message.

    Raises:
        TookTooMuch: it did not keep within them.
    """
    began, had = time.monotonic(), resident_bytes()
    with _left_behind(function, "limited") as future:
        while True:
            try:
                return future.result(POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
            if (grown := (resident_bytes() - had) // MIB) > mib:
                raise TookTooMuch(f"{what}: took {grown} MiB of memory, may take {mib}{remedy}")
            if time.monotonic() - began > seconds:
                raise TookTooMuch(f"{what}: not done after {seconds:g} s{remedy}")


def interruptible(function: Callable[[], T]) -> T:
    """What the function returns or raises, unless Ctrl-C comes first, which it does not get to see.

    For libraries that swallow KeyboardInterrupt, or turn it into an error of theirs. As after `limited`, whoever is
    interrupted had better end the process.
    """
    with _left_behind(function, "interruptible") as future:
        return future.result()


@contextmanager
def _left_behind(function: Callable[[], T], name: str) -> Iterator[Future[T]]:
    """Calls the function on a thread; if it still runs at the block's end, it is given up."""
    thread, future = on_a_thread(function, name)
    try:
        yield future
    finally:
        if thread.is_alive() and not future.done():
            _given_up.append(thread)
            speak_again()


def on_a_thread(function: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Calls a function on a thread of its own, which the process does not wait for at its end."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as raised:  # whatever it is, who waits gets it
            future.set_exception(raised)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, future


def anything_given_up() -> bool:
    """Whether a thread still runs that nobody waits for."""
    return any(thread.is_alive() for thread in _given_up)


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError):
        return 0
