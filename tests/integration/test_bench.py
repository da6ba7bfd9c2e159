"""Tests of `attendant bench`, from the command line to the figures. One processor keeps them short."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from attendant.runtime.process import processor

PROGRAM = (
    "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    "from attendant_client.command import main; sys.exit(main(['bench', *sys.argv[1:]]))"
)


def started(environment: dict[str, str], arguments: Sequence[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_bundle_is_measured(environment: dict[str, str], tiny_bundle_path: Path, tmp_path: Path) -> None:
    data, output = tmp_path / "texts", tmp_path / "found"
    data.write_text("abc\nface\njig\n")
    options = {"--data": str(data), "--seconds": "3", "--output": str(output)}
    arguments = [str(tiny_bundle_path), *(part for option in options.items() for part in option)]
    # All calls come from one address, so the limits per client of a deployment must not apply to them.
    limited = environment | {"ATTENDANT_MAX_CLIENT_REQUESTS": "1", "ATTENDANT_CLIENT_REQUESTS_PER_SECOND": "1"}
    # Nor must that of the wait: closed loops may have more clients than there are rows.
    limited |= {"ATTENDANT_MAX_ROWS": "8", "ATTENDANT_MAX_WAIT_SECONDS": "0.001"}
    # The command also has no credentials of the deployment's clients.
    limited |= {"ATTENDANT_TOKENS": "tokens", "ATTENDANT_HEALTH": "closed", "ATTENDANT_REFLECTION": "closed"}
    # The environment's proxy must not be used for this machine.
    limited |= {"http_proxy": "http://127.0.0.1:9"}
    printed, errors = started(limited, arguments).communicate(timeout=200)
    assert errors == ""
    assert "1 CPUs; sent: 3 of the 3 lines" in printed and "attendant serve" in printed
    figures = json.loads((output / "bench.json").read_text())
    assert figures["processor"] == processor() and f"\nprocessor: {processor()}\n" in printed
    assert figures["best"] == {"workers": 1, "threads": 1}
    assert [visit["clients"] for visit in figures["closed"]] == [1, 4, 32] and len(figures["open"]) == 4
    for visit in figures["closed"] + figures["open"]:
        assert 0 < visit["p50_ms"] <= visit["p99_ms"]
        assert visit["answered_per_second"] > 0 and visit["resident_mib"] > 10


def test_ctrl_c_ends_the_server_too(environment: dict[str, str], tiny_bundle_path: Path, tmp_path: Path) -> None:
    process = started(environment, [str(tiny_bundle_path), "--seconds", "3", "--output", str(tmp_path)])
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]  # the model, the processor, the first visit
    assert lines[1].startswith("processor: ")
    servers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "\nattendant bench: interrupted\n")
    assert servers and not psutil.wait_procs(servers, timeout=20)[1]
