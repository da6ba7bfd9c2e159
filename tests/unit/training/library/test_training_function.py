"""Tests of `attendant.train`: equality with the command, pairs in memory, callbacks, interruptions, and refusals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attendant
from attendant.training.commands.runs import average_run
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.paths import ROOT
from tests.unit.training.comparing import assert_same_weights, events, steps_of
from tests.unit.training.conftest import CopyRun, Runs

SHORT = {"training.max_epochs": 1}


def assert_same_training(run: Path, other: Path) -> None:
    """Checks that the weights and the journals are equal, except the values that depend on the clock."""
    assert_same_weights(run, other)
    for event, same in zip(events(run), events(other), strict=True):
        assert {**event, "seconds": 0, "tokens_per_second": 0} == {**same, "seconds": 0, "tokens_per_second": 0}


def pairs_of(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()]


class Watcher(attendant.TrainingCallback):
    """Records the calls. It can run an action at a step or in another method."""

    def __init__(self, calls: list[Any], name: str = "", **actions: Callable[[], object]) -> None:
        self.calls, self.name, self.actions = calls, name, actions

    def _called(self, method: str, value: object) -> None:
        self.calls.append((self.name, method, value))
        if action := self.actions.get(method):
            action()

    def begin(self, start: attendant.TrainingStart) -> None:
        self._called("begin", start)

    def step(self, progress: attendant.StepProgress) -> None:
        self._called("step", progress)
        if action := self.actions.get(f"step_{progress.step}"):
            action()

    def record(self, record: attendant.Record) -> None:
        self._called("record", record)

    def end(self, error: BaseException | None) -> None:
        self._called("end", error)


def test_the_function_equals_the_command_and_prints_nothing(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = attendant.train(tiny_recipe, output=tmp_path / "function", overrides=["training.ema_decay=0.99"])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    message = succeeds(tiny_recipe, "--output", tmp_path / "command", "--set", "training.ema_decay=0.99")
    assert_same_training(tmp_path / "function", tmp_path / "command")
    for name in ("recipe.toml", "evaluation.json", "data.json", "source_tokenizer.json"):
        assert (tmp_path / "function" / name).read_text() == (tmp_path / "command" / name).read_text(), name
    # All that the command prints is in the result.
    assert trained.results is not None and set(trained.results[0].values) == {"wer", "per"}
    assert all(note in message for note in trained.notes) and "48 of 48 pairs" in trained.notes[0]
    assert f"best at step {trained.best_step}" in message and "best at step" in str(trained)
    assert "validation loss" in message
    assert trained.recipe == Run(trained.path).recipe() and trained.data["num_pairs"]["train"] == 48
    assert trained.step == 16 and trained.seconds > 0 and Path(trained) == tmp_path / "function"


def test_a_recipe_of_tables_may_have_pairs_in_memory(tmp_path: Path, tiny_recipe: Path, copy_run: CopyRun) -> None:
    tables = tomllib.loads(tiny_recipe.read_text())
    for split in ("train", "validation", "test"):
        tables["data"][split] = pairs_of(Path(tables["data"][split]))
    before = json.dumps(tables)
    trained = attendant.train(tables, output=tmp_path / "memory")
    assert json.dumps(tables) == before, "the caller's tables are left alone"
    assert_same_training(copy_run("file"), tmp_path / "memory")
    # A finished run's recipe can be trained again, and one split can be changed alone.
    again = attendant.train(trained.recipe, output=tmp_path / "again", overrides={"data.test": None, **SHORT})
    assert again.results is None and again.step == 8


def test_a_run_with_its_pairs_may_be_moved_and_averaged(
    tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = pairs_of(tmp_path / "validation.tsv")
    monkeypatch.chdir(tmp_path)
    attendant.train(
        tiny_recipe,
        output="runs/mine",
        overrides={"data.test": held_out, "data.validation": iter(held_out), **SHORT},
    )
    assert str(tmp_path) not in (tmp_path / "runs/mine/recipe.toml").read_text().partition("[data.test]")[2]
    shutil.move("runs/mine", tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    average_run(Run(Path("../moved")), 1, Path("mean"))
    for path in ("../moved", "mean"):
        assert attendant.evaluate(path)[0].evaluation.num_examples == 16
    resumed = attendant.train(
        tiny_recipe,
        output="../moved",
        overrides={"data.test": held_out, "data.validation": [list(pair) for pair in held_out]},
        resume=True,
    )
    assert resumed.step == 16


def test_pairs_alone_have_a_recipe_chosen_and_resume(tmp_path: Path) -> None:
    pairs = [(f"{number}", " ".join(str(number))) for number in range(100, 220)]
    few = {"training.max_steps": 3, "model.hidden_size": 8, "model.embedding_size": 8, "training.num_threads": 1}
    trained = attendant.train(pairs, output=tmp_path / "run", overrides=few)
    assert trained.notes[0].startswith("recipe chosen from 120 pairs") and trained.step == 3
    # Each run has its own copy of the pairs, and both are measured on one test split.
    attendant.train(pairs, output=tmp_path / "seed2", overrides=few | {"seed": 2})
    assert len(attendant.evaluate([tmp_path / "run", tmp_path / "seed2"])[1].differences) == 2
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    attendant.train(tmp_path / "pairs.tsv", output=tmp_path / "file", overrides=few)
    assert_same_training(tmp_path / "run", tmp_path / "file")
    with pytest.raises(attendant.UserError, match="have changed since it was begun"):
        attendant.train(pairs[1:], output=tmp_path / "run", resume=True)
    assert attendant.train(pairs, output=tmp_path / "run", resume=True, overrides={"training.max_steps": 5}).step == 5
    assert attendant.train([tmp_path / "pairs.tsv"], output=tmp_path / "file", resume=True).step == 3
    shutil.copy(tmp_path / "pairs.tsv", tmp_path / "other.tsv")
    (tmp_path / "pairs.tsv").unlink()
    assert attendant.train([tmp_path / "other.tsv"], output=tmp_path / "file", resume=True).step == 3, "renamed data"
    with pytest.raises(attendant.UserError, match="have changed since it was begun"):
        attendant.train([tmp_path / "other.tsv"] * 2, output=tmp_path / "file", resume=True)


class Names(type):
    def __repr__(cls) -> str:
        return "   en  fr\n" * 300


class Frame(metaclass=Names):
    """A data frame, which is iterated over by its columns and shown in many lines."""

    columns = ("en", "fr")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (None, {}, "recipe=None: must be a recipe's file, folder, name or tables, files of pairs, or pairs in memory"),
        ([3, "a"], {}, r"data.train\[0\] = 3: must be a pair of texts"),
        ([], {}, r"^data\.train has no pairs"),
        ([("a", " ")], {}, r"^data\.train has no pairs"),
        ([("a", "b")], {}, r"^data\.train has 1 different sources, and 20 are needed"),
        (Frame(), {}, r"data\.train is a data frame: give its rows"),
        (Frame, {}, r"recipe=.{1,400}: must be a recipe's file"),
        ("a\0b", {}, r"recipe='a\\x00b': must be a path"),
        (["tiny.toml", ""], {}, "recipe='': must be a path"),
        ({}, {"output": None}, "output: a recipe or pairs in memory have no name"),
        ([("a", "b"), ("a",)], {}, r"data.train\[1\] = \('a',\): must be a pair of texts, \(source, target\)"),
        ([{"en": "a", "fr": "b"}], {}, r"data.train\[0\] = \{'en': 'a', 'fr': 'b'\}: must be a pair of texts"),
        ("tiny.toml", {"overrides": {"": 3}}, "must be table.key=value"),
        ("tiny.toml", {"overrides": None}, "--set None: must be table.key=value"),
        ("tiny.toml", {"output": 3}, "output=3: must be a path"),
        ("tiny.toml", {"overrides": {"data.test": [("a", "")]}}, "test-.*jsonl:1: the target is empty"),
        ("tiny.toml", {"output": "tiny.toml"}, "tiny.toml is a file: name a folder for the run by --output"),
        ("tiny.toml", {"callbacks": Watcher}, "callbacks = <class .*Watcher'>: must be a list of objects"),
        ("tiny.toml", {"callbacks": [print]}, "callbacks = .*: must be a list of objects"),
    ],
)
def test_invalid_arguments_are_one_error_and_leave_no_files(
    tmp_path: Path,
    tiny_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: Any,
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(attendant.UserError, match=message):
        attendant.train(recipe, **{"output": "runs/run"} | options)
    assert not (tmp_path / "runs").exists()


def test_callbacks_are_called_in_order_with_the_events(tmp_path: Path, tiny_recipe: Path) -> None:
    calls: list[Any] = []
    trained = attendant.train(
        tiny_recipe, output=tmp_path / "run", overrides=SHORT, callbacks=[Watcher(calls, "a"), Watcher(calls, "b")]
    )
    assert [call[:2] for call in calls[:4]] == [("a", "begin"), ("b", "begin"), ("a", "step"), ("b", "step")]
    assert [call[:2] for call in calls[-2:]] == [("b", "end"), ("a", "end")] and calls[-1][2] is None
    mine = [(method, value) for name, method, value in calls if name == "a"]
    # A record covers two steps and comes before the second one's call. The epoch ends with a validation.
    assert [method for method, _ in mine] == ["begin", *["step", "record", "step"] * 4, "record", "end"]
    start = mine[0][1]
    assert (start.path, start.recipe, start.step, start.num_steps) == (trained.path, trained.recipe, 0, 8)
    assert start.num_parameters == load_run(trained.path).model.num_parameters
    steps = [value for method, value in mine if method == "step"]
    assert [step.step for step in steps] == list(range(1, 9)) and steps[-1].seconds_left == 0.0
    records = [value for method, value in mine if method == "record"]
    assert [(record.event, record.step) for record in records] == [
        ("train", 2), ("train", 4), ("train", 6), ("train", 8), ("validation", 8),
    ]  # fmt: skip
    assert records[-1].is_best and records[-1].epochs == 1.0 and records[1].epochs == 0.5
    assert [dict(record.values) for record in records] == [
        {key: line[key] for key in line.keys() - {"event", "step", "epoch"}} for line in events(trained.path)
    ]


@pytest.mark.parametrize("method", ["step_3", "record"])
def test_a_callbacks_exception_ends_the_training_and_it_resumes(
    tmp_path: Path, tiny_recipe: Path, copy_run: CopyRun, method: str
) -> None:
    """Checks that the callback's exception is raised with its own traceback, after the step was saved."""

    def fail() -> None:
        raise ZeroDivisionError("of the user")

    calls: list[Any] = []
    with pytest.raises(ZeroDivisionError, match="of the user") as caught:
        attendant.train(
            tiny_recipe,
            output=tmp_path / "failed",
            overrides={"training.checkpoint_every_steps": 100},
            callbacks=[Watcher(calls, "before"), Watcher(calls, **{method: fail}), Watcher(calls, "after")],
        )
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fail"
    assert [call[:2] for call in calls[-3:]] == [("after", "end"), ("", "end"), ("before", "end")]
    assert all(call[2] is caught.value for call in calls[-3:])
    stopped = {"step_3": 3, "record": 2}[method]
    assert load_run(tmp_path / "failed", "last").state.step == stopped
    torch.manual_seed(99)
    attendant.train(tiny_recipe, output=tmp_path / "failed", resume=True)
    straight = copy_run("straight")
    assert_same_weights(straight, tmp_path / "failed")
    # The values in a resumed run's journal are sums since the resumption.
    assert steps_of(straight) == steps_of(tmp_path / "failed")


