"""Trainings watched from outside: their configurations, and windows from lines of progress."""

import tomllib
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest

from benchmarks.__main__ import SUITES
from benchmarks.command import run
from benchmarks.harness.measurement import measure
from benchmarks.peers import decoders
from benchmarks.training.speed import Training
from benchmarks.training.toolkits import TOOLKITS, Toolkit, write_corpus
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


def test_marians_settings_have_every_value() -> None:
    template = Template((Path(decoders.__file__).parent / "marian.yml").read_text())
    assert template.get_identifiers() == ["vocabulary", "embedding", "width"]


def test_windows_come_from_lines_of_progress(training: Training, tmp_path: Path) -> None:
    (found,) = measure([replace(training, toolkit=toolkit(COUNTING)).system(tmp_path)], num_rounds=2)
    assert found.problem is None and found.system.name == "Counter fp32"
    assert len(found.samples["speed"]) == len(found.samples["cpu_speed"]) >= 4
    assert found.samples["parameters"] == [1234.0, 1234.0]
    assert found.median("speed") > QUICK.batch_tokens, "ten steps in 50 ms"


def test_a_training_that_ends_by_itself_is_no_figure(training: Training, tmp_path: Path) -> None:
    (found,) = measure([replace(training, toolkit=toolkit(ENDING)).system(tmp_path)], num_rounds=1)
    assert found.problem is not None and found.problem.endswith("no memory left")


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--minutes", "--requests"):
        with pytest.raises(SystemExit):
            run(SUITES, ["training", option, "0"])
        assert f"{option}: must be positive, got 0" in capsys.readouterr().err
