"""Two processes match single-process training up to rounding, and only the first of them writes and prints."""

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant.training.run.loading import load_run
from tests.paths import ROOT
from tests.ports import free_ports
from tests.unit.training.comparing import events
from tests.unit.training.conftest import Command, Runs

# SGD, because Adam divides by the gradient's magnitude and so amplifies the rounding of a gradient near zero.
OPTIONS = (
    "optimizer.kind=sgd",
    "optimizer.momentum=0.9",
    "optimizer.learning_rate=0.5",
    "validation.metric=loss",
    "training.accumulate_batches=3",
    "training.ema_decay=0.9",
    "training.log_every_steps=1",
)


ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "OMP_NUM_THREADS": "1"}

# Trains, then prints the names of gloo's remaining threads. Such a thread may wait for the interpreter, which waits for
# the thread.
PRINTS_THREADS = """
import os, sys
from attendant.training.__main__ import main
main(sys.argv[1:])
threads = (open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task"))
print("left behind:", *(name for name in threads if "gloo" in name), flush=True)
"""


def launch_machines(recipe: Path, output: Path, *arguments: object) -> str:
    """Runs the commands of both machines of deploy/torchrun on this machine.

    Returns:
        The standard output of both.
    """
    lines = (ROOT / "deploy" / "torchrun" / "job.yaml").read_text().partition("command:\n")[2].splitlines()
    words = [
        line.strip().removeprefix("- ") for line in itertools.takewhile(lambda line: line.strip()[0] == "-", lines)
    ]
    assert words[0] == "torchrun" and "--nnodes=2" in words
    (port,) = free_ports(1)
    ours = {
        "--master_addr=training-0.training": "--master_addr=127.0.0.1",
        "--master_port=29500": f"--master_port={port}",
        "recipes/mine.toml": str(recipe),
        "--output=runs/mine": f"--output={output}",
    }
    assert ours.keys() <= set(words)
    words = [ours.get(word, word) for word in words[1:]]
    torchrun = sys.executable, "-m", "torch.distributed.run"
    lines_of_machines = [
        [*torchrun, *(word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in words), *map(str, arguments)]
        for index in range(2)
    ]
    return output_of(lines_of_machines, [ENVIRONMENT] * 2)


def launch_processes(*arguments: object) -> str:
    """Runs two training processes with the variables that torchrun sets, and so without torchrun's own two processes.

    Returns:
        The standard output of both.
    """
    (port,) = free_ports(1)
    variables = {"TORCHELASTIC_RUN_ID": "mine", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    line = [sys.executable, *map(str, arguments)]
    return output_of([line] * 2, [ENVIRONMENT | variables | {"RANK": str(rank)} for rank in range(2)])


def output_of(lines: Sequence[list[str]], environments: Sequence[dict[str, str]]) -> str:
    """Runs command lines at the same time. Returns their standard output; all must succeed."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(line, cwd=ROOT, env=environment, **pipes)
        for line, environment in zip(lines, environments, strict=True)
    ]
    message = [process.communicate(timeout=200) for process in started]
    assert all(process.returncode == 0 for process in started), message
    return "".join(out for out, _ in message)


def losses(output: Path) -> list[float]:
    return [event["loss"] for event in events(output)]


# Each process has its own random numbers, so the dropout is too small to drop anything.
def test_two_processes_match_one_process(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    # Batches of five pairs: the processes have unequal shares.
    options = (*OPTIONS, "model.dropout=1e-9", "batches.max_tokens=40")
    overrides = [part for option in options for part in ("--set", option)]
    succeeds(tiny_recipe, "--output", tmp_path / "1", *overrides)
    program = tmp_path / "prints_threads.py"
    program.write_text(PRINTS_THREADS)
    message = launch_processes(program, tiny_recipe, "--output", tmp_path / "2", *overrides)
    assert "2 processes" in message and message.count("trained 8 steps") == 1
    assert [line for line in message.splitlines() if line.startswith("left behind:")] == ["left behind:"] * 2
    each, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    # The journal has each step and validation once.
    assert len(each) == 10
    assert two == pytest.approx(each, rel=1e-6)
    alone, together = (load_run(tmp_path / name, "last") for name in ("1", "2"))
    for name, weight in alone.model.state_dict().items():
        difference = together.model.state_dict()[name] - weight
        assert difference.norm() <= 1e-6 * weight.norm(), name
    assert together.state.step == 8
    # One process resumes the run of two.
    for number in (1, 2):
        more = ("--set", "training.max_epochs=3", "--resume")
        succeeds(tiny_recipe, "--output", tmp_path / str(number), *overrides, *more)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-5)


@pytest.mark.slow
def test_two_machines_resume_exactly(tmp_path: Path, tiny_recipe: Path) -> None:
    """Checks that two processes with dropout, resumed after an epoch, end with the weights of an uninterrupted run."""
    overrides = [part for option in OPTIONS for part in ("--set", option)]
    launch_machines(tiny_recipe, tmp_path / "whole", *overrides)
    launch_machines(tiny_recipe, tmp_path / "parts", *overrides, "--set", "training.max_epochs=1")
    launch_machines(tiny_recipe, tmp_path / "parts", *overrides)
    whole, parts = (load_run(tmp_path / name, "last") for name in ("whole", "parts"))
    assert whole.state.step == parts.state.step == 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(parts.model.state_dict()[name], weight), name


def test_only_the_first_process_prints_an_error(
    tmp_path: Path, tiny_recipe: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (tiny_recipe, "--output", tmp_path / "run", "--set", "training.max_epoch=3")
    for name, value in (("TORCHELASTIC_RUN_ID", "mine"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    status, _, errors = command(*arguments)
    assert (status, len(errors.splitlines())) == (2, 1) and "unknown key training.max_epoch" in errors
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit, match="2"):
        command(*arguments)