def test_a_callback_that_evaluates_changes_nothing(tmp_path: Path, tiny_recipe: Path, copy_run: CopyRun) -> None:
    run, values = tmp_path / "watched", []
    watcher = Watcher([], step_10=lambda: values.append(attendant.evaluate(run, metrics="wer")[0].values))
    attendant.train(tiny_recipe, output=run, callbacks=[watcher])
    assert len(values) == 1
    assert_same_training(copy_run("straight"), run)


def calls_with_failure(method: str, recipe: Path, output: Path) -> list[tuple[str, str]]:
    """Trains with the callbacks a and b, of which b fails in `method`; returns the calls of both."""

    def fail() -> None:
        raise ConnectionError("no tracker")

    calls: list[Any] = []
    with pytest.raises(ConnectionError):
        attendant.train(recipe, output=output, callbacks=[Watcher(calls, "a"), Watcher(calls, "b", **{method: fail})])
    return [(name, called) for name, called, _ in calls]


def test_a_callback_that_fails_before_the_first_step_leaves_no_run(tmp_path: Path, tiny_recipe: Path) -> None:
    calls = calls_with_failure("begin", tiny_recipe, tmp_path / "run")
    assert calls == [("a", "begin"), ("b", "begin"), ("a", "end")]
    assert not (tmp_path / "run").exists()


