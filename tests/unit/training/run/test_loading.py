"""Tests of trainings that begin with word vectors from files or with another run's published weights.

They are loaded only once. A mistake is reported in one line.
"""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.run import loading
from attendant.training.run.checkpoint import BEST, MODEL_FILE, checkpoint_path, load_state
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run, read_vectors, words_of
from tests.unit.training.conftest import CopyRun, Runs


def vectors(path: Path, *words: str, size: int = 8, header: str = "") -> Path:
    """Writes a file of word vectors, in which the vector of word n (from 0) is n, n, ...; returns its path."""
    rows = (f"{word} {' '.join([str(float(place))] * size)}\n" for place, word in enumerate(words))
    path.write_text(header + "".join(rows))
    return path


@pytest.mark.parametrize("header", ["", "5 8\n"])
def test_word_vectors_are_read_with_or_without_a_header(tmp_path: Path, header: str) -> None:
    words = {"a": 4, "b": 7, "unseen": 9}
    path = vectors(tmp_path / "some.vec", "x", "b", ". . .", "a", "b", header=header)
    ids, result = read_vectors(path, words, 8)
    assert dict(zip(ids.tolist(), result[:, 0].tolist(), strict=True)) == {7: 1.0, 4: 3.0}
    packed = tmp_path / "some.vec.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert (read_vectors(packed, words, 8)[1] == result).all()


def test_a_wrong_file_of_vectors_is_refused(tmp_path: Path) -> None:
    for path, message in (
        (vectors(tmp_path / "wide.vec", "a", size=9), r"wide.vec:1: has 9 numbers, and model.embedding_size is 8"),
        (vectors(tmp_path / "said.vec", "a", size=9, header="1 9\n"), r"said.vec:2: has 9 numbers"),
        (vectors(tmp_path / "other.vec", "x", "y"), r"a vector for none of the 1 words"),
        (tmp_path / "none.vec", r"none.vec: there is no such file"),
    ):
        with pytest.raises(UserError, match=message):
            read_vectors(path, {"a": 4}, 8)


@pytest.mark.parametrize("number", ["x", "nan", "-inf", "1e39"])
def test_all_lines_without_finite_numbers_are_named(tmp_path: Path, number: str) -> None:
    (tmp_path / "bad.vec").write_text(f"a 1 2 {number}\nb 1 2 3\nc {number} 2 3\nother {number} 2 3\n")
    with pytest.raises(UserError) as caught:
        read_vectors(tmp_path / "bad.vec", {"a": 4, "b": 5, "c": 6}, 3)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("2 bad lines") and number in lines[0]
    assert "bad.vec:1: " in lines[0] and "bad.vec:3: " in lines[1]


def test_words_and_numbers_may_be_separated_by_tabs(tmp_path: Path) -> None:
    (tmp_path / "tabs.vec").write_text("a\t1\t2\t3\n")
    assert read_vectors(tmp_path / "tabs.vec", {"a": 4}, 3)[1].tolist() == [[1.0, 2.0, 3.0]]


def test_words_of_bpe_are_symbols_that_begin_a_word() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer="bpe", vocabulary_size=60), ["the cat", "the cats"] * 9)
    words = words_of(tokenizer)
    assert tokenizer.tokens_of([words["the"], words["cat"]]) == ["▁the", "▁cat"]


