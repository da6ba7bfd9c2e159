"""The memory of a server with all its processes."""

import os
import signal
import subprocess
import sys

import pytest

from attendant.server.bench.host import Served

MEBIBYTES = 64
FAMILY = f"""
import os, time
held = bytearray(b"x") * ({MEBIBYTES} << 20)
for _ in range(2):
    if os.fork():
        time.sleep(60)
if WRITES:
    held[::4096] = b"y" * len(held[::4096])
print("ready", flush=True)
time.sleep(60)
"""
"""A process, one forked from it, and one forked from that, which may write to all pages."""


@pytest.mark.parametrize(("writes", "times"), [(False, 1), (True, 2)])
def test_what_forked_processes_share_counts_once(writes: bool, times: int) -> None:
    program = FAMILY.replace("WRITES", str(writes))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            assert times * MEBIBYTES < Served("", process.pid).resident_mib() < (times + 0.9) * MEBIBYTES
        finally:
            os.killpg(process.pid, signal.SIGKILL)
