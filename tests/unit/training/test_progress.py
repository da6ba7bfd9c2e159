"""Tests of a training's progress, as a live bar and as plain lines, and of its journal."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attendant.training.loop.callbacks import LiveProgress, Record, StepProgress, TrainingProgress, TrainingStart
from attendant.training.loop.journal import Journal
from attendant.training.progress import plain_console, plain_table, progress_lines
from attendant.training.run.directory import Run

AT = StepProgress(
    step=14, epoch=2, batch=5, num_batches=9, loss=1.25, perplexity=3.4567, tokens_per_second=12345.6, seconds_left=65.0
)
VALIDATION = Record(event="validation", step=18, epochs=2.0, values={"[b]": 0.5, "seconds": 9.0}, is_best=True)


def start(path: Path, step: int = 0) -> TrainingStart:
    return TrainingStart(path=path, recipe=None, step=step, num_steps=None, num_parameters=1)  # type: ignore[arg-type]


def test_plain_lines_come_at_most_every_ten_seconds() -> None:
    lines: list[str] = []
    times = iter([0.0, 5.0, 10.0, 10.0, 12.0])
    progress = TrainingProgress(lines.append, clock=lambda: next(times))
    for _ in range(3):
        progress.step(AT)
    progress.record(VALIDATION)
    progress.end(None)
    assert lines == [
        "epoch 2, batch 5/9, loss 1.250, perplexity 3.457, 12,346 tokens/s, 1:05 left",
        "epoch 2, step 18: validation [b] 0.5 (best)",
    ]


def test_a_long_training_does_not_fill_a_file() -> None:
    lines: list[str] = []
    times = iter(range(0, 4 * 3600, 5))
    progress = TrainingProgress(lines.append, clock=lambda: float(next(times)))
    for _ in range(1000):
        progress.step(AT)
    assert 6 < len(lines) < 20


def test_the_progress_of_a_long_work_is_written_to_a_file() -> None:
    lines: list[str] = []
    now = 0.0
    show = progress_lines(lines.append, clock=lambda: now)
    show("labelling", 0, 2000)
    for now, done in ((5.0, 100), (20.0, 400), (30.0, 600), (40.0, 800), (90.0, 1900)):  # noqa: B007 - the clock's time
        show("labelling", done, 2000)
    show("labelling", 2000, 2000)
    assert lines == [
        "labelling: 400 of 2,000, 1:20 left",
        "labelling: 800 of 2,000, 1:00 left",
        "labelling: 1,900 of 2,000, 0:05 left",
    ]


def test_users_texts_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a [bold] :heart: http://x 1"
    plain_console().print(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = plain_table("")
    table.add_row(text * 9)
    plain_console().print(table)
    assert text * 9 in capsys.readouterr().out.splitlines()[-1], "not folded, as the output is no terminal"


def test_the_live_bar_shows_progress_and_keeps_messages() -> None:
    written = io.StringIO()
    progress = LiveProgress(Console(file=written, force_terminal=True, width=120))
    progress.begin(start(Path()))
    progress.step(AT)
    progress.record(VALIDATION)
    progress.end(None)
    assert "validation [b] 0.5 (best)" in written.getvalue()
    for shown in ("epoch 2", "loss 1.250", "perplexity 3.457", "12,346 tokens/s", "1:05 left"):
        assert shown in written.getvalue()


def test_the_journal_removes_events_after_the_resumed_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.metrics_path.write_text(
        '{"event": "train", "step": 2}\n{"event": "train", "step": 4}\n{"event": "train", "step": 6}\n{"event": "tra'
    )
    journal = Journal(run)
    journal.begin(start(tmp_path, step=4))
    journal.record(Record(event="validation", step=5, epochs=1.9, values={"loss": 0.5}))
    journal.end(None)
    assert [json.loads(line) for line in run.metrics_path.read_text().splitlines()] == [
        {"event": "train", "step": 2},
        {"event": "train", "step": 4},
        {"event": "validation", "step": 5, "epoch": 1, "loss": 0.5},
    ]


@pytest.mark.parametrize("clock", [(1_800_000_000 * 10**9, 1_700_000_000 * 10**9), (60 * 10**9, 1_700_000_000 * 10**9)])
def test_tensorboard_shows_the_events_of_a_resumed_run_once(
    tmp_path: Path, clock: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the clock was put back before the run is resumed, or had not been set when it began."""
    monkeypatch.setattr(time, "time_ns", iter(clock).__next__)
    journal = Journal(Run(tmp_path))
    for first_step, values in ((0, [4.0, 3.0, 2.5]), (2, [2.0, 1.0])):
        journal.begin(start(tmp_path, step=first_step))
        for step, value in enumerate(values, first_step + 1):
            journal.record(Record(event="train", step=step, epochs=0.0, values={"loss": value}))
        journal.end(None)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    scalars = [(scalar.step, scalar.value) for scalar in board.Scalars("train/loss")]
    assert scalars == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]
