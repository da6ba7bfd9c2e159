"""Trainings watched from outside: their configurations, and windows from lines of progress."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import measure
from benchmarks.training import TOOLKITS, Toolkit, Training, write_corpus
from benchmarks.workload import QUICK

COUNTING = """
import time
print("1,234 parameters", flush=True)
for step in range(1, 1000):
    print(f"Step {step}0/", flush=True)
    while time.process_time() < 0.05 * step:
        pass
"""
ENDING = "print('Step 10/'); print('no memory left')"


@pytest.fixture
def training(tmp_path: Path) -> Training:
    corpus, toolkit = write_corpus(QUICK, tmp_path / "data"), TOOLKITS["attendant"]
    return Training(toolkit=toolkit, workload=QUICK, corpus=corpus, folder=tmp_path / "run", seconds=0.5)


def toolkit(program: str) -> Toolkit:
    return Toolkit(
        name="Counter",
        differences="it counts",
        template="attendant.toml",
        arguments=("-c", program),
        step_line=r"Step (\d+)/",
        parameters_line=r"([\d,]+) parameters",
    )


@pytest.mark.parametrize("name", TOOLKITS)
def test_configurations_have_every_value(name: str, training: Training) -> None:
    arguments = replace(training, toolkit=TOOLKITS[name]).configure()
    config = training.folder / TOOLKITS[name].template
    assert str(config) in arguments
    text = config.read_text()
    assert "$" not in text
    assert str(QUICK.hidden_size) in text and str(training.corpus / "train") in text
    if name == "attendant":
        recipe = tomllib.loads(text)
        assert recipe["training"]["precision"] == "fp32" and recipe["model"]["decoder"]["input_feeding"] is True
        assert recipe["batches"]["max_tokens"] == 2 * QUICK.batch_tokens


def test_windows_come_from_lines_of_progress(training: Training, tmp_path: Path) -> None:
    (measurement,) = measure([replace(training, toolkit=toolkit(COUNTING)).system(tmp_path)], num_rounds=2)
    assert measurement.problem is None and measurement.system.name == "Counter fp32"
    assert len(measurement.samples["speed"]) == len(measurement.samples["cpu_speed"]) >= 4
    assert measurement.samples["parameters"] == [1234.0, 1234.0]
    assert measurement.median("speed") > QUICK.batch_tokens, "ten steps in 50 ms"


def test_a_training_that_ends_by_itself_is_no_figure(training: Training, tmp_path: Path) -> None:
    (measurement,) = measure([replace(training, toolkit=toolkit(ENDING)).system(tmp_path)], num_rounds=1)
    assert measurement.problem is not None and measurement.problem.endswith("no memory left")
