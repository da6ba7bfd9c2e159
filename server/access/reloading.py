"""What files hold, followed while the server runs: certificates and tokens are exchanged without a restart."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from attendant.runtime.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")

State = tuple[tuple[int, ...], ...]


class Reloaded(Generic[T]):
    """What some files hold together, read anew when they change.

    A change counts once two looks have found the files in the same state, so that a file that is still being written,
    or a key whose certificate is yet to come, is left alone. What can't be read changes nothing: the former value
    stays, and the log gets one line.

    Attributes:
        value: what the files held when they were last whole; any thread may read it.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Reads the files.

        Args:
            read: raises UserError where they can't be used. Its message goes to the log, so it quotes no contents.

        Raises:
            UserError: from `read`.
        """
        self._paths = tuple(paths)
        self._read = read
        self._taken = self._last_seen = self._state()
        self.value = read()

    def look(self) -> None:
        """Looks at the files, and reads them where they have changed and are at rest."""
        state, before = self._state(), self._last_seen
        self._last_seen = state
        if state != self._taken and state == before:
            self.reload()

    def reload(self) -> None:
        """Reads the files."""
        state = self._state()
        names = ", ".join(map(str, self._paths))
        try:
            value = self._read()
        except UserError as error:
            self._taken = state
            log.warning("not reloaded", extra={"files": names, "reason": str(error)})
            return
        # Changed while it was read: the parts may not belong together.
        if self._state() == state:
            self._taken, self.value = state, value
            log.info("reloaded", extra={"files": names})

    def _state(self) -> State:
        return tuple(map(state_of, self._paths))


def state_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_bytes(option: str, path: Path) -> bytes:
    """A file that an option names.

    Raises:
        UserError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option}: {path} can't be read: {error.strerror or error}") from None