def test_a_checkpoint_that_a_training_replaces_meanwhile_is_opened(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(finished_run)
    former, load = checkpoint_path(run, BEST), loading.load_weights
    assert former is not None

    def replaced(directory: Path, model: torch.nn.Module) -> None:
        if directory == former:
            (run.checkpoints / BEST).unlink()
            (run.checkpoints / BEST).symlink_to(former.rename(former.with_name("step-00000099")).name)
        load(directory, model)

    monkeypatch.setattr(loading, "load_weights", replaced)
    assert load_run(finished_run).state.step == load_state(former.with_name("step-00000099")).step


def test_a_run_begins_with_word_vectors_and_resumes_without_them(
    tmp_path: Path, tiny_recipe: Path, refused: Runs, succeeds: Runs
) -> None:
    files = {side: vectors(tmp_path / f"{side}.vec", "z", "a", "c") for side in ("source", "target")}
    options = [part for side, path in files.items() for part in ("--set", f"training.{side}_vectors={path}")]
    still = ("--set", "optimizer.learning_rate=1e-12")
    first = ("--set", "training.max_epochs=1")
    succeeds(tiny_recipe, "--output", tmp_path / "run", *options, *still, *first)
    message = json.loads((tmp_path / "run" / "start.json").read_text())
    assert {side: item["num_symbols"] for side, item in message.items()} == {"source_vectors": 2, "target_vectors": 2}
    run = load_run(tmp_path / "run")
    for tokenizer, embedding in (
        (run.source_tokenizer, run.model.source_embedding),
        (run.target_tokenizer, run.model.target_embedding),
    ):
        assert embedding is not None
        a, b, c = (embedding.weight[tokenizer.encode(letter)[0]] for letter in "abc")
        torch.testing.assert_close(a, torch.full((8,), 1.0))
        torch.testing.assert_close(c, torch.full((8,), 2.0))
        assert b.abs().max() <= 0.1
    for path in files.values():
        path.unlink()
    succeeds(tiny_recipe, "--output", tmp_path / "run", "--resume", *options, *still)
    assert json.loads((tmp_path / "run" / "start.json").read_text()) == message
    error = refused(tiny_recipe, "--output", tmp_path / "run", "--resume", *still)
    assert "was begun with training.source_vectors" in error


@pytest.fixture
def trained(copy_run: CopyRun) -> Path:
    """Returns a run whose published weights are a moving average."""
    return copy_run("first", "training.ema_decay=0.9")


def starting(run: Path, *overrides: str) -> list[str]:
    return [part for each in (f"training.start_from={run}", *overrides) for part in ("--set", each)]


def test_a_run_begins_with_the_published_weights_and_records_it(
    tmp_path: Path, tiny_recipe: Path, trained: Path, succeeds: Runs
) -> None:
    output = tmp_path / "second"
    # The data's own vocabulary would be smaller, and the dropout differs. At this learning rate, the weights stay.
    tiny_data = tmp_path / "few.tsv"
    tiny_data.write_text("ab\ta b\nba\tb a\n")
    options = ("optimizer.learning_rate=1e-12", f"data.train={tiny_data}", "model.dropout=0.3")
    succeeds(tiny_recipe, "--output", output, *starting(trained, *options))
    published = checkpoint_path(Run(trained), BEST)
    assert published is not None
    weights = load_run(output).model.state_dict()
    for name, weight in load_file(published / MODEL_FILE).items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-6)
    for side in ("source", "target"):
        assert Run(output).tokenizer_path(side).read_text() == Run(trained).tokenizer_path(side).read_text()
    assert json.loads((output / "start.json").read_text()) == {
        "run": str(trained),
        "checkpoint": f"sha256:{sha256_of(published / MODEL_FILE)}",
        "step": load_run(trained).state.step,
    }
    assert load_run(output, "last").state.epoch == 2


def test_resuming_does_not_load_the_first_weights_again(
    tmp_path: Path, tiny_recipe: Path, trained: Path, succeeds: Runs, refused: Runs
) -> None:
    output = tmp_path / "second"
    succeeds(tiny_recipe, "--output", output, *starting(trained, "training.max_epochs=1"))
    message, reached = (output / "start.json").read_text(), load_run(output, "last").model.state_dict()
    assert f"was begun with training.start_from = '{trained}'" in refused(tiny_recipe, "--output", output, "--resume")
    shutil.rmtree(trained)  # no longer needed
    succeeds(tiny_recipe, "--output", output, "--resume", *starting(trained))
    assert (output / "start.json").read_text() == message
    assert load_run(output, "last").state.epoch == 2
    assert not torch.equal(load_run(output, "last").model.state_dict()["output.weight"], reached["output.weight"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.hidden_size=24",
            "with model.hidden_size = 16, and this recipe has model.hidden_size = 24: make them equal",
        ),
        (
            "source.normalize=[]",
            "with source.normalize = ['nfc'], and this recipe has source.normalize = []",
        ),
    ],
)
def test_another_model_is_refused_by_its_first_difference(
    tmp_path: Path, tiny_recipe: Path, trained: Path, refused: Runs, override: str, message: str
) -> None:
    error = refused(tiny_recipe, "--output", tmp_path / "second", *starting(trained, override))
    assert message in error and "training.start_from" in error
    assert not (tmp_path / "second").exists()
