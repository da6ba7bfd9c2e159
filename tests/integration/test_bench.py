"""`attendant bench`, from the command line to the picture; on one processor, to be brief."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

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
    arguments = [
        str(tiny_bundle_path),
        "--data",
        str(data),
        "--seconds",
        "6",
        "--output",
        str(output),
        "--plan",
        "1000",
    ]
    printed, errors = started(environment, arguments).communicate(timeout=200)
    assert errors == ""
    assert "1 CPUs; sent: 3 of the 3 lines" in printed and "attendant serve" in printed
    assert "plan for 1,000 requests/s: " in printed
    figures = json.loads((output / "bench.json").read_text())
    assert figures["processor"] == processor() and f"\nprocessor: {processor()}\n" in printed
    assert figures["best"] == {"workers": 1, "threads": 1}
    assert [visit["clients"] for visit in figures["closed"]] == [1, 4, 32] and len(figures["open"]) == 4
    for visit in figures["closed"] + figures["open"]:
        assert 0 < visit["p50_ms"] <= visit["p99_ms"]
        assert visit["answered_per_second"] > 0 and visit["resident_mib"] > 10
    assert (output / "bench.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "attendant bench: the bundle nowhere is refused"),
        (["{bundle}", "--beam-size", "99"], "attendant bench: --beam-size is 99, must be 1 to "),
        (["{bundle}", "--plan", "-1"], "attendant bench: --plan is -1, must be a positive number"),
        (["{bundle}/manifest.json", "--plan", "5"], "attendant bench: {bundle}/manifest.json is no bench.json"),
        (["{bundle}", "--seconds", "1"], "attendant bench: --seconds is 1, must be 3 or more on this host of 1 CPUs"),
    ],
)
def test_a_mistake_is_a_line(
    environment: dict[str, str], tiny_bundle_path: Path, arguments: list[str], line: str
) -> None:
    process = started(environment, [word.format(bundle=tiny_bundle_path) for word in arguments])
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 2
    assert errors.startswith(line.format(bundle=tiny_bundle_path)) and "Traceback" not in errors


def test_ctrl_c_ends_the_server_too(environment: dict[str, str], tiny_bundle_path: Path, tmp_path: Path) -> None:
    process = started(environment, [str(tiny_bundle_path), "--output", str(tmp_path)])
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]  # the model, the processor, the first visit
    assert lines[1].startswith("processor: ")
    servers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "\nattendant bench: interrupted\n")
    assert servers and not psutil.wait_procs(servers, timeout=20)[1]
