"""A server on this host for as long as it is measured."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.errors import UserError, one_line

END_SECONDS = 10.0
MANY = 1 << 16
FOR_ONE_ADDRESS = ("--light-rows", str(MANY), "--max-waiting", str(MANY))
"""The load generator stands for many clients, and the server sees one address."""

OWN = ("ATTENDANT_BUNDLES", "ATTENDANT_TLS_", "ATTENDANT_TOKENS", "ATTENDANT_ADMIN_TOKENS", "ATTENDANT_NO_HTTP")
"""Variables that the measured server is started without: calls come from this machine alone."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that serves.

    Attributes:
        target: HOST:PORT, of gRPC.
    """

    target: str
    pid: int

    def resident_mib(self) -> float:
        """Memory of the server's process and all that it has started; 0 where the system has no /proc."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        own, found = {self.pid}, 0
        while len(own) > found:
            found = len(own)
            own |= {pid for pid, parent in parents.items() if parent in own}
        taken = 0
        for pid in own:
            with suppress(OSError):
                taken += resident_bytes(pid)
        return taken / 2**20


def resident_bytes(pid: int) -> int:
    """Resident memory of a process. What it shares with processes forked from one counts once for them together; the
    files that it maps, as ever, for each.

    Raises:
        OSError: it has ended, or the system has no /proc.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    anonymous = kilobytes.get("Anonymous", 0)
    return 1024 * (kilobytes.get("Rss", 0) - anonymous + kilobytes.get("Pss_Anon", anonymous))


def addresses(said: str) -> dict[str, str]:
    """HOST:PORT of `serving` and of `metrics`, from what a server has printed; empty until it serves."""
    line = re.search(r"serving on .*\n", said)
    return dict(re.findall(r"(serving|metrics) on (\S+:\d+)", line[0])) if line else {}


@contextmanager
def serving(bundle: Path, options: Sequence[str]) -> Iterator[Served]:
    """Starts `python -m attendant.server`; it is ended with the block.

    Its other options come from the environment, as they would be deployed.

    Raises:
        UserError: it does not come up; its own last line.
    """
    command = [sys.executable, "-m", "attendant.server", str(bundle), "--host", "127.0.0.1", "--log-level", "warning"]
    command += ["--port", "0", "--metrics-port", "0", *FOR_ONE_ADDRESS, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        # A group of its own: Ctrl-C is for the bench, which ends the server.
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = addresses(process.stdout.readline())
            if not found:
                process.wait(END_SECONDS)
                log.seek(0)
                lines = log.read().strip().splitlines()
                raise UserError(one_line(lines[-1]) if lines else "the server ended before it served, without a word")
            yield Served(found["serving"], process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()
