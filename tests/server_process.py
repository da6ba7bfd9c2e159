"""`python -m server` in its own process, which tests start, observe from outside, and end."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import psutil
from prometheus_client.parser import text_string_to_metric_families

from attendant.server.bench.command import addresses, resident_bytes
from benchmarks.harness import tree
from tests.paths import ROOT

MEBIBYTE = 2**20
MAX_LOG_BYTES_READ = 1 << 24
LAST_CHARACTERS = 4000


@dataclass(frozen=True)
class Running:
    """A running server.

    Attributes:
        line: the first line of its output, which has its addresses.
        target: the address of its gRPC port.
    """

    process: "subprocess.Popen[str]"
    line: str
    target: str
    metrics_port: int
    log_file: IO[bytes]

    def metrics(self) -> dict[str, float]:
        """Returns the value of each sample by its name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
            return {
                f"{sample.name}{json.dumps(sample.labels, sort_keys=True) if sample.labels else ''}": sample.value
                for family in families
                for sample in family.samples
            }

    def resident_mebibytes(self) -> float:
        """Returns the resident memory of the server and its workers."""
        total = 0
        for process in tree(self.process.pid):
            with suppress(OSError):  # it has ended meanwhile
                total += resident_bytes(process.pid)
        return total / MEBIBYTE

    def num_descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    def num_threads(self) -> int:
        return psutil.Process(self.process.pid).num_threads()

    def num_connections(self) -> int:
        """Returns the number of established connections to all of its ports."""
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(connection.status == psutil.CONN_ESTABLISHED for connection in connections)

    def log(self) -> str:
        """Returns its standard error so far, at most the first 16 MiB."""
        # Read without seeking: the server shares the file's position and writes there.
        return os.pread(self.log_file.fileno(), MAX_LOG_BYTES_READ, 0).decode(errors="surrogateescape")

    def num_log_bytes(self) -> int:
        return os.fstat(self.log_file.fileno()).st_size


def command(*arguments: str, program: str = "server") -> tuple[list[str], dict[str, str]]:
    """Returns a server's command line, and the environment to run it in.

    Args:
        program: the module that Python runs. It takes the server's options.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ATTENDANT_", "GRPC_"))}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-m", program, *arguments], environment


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until `holds` returns True."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "it never came to be"
        time.sleep(0.05)


@contextmanager
def server(*arguments: str, program: str = "server", num_threads: int = 1) -> Iterator[Running]:
    """Starts a server on free ports; kills it at the end if it still runs.

    If a test fails meanwhile, the end of the server's log is printed.
    """
    options = "--port", "0", "--metrics-port", "0", "--threads", str(num_threads)
    line, environment = command(*arguments, *options, program=program)
    with (
        tempfile.TemporaryFile() as log_file,
        subprocess.Popen(
            line, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log_file, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line_of_start = process.stdout.readline()
            places = addresses(line_of_start)
            assert places, line_of_start + os.pread(log_file.fileno(), MAX_LOG_BYTES_READ, 0).decode(errors="replace")
            running = Running(
                process, line_of_start, places["serving"], int(places["metrics"].rpartition(":")[2]), log_file
            )
            try:
                yield running
            except BaseException:
                print(running.log()[-LAST_CHARACTERS:])
                raise
        finally:
            if process.poll() is None:
                process.kill()
