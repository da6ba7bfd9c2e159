"""Tests of duplicates and shared sources in a training split: they are counted, and left out on request."""

from itertools import compress
from pathlib import Path

import pytest

import attendant
from attendant.training.data.config import DataConfig
from attendant.training.data.pairs import Pair
from attendant.training.run.corpora import survey
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.paths import ROOT
from tests.unit.training.conftest import Runs

PAIRS = [Pair("a", "1"), Pair("b", "1"), Pair("a", "1"), Pair("a", "2"), Pair("c", "3"), Pair("b", "1"), Pair("a1", "")]
HELD_OUT = {"validation": frozenset({"a", "x"}), "test": frozenset({"a", "c", "y"})}


def look(**options: object) -> tuple:
    config = DataConfig.model_validate({"train": "t.tsv", "validation": "v.tsv"} | options)
    result, stays = survey(iter(PAIRS), config, HELD_OUT)
    return result, list(compress(PAIRS, stays))


def test_all_pairs_are_counted_and_kept_by_default() -> None:
    for options in ({}, {"shared_sources": "drop_from_held_out"}):
        result, kept = look(**options)
        assert (result.num_pairs, result.num_duplicates, result.num_shared, result.num_left_out) == (7, 2, 4, 0)
        assert result.shared_sources == {"validation": ["a"], "test": ["a", "c"]}
        assert kept == PAIRS


def test_the_first_of_equal_pairs_is_kept() -> None:
    result, kept = look(drop_duplicates=True)
    assert kept == [Pair("a", "1"), Pair("b", "1"), Pair("a", "2"), Pair("c", "3"), Pair("a1", "")]
    assert result.num_left_out == 2


def test_shared_sources_are_dropped_from_the_training_split() -> None:
    result, kept = look(shared_sources="drop_from_train")
    assert kept == [Pair("b", "1"), Pair("b", "1"), Pair("a1", "")]
    assert result.num_left_out == 4
    result, kept = look(shared_sources="drop_from_train", drop_duplicates=True)
    assert kept == [Pair("b", "1"), Pair("a1", "")]
    assert result.num_left_out == 5


@pytest.fixture
def dirty_recipe(tmp_path: Path, tiny_recipe: Path) -> Path:
    """Adds two of validation's sources, a duplicate, and a pair of unequal lengths to the training split."""
    held_out = (tmp_path / "validation.tsv").read_text().splitlines()
    train = (tmp_path / "train.tsv").read_text().splitlines()
    train += [held_out[0], held_out[1], train[-1], "abcd\ta"]
    (tmp_path / "train.tsv").write_text("\n".join(train) + "\n")
    return tiny_recipe


def run(succeeds: Runs, recipe: Path, output: Path, *options: str) -> str:
    overrides = [part for option in ("training.max_steps=2", *options) for part in ("--set", option)]
    return succeeds(recipe, "--output", output, *overrides)


def test_a_run_reports_duplicates_and_shared_sources(tmp_path: Path, dirty_recipe: Path, succeeds: Runs) -> None:
    message = run(succeeds, dirty_recipe, tmp_path / "run")
    assert "52 of 52 pairs\n" in message and "duplicates in the training split: 1 (" in message
    assert "sources of validation that are in the training split too: 2 (see data.shared_sources)" in message
    assert "sources in both validation and test: 16\n" in message
    facts = load_run(tmp_path / "run").data
    assert facts["num_duplicates"] == 1 and facts["num_pairs_of_shared_sources"] == 2
    assert facts["num_sources_shared_with_training"] == {"validation": 2, "test": 2}


def test_the_training_part_is_cleaned(tmp_path: Path, dirty_recipe: Path, succeeds: Runs) -> None:
    options = ("data.drop_duplicates=true", "data.shared_sources=drop_from_train", "data.max_length_ratio=3")
    message = run(succeeds, dirty_recipe, tmp_path / "run", *options)
    assert "48 of 52 pairs; left out: 1 of too unequal lengths, 3 duplicates or of shared sources" in message
    assert "16 examples" in message
    facts = load_run(tmp_path / "run").data
    assert (facts["num_trained_pairs"], facts["num_left_out"], facts["num_unequal"]["train"]) == (48, 3, 1)


def test_the_held_out_parts_are_cleaned(tmp_path: Path, dirty_recipe: Path, succeeds: Runs) -> None:
    message = run(succeeds, dirty_recipe, tmp_path / "run", "data.shared_sources=drop_from_held_out")
    assert (
        "52 of 52 pairs" in message
        and "14 examples" in message
        and "without 2 sources that the training split has" in message
    )
    assert load_run(tmp_path / "run").data["num_validation_examples"] == 14
    assert len(Run(tmp_path / "run").left_out("test")) == 2
    assert attendant.evaluate(tmp_path / "run", split="train", bootstrap=0)[0].evaluation.num_examples == 51
    assert "14 examples" in succeeds("evaluate", tmp_path / "run", "--split", "validation")
    assert "16 examples" in succeeds("evaluate", tmp_path / "run", "--data", tmp_path / "validation.tsv")


def test_a_tokenizer_file_next_to_the_recipe_is_used_unchanged(
    tmp_path: Path, tiny_recipe: Path, refused: Runs, succeeds: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.model").write_bytes((ROOT / "tests" / "sentencepiece" / "unigram.model").read_bytes())
    (tmp_path / "symbols.txt").write_text("EOS\nd\nc\nb\na\n")
    tiny_recipe.write_text(
        tiny_recipe.read_text()
        .replace('tokenizer = "character"', 'tokenizer = "own.model"')
        .replace('tokenizer = "word"', 'tokenizer = "symbols.txt"')
    )
    monkeypatch.chdir(tmp_path.parent)
    run(succeeds, tiny_recipe, tmp_path / "run")
    # A run keeps its tokenizers, so it does not need the files again.
    (tmp_path / "own.model").write_bytes(b"")
    loaded = load_run(tmp_path / "run")
    assert loaded.target_tokenizer.tokens_of(range(4, 8)) == ["d", "c", "b", "a"]
    assert loaded.source_tokenizer.vocabulary_size == 200
    succeeds(tiny_recipe, "--output", tmp_path / "run", "--resume", "--set", "training.max_steps=3")
    assert "own.model: no SentencePiece model" in refused("check", tiny_recipe)


def test_a_choice_that_leaves_a_split_empty_is_refused(tmp_path: Path, tiny_recipe: Path, refused: Runs) -> None:
    (tmp_path / "train.tsv").write_text((tmp_path / "validation.tsv").read_text())
    for choice, message in (
        ("drop_from_train", "leaves nothing of "),
        ("drop_from_held_out", "leaves nothing of data."),
    ):
        option = f"data.shared_sources={choice}"
        assert message in refused(tiny_recipe, "--output", tmp_path / choice, "--set", option)
