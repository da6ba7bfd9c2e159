"""Tests of the training command from end to end on a tiny task: a run's files, refusals and resuming."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.training.data.config import CorpusFiles
from attendant.training.run.loading import load_run
from tests.unit.training.comparing import events
from tests.unit.training.conftest import Command, Runs


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_run_has_its_files_and_records_each_epoch(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    output = tmp_path / "a run"
    message = succeeds(tiny_recipe, "--output", output, "--set", "optimizer.learning_rate=0.01")
    assert "wer " in message and f"next: attendant export '{output}' --output 'bundles/a run'\n" in message
    assert {path.name for path in output.iterdir()} == {
        "recipe.toml", "versions.json", "data.json", "metrics.jsonl", "tensorboard", "source_tokenizer.json",
        "target_tokenizer.json", "checkpoints", "evaluation.json", "corpus",
    }  # fmt: skip
    journal = events(output)
    assert [event["epoch"] for event in journal if event["event"] == "validation"] == [1, 2]
    assert {"loss", "learning_rate", "gradient_norm", "tokens_per_second", "seconds"} <= journal[0].keys()
    data = json.loads((output / "data.json").read_text())
    assert data["num_pairs"] == {"train": 48, "validation": 16, "test": 16}
    assert data["num_sources_shared_with_training"] == {"validation": 0, "test": 0}
    assert data["num_sources_shared_by_validation_and_test"] == 16
    evaluation = json.loads((output / "evaluation.json").read_text())
    assert [entry["metric"] for entry in evaluation] == ["wer", "per"]
    assert evaluation[0].keys() == {
        "metric", "value", "interval", "num_resamples", "protocol", "num_examples", "decoding", "checkpoint",
    }  # fmt: skip
    # Nothing is pickled.
    assert {path.name for path in (output / "checkpoints/last").iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "state.json",
    }  # fmt: skip

    loaded = load_run(output)
    assert loaded.recipe.optimizer.learning_rate == 0.01
    assert loaded.max_length_ratio == data["max_length_ratio"] == 1.0
    assert loaded.evaluation == evaluation
    assert loaded.checkpoint.startswith("sha256:") and {entry["checkpoint"] for entry in evaluation} == {
        loaded.checkpoint
    }
    assert loaded.data["digest"] == data["digest"]
    assert loaded.versions["commit"] and not loaded.model.training
    assert loaded.state.step == loaded.state.best_step
    assert load_run(output, "last").state.epoch == 2


def test_an_existing_output_is_refused_and_resumed(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs, refused: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "run"
    succeeds(tiny_recipe, "--output", output, "--resume", "--set", "training.max_epochs=1")
    assert "--resume continues it" in refused(tiny_recipe, "--output", output)
    succeeds(tiny_recipe, "--output", output, "--resume")
    assert load_run(output, "last").state.epoch == 2
    evaluation = (output / "evaluation.json").stat().st_mtime_ns
    # A finished run is not measured again.
    succeeds(tiny_recipe, "--output", output, "--resume")
    assert (output / "evaluation.json").stat().st_mtime_ns == evaluation
    # A run is its own recipe, and is continued where it is.
    monkeypatch.chdir(tmp_path)
    succeeds(shutil.copytree(output, tmp_path / "copied"), "--resume", "--set", "training.max_epochs=3")
    assert load_run(tmp_path / "copied", "last").state.epoch == 3 and not Path("runs").exists()
    for change, begun in (
        ("model.hidden_size=8", "model.hidden_size = 16"),
        ("training.accumulate_batches=2", "training.accumulate_batches = 1"),  # epochs are counted in steps
        ("source.append_eos=false", "source.append_eos = true"),
        ("data.max_source_words=3", "no data.max_source_words"),
        ("validation.metric=loss", "validation.metric = 'exact_match'"),  # the best value so far is of this metric
    ):
        assert f"was begun with {begun}" in refused(tiny_recipe, "--output", output, "--resume", "--set", change)
    # The same data may be elsewhere.
    moved = (tmp_path / "train.tsv").rename(tmp_path / "moved.tsv")
    options = ("--output", output, "--resume", "--set", f"data.train={moved}")
    succeeds(tiny_recipe, *options)
    assert load_run(output).recipe.data.train == CorpusFiles(pairs=(str(moved),))
    tokenizer = shutil.copy(output / "source_tokenizer.json", tmp_path / "copy.json")
    with_file = (*options, "--set", f"source.tokenizer={tokenizer}")
    succeeds(tiny_recipe, *with_file)
    other = shutil.copy(output / "target_tokenizer.json", tmp_path / "other.json")
    assert "begun with source.tokenizer" in refused(tiny_recipe, *options, "--set", f"source.tokenizer={other}")
    append(moved, "dcba\td c b a\n")
    assert "have changed since it was begun" in refused(tiny_recipe, *with_file)
    moved.unlink()
    os.mkfifo(moved)
    assert "moved.tsv is a pipe" in refused(tiny_recipe, *with_file)


def test_recorded_measurements_belong_to_the_published_weights(
    tmp_path: Path, tiny_recipe: Path, command: Command, succeeds: Runs
) -> None:
    output, first = tmp_path / "run", ("--set", "training.max_epochs=1")
    succeeds(tiny_recipe, "--output", output, *first)
    succeeds("evaluate", output, "--beam-size", 2)
    assert len(load_run(output).evaluation) == 4
    succeeds(tiny_recipe, "--output", output, "--resume")
    succeeds("evaluate", output, "--checkpoint", "last", "--beam-size", 3)
    best, last = load_run(output), load_run(output, "last")
    assert best.state.step == last.state.step, "the last weights are the best ones here"
    assert [entry["decoding"]["beam_size"] for entry in best.evaluation] == [1, 1, 3, 3]
    # The weights are measured again if the recorded measurements are of others.
    entries = json.loads((output / "evaluation.json").read_text())
    (output / "evaluation.json").write_text(json.dumps([entry | {"checkpoint": "sha256:0"} for entry in entries]))
    assert "wer" in command(tiny_recipe, "--output", output, "--resume")[1]
    assert [entry["metric"] for entry in load_run(output).evaluation] == ["wer", "per"]


def test_a_training_that_never_saved_a_step_leaves_no_record(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    output = tmp_path / "run"
    output.mkdir()
    (output / "left_out.json").write_text('{"test": ["aab"]}')
    (output / "metrics.jsonl").write_bytes(b'{"event": "train", "step": 2}\n\xff\n[]\n{"step')
    succeeds(tiny_recipe, "--output", output, "--resume")
    assert not (output / "left_out.json").exists()


def test_only_a_recipe_with_a_fetcher_is_fetched(tiny_recipe: Path, refused: Runs) -> None:
    assert "has no [data] fetch" in refused("fetch", tiny_recipe)


@pytest.mark.parametrize(
    ("file", "content", "override", "message"),
    [
        ("train.tsv", "a\tb\nonly a source\n", "seed=5", "train.tsv:2: 1 column"),
        ("train.tsv", "", "seed=5", "train.tsv has no pairs"),
        # The refusal comes after the corpus was stored.
        ("validation.tsv", f"{'a' * 2000}\ta\n", "seed=5", "none of the 1 pairs of data.validation has 1 to"),
        # The longest pair of training takes 8 positions, that of validation 18.
        ("validation.tsv", "abcdabcd\ta b c d a b c d\n", "batches.max_tokens=16", "raise it to 18 or more, or lower"),
        ("unused.tsv", "", "model.hidden_size=200000", "model.hidden_size = 200000, model.embedding_size = 8: "),
    ],
    ids=["bad line", "no pairs", "all too long", "validation beyond a batch", "too large a model"],
)
def test_a_refusal_is_one_line_and_leaves_no_folder(
    file: str, content: str, override: str, message: str, tmp_path: Path, tiny_recipe: Path, refused: Runs
) -> None:
    (tmp_path / file).write_text(content)
    assert message in refused(tiny_recipe, "--output", tmp_path / "run", "--set", override)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("chosen", "result"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")],
    ids=["by default", "by count", "by policy"],
)
def test_threads_spin_a_little_unless_the_environment_decides(chosen: dict[str, str], result: str) -> None:
    unset = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = "import os, sys, training.__main__; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    message = subprocess.run(
        [sys.executable, "-c", program], env=unset | chosen, capture_output=True, text=True, check=True
    ).stdout
    assert message.split() == [result, "False"], "it must be set before torch is loaded"


def test_a_vocabulary_below_the_requested_size_is_explained(
    tmp_path: Path, tiny_recipe: Path, command: Command
) -> None:
    size = ("--set", "source.tokenizer=bpe", "--set", "source.vocabulary_size=5000", "--set", "training.max_steps=1")
    _, message, errors = command(tiny_recipe, "--output", tmp_path / "run", *size)
    (line,) = [line for line in message.splitlines() if line.startswith("source: ")]
    assert line.endswith(
        "symbols, and source.vocabulary_size = 5000: no other pair of symbols to merge within a word occurs at all"
    ), errors
    # A Unigram model drops parts of words that it does not need, so others may occur.
    size = ("--set", "source.tokenizer=unigram", *size[2:])
    _, message, errors = command(tiny_recipe, "--output", tmp_path / "other", *size)
    (line,) = [line for line in message.splitlines() if line.startswith("source: ")]
    assert line.endswith("symbols, and source.vocabulary_size = 5000: the model needs no other part of a word"), errors


def test_a_mistyped_subcommand_is_refused_with_a_suggestion(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels").touch()
    assert "labels has no pairs" in command("labels")[2]
    status, _, errors = command("evalaute", "run")
    assert (status, errors) == (
        2,
        "training: evalaute: is neither a recipe (NAME.toml) nor a command; did you mean evaluate?\n",
    )


def test_a_training_whose_output_has_no_reader_is_not_done(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs, refused: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks `attendant train RECIPE | head`: the exit status was that of a finished training."""

    def closed(line: str) -> None:
        if "validation" in line:
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("attendant.training.loop.callbacks.print_line", closed)
        assert "the training has stopped: --resume continues it" in refused(tiny_recipe, "--output", tmp_path / "run")
    succeeds(tiny_recipe, "--output", tmp_path / "run", "--resume")


def test_the_threads_are_those_that_the_container_grants(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    tiny_recipe.write_text(tiny_recipe.read_text().replace("num_threads = 1", ""))
    monkeypatch.setattr("attendant.training.kernels.hardware.available_cpus", lambda: 1)
    succeeds(tiny_recipe, "--output", tmp_path / "run", "--set", "training.max_steps=1")
    assert torch.get_num_threads() == 1


def test_lines_of_megabytes_are_left_out_without_being_tokenized(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "train.tsv", f"{'ab' * 2**20}\ta b\nab\t{'a b ' * 2**20}\n")
    lengths: list[int] = []
    encode = Tokenizer.encode_batch

    def watched(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        lengths.extend(map(len, texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", watched)
    message = succeeds(tiny_recipe, "--output", tmp_path / "run", "--set", "training.max_steps=1")
    assert "left out: 2 too long" in message
    assert max(lengths) < 1000