def test_a_callback_that_fails_at_the_end_leaves_a_finished_run(tmp_path: Path, tiny_recipe: Path) -> None:
    calls = calls_with_failure("end", tiny_recipe, tmp_path / "run")
    assert calls[-2:] == [("b", "end"), ("a", "end")]
    assert attendant.train(tiny_recipe, output=tmp_path / "run", resume=True).results is not None


def test_an_interrupted_cell_leaves_a_saved_run(
    tmp_path: Path, tiny_recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler, calls = signal.getsignal(signal.SIGINT), []
    watcher = Watcher(calls, step_5=lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 5; --resume goes on from there"):
        attendant.train(tiny_recipe, output=tmp_path / "stopped", callbacks=[watcher])
    assert signal.getsignal(signal.SIGINT) is handler
    assert isinstance(calls[-1][2], KeyboardInterrupt) and calls[-1][1] == "end"
    assert load_run(tmp_path / "stopped", "last").state.step == 5
    assert capfd.readouterr() == ("", "")


def test_a_thread_may_train(tmp_path: Path, tiny_recipe: Path) -> None:
    """Trains in another thread: only the main thread can receive signals."""
    trained: list[attendant.TrainedRun] = []
    thread = threading.Thread(
        target=lambda: trained.append(attendant.train(tiny_recipe, output=tmp_path / "run", overrides=SHORT))
    )
    thread.start()
    thread.join()
    assert trained[0].step == 8


def test_notebooks_show_curves_and_values(tmp_path: Path, tiny_recipe: Path) -> None:
    trained = attendant.train(tiny_recipe, output=tmp_path / "a<b", overrides=SHORT)
    page = trained._repr_html_()
    assert page.count("<svg") == 2 and "Validation exact match" in page and "a&lt;b" in page and "a<b" not in page
    assert "wer" in page and page.index("<svg") < page.index("wer:")
    assert len(trained.curves.train_loss) == 4 and len(trained.curves.validation["loss"]) == 1
    # The charts have their own background, since a notebook may be dark.
    assert "var(--paper,#ffffff)" in page
    report = attendant.report(trained)
    assert 'srcdoc="' in report._repr_html_() and "<script" not in report._repr_html_()


PROGRAM = """
import sys
sys.modules["torch"] = None
import attendant
class Mine(attendant.TrainingCallback): ...
for call in (lambda: attendant.train("copy"), lambda: attendant.report("run"), lambda: attendant.evaluate(sys.argv[1]),
             lambda: attendant.export_run("run", "bundle"), lambda: attendant.export_model(None, "bundle")):
    try:
        call()
    except attendant.UserError as error:
        print(error)
print(attendant.evaluate(sys.argv[2], data=[("face", "F EY1 S")], metrics="wer")[0].values)
print([check.subject for check in attendant.verify(sys.argv[2])])
"""


def test_without_torch_a_line_names_the_extra_to_install(finished_run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, finished_run, ROOT / "models/g2p-en"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
    )
    *lines, values, checks = done.stdout.splitlines()
    install = "torch is not installed: pip install 'attendant-seq2seq"
    assert lines == [
        f"attendant.train: {install}[cpu,training]'",
        f"{install}[cpu,training]'",
        f"{install}[cpu,training]'",
        f"attendant.export_run: {install}[cpu,export]'",
        f"attendant.export_model: {install}[cpu,export]'",
    ], done.stderr
    assert values == "{'wer': 0.0}" and checks == "['files', 'golden', 'golden']"
