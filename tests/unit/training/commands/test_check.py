"""Tests of `check`, and of a training's warnings and refusals about its data."""

import json
import re
from pathlib import Path

import pytest

from tests.unit.training.conftest import Command, CopyRun, Runs


def unknown(path: Path, share: float) -> None:
    """Makes a share of validation's targets unknown."""
    lines = path.read_text().splitlines()
    count = round(share * len(lines))
    changed = [f"{line.partition(chr(9))[0]}\tX Y Z" for line in lines[:count]]
    path.write_text("\n".join([*changed, *lines[count:]]) + "\n")


def test_a_recipe_is_checked_and_nothing_is_written(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    before = sorted(tmp_path.rglob("*"))
    message = succeeds("check", tiny_recipe, "--examples", 2)
    assert re.search(r"^pairs +48 +16 +16$", message, re.MULTILINE), message
    for words in ("source characters, median", "unknown target tokens", "scripts of the sources: Latin 100.0%",
                  "examples of train:", "48 of 48 pairs", "sources: 3 to 3 tokens"):  # fmt: skip
        assert words in message
    assert message.count(" → ") == 6
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_pairs_are_checked_as_they_would_be_trained(tmp_path: Path, refused: Runs, succeeds: Runs) -> None:
    words = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    (tmp_path / "pairs.csv").write_text("en,fr,id\n" + "".join(f"{word},{' '.join(word)},1\n" for word in words))
    assert "recipe chosen from 64 pairs" in succeeds("check", f"{tmp_path / 'pairs.csv'}[en,fr]")
    assert "look like the names of columns" in refused("check", tmp_path / "pairs.csv")


@pytest.mark.parametrize("name", ["check", "train"])
def test_validation_of_unknown_targets_is_refused_unless_allowed(
    tmp_path: Path, tiny_recipe: Path, refused: Runs, succeeds: Runs, name: str
) -> None:
    unknown(tmp_path / "validation.tsv", 0.75)
    start = ["check"] if name == "check" else []
    output = [] if name == "check" else ["--output", tmp_path / "run", "--set", "training.max_steps=1"]
    error = refused(*start, tiny_recipe, *output)
    assert "75.0% of the tokens of validation's targets are unknown, e.g. 'X', 'Y', 'Z'" in error
    assert "data.allow_unknown_targets = true" in error
    assert not (tmp_path / "run").exists()
    message = succeeds(*start, tiny_recipe, *output, "--set", "data.allow_unknown_targets=true")
    assert "warning: 75.0% of the tokens of validation's targets are unknown" in message


def test_check_uses_the_tokenizers_of_the_training(
    tmp_path: Path, tiny_recipe: Path, copy_run: CopyRun, succeeds: Runs
) -> None:
    start = copy_run("first")
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.tsv"
        path.write_text(path.read_text() + "eee\te e e\n")
    words = "warning: 5.9% of the tokens of validation's sources are unknown, e.g. 'e'"
    for option, warns in (("seed=5", False), (f"training.start_from={start}", True),
                          (f'distillation.teachers=["{start}"]', True)):  # fmt: skip
        message = succeeds("check", tiny_recipe, "--set", option)
        assert (words in message) == warns


def test_few_unknown_symbols_are_a_warning_and_recorded(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    unknown(tmp_path / "validation.tsv", 0.125)
    message = succeeds(tiny_recipe, "--output", tmp_path / "run", "--set", "training.max_steps=1")
    assert "warning: 12.5% of the tokens of test's targets are unknown" in message
    shares = json.loads((tmp_path / "run" / "data.json").read_text())["unknown_shares"]
    assert shares == {split: {"source": 0.0, "target": share} for split, share in
                      (("train", 0.0), ("validation", 0.125), ("test", 0.125))}  # fmt: skip


def test_targets_that_the_tokenizer_changes_are_a_warning(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.tsv"
        path.write_text(path.read_text().upper())
    words = (
        "warning: no output can equal 100.0% of validation's targets, e.g. 'A A D' is written as 'a a d' (see target."
    )
    for steps, warns in (("", False), ('"lowercase"', True)):
        message = succeeds("check", tiny_recipe, "--set", f"target.normalize=[{steps}]")
        assert (words in message) == warns


def test_accents_that_the_tokenizer_joins_are_shown_by_their_numbers(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs
) -> None:
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.tsv"
        path.write_text(path.read_text().replace("a", "e\u0301"))
    message = " ".join(succeeds("check", tiny_recipe).split())
    assert re.search(r"e.g. '[^']*e\\u0301[^']*' is written as '[^']*\\xe9[^']*'", message)


def test_lines_of_targets_that_are_joined_are_a_warning(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    names = ("train", "validation")
    for name in names:
        pairs = [line.split("\t") for line in (tmp_path / f"{name}.tsv").read_text().splitlines()]
        lines = [json.dumps({"source": source, "target": target.replace(" ", "\n")}) for source, target in pairs]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    options = [f"--set=data.{name}={tmp_path / name}.jsonl" for name in names]
    for keeps_spaces, warns in (("false", True), ("true", False)):
        kind = ("--set=target.tokenizer=character", f"--set=target.keep_spaces={keeps_spaces}")
        message = succeeds("check", tiny_recipe, *options, *kind)
        assert ("warning: 100.0% of validation's targets have several lines" in message) == warns


def test_bad_lines_of_all_splits_are_reported_together(tmp_path: Path, tiny_recipe: Path, command: Command) -> None:
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.tsv"
        path.write_text(path.read_text() + "\na\tb\tc\n")
    status, _, errors = command("check", tiny_recipe)
    assert status == 2
    for place in ("validation.tsv:17: both sides are empty", "validation.tsv:18: 3 columns", "train.tsv:49: both",
                  "train.tsv:50: 3 columns"):  # fmt: skip
        assert errors.count(place) == 1


def test_empty_pairs_and_quotes_are_reported_at_the_start(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    words = [line.split("\t") for line in (tmp_path / "train.tsv").read_text().splitlines()]
    (tmp_path / "train.tsv").write_text("".join(f'"{source}"\t"{target}"\n' for source, target in words) + "\t\n")
    options = ("--set", "data.drop_empty=true", "--set", "training.max_steps=1")
    message = succeeds(tiny_recipe, "--output", tmp_path / "run", *options)
    assert "48 of 48 pairs; left out: 1 empty" in message
    assert "train.tsv: every field is in quotes, which are taken off" in message


def test_a_training_without_a_recipe_has_one_chosen_and_resumes(
    tmp_path: Path, refused: Runs, succeeds: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    Path("pairs.tsv").write_text("".join(f"{word}\t{' '.join(word)}\n" for word in words))
    options = ("--set", "model.hidden_size=8", "--set", "training.max_epochs=1", "--set", "training.device=cpu")
    message = succeeds("pairs.tsv", *options)
    assert "recipe chosen from 64 pairs" in message and "its file: runs/pairs/recipe.toml" in message
    assert "pairs.tsv (test part)" in message and "wer" in message
    assert "warning: schedule.warmup_steps = 6, and the training has 1 steps" in message
    assert "runs/pairs exists: --resume continues it" in refused("pairs.tsv", *options)
    # The run resumes with the chosen recipe, whose file can also begin another run.
    succeeds("pairs.tsv", "--resume", "--set", "training.max_epochs=2")
    succeeds("runs/pairs/recipe.toml", "--output", "runs/again")


def test_a_held_out_text_of_megabytes_is_left_out_and_counted(
    tmp_path: Path, tiny_recipe: Path, succeeds: Runs
) -> None:
    path = tmp_path / "validation.tsv"
    path.write_text(path.read_text() + f"{'ab' * 2**20}\ta b\nab\t{'a b ' * 2**19}\naaaabbbbb\ta b\n")
    message = succeeds(tiny_recipe, "--output", tmp_path / "run", "--set", "training.max_steps=1")
    for split in ("validation", "test"):
        assert f"pairs left out of {split}, with a text of more than 20,000 characters: 2" in message
    assert "pairs left out of the loss of validation, too long or of too unequal lengths: 1" in message
    assert "17 examples: " in message and "without 2 pairs with a text of more than" in message
