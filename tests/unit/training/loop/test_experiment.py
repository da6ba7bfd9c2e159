"""Tests of distillation: the teachers' distributions, computed only once, and refusals of runs that do not match."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from attendant.training.data.batches import collate
from attendant.training.loop.experiment import prepare
from attendant.training.model.stepper import Ensemble
from attendant.training.recipe import load_recipe
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.unit.training.comparing import assert_same_weights
from tests.unit.training.conftest import CopyRun, Runs


@pytest.fixture
def teachers(copy_run: CopyRun) -> list[Path]:
    """Returns two runs that differ in their seeds and architectures."""
    return [copy_run("one", "seed=1"), copy_run("two", "model.cell=gru")]


def learning_from(teachers: list[Path], *overrides: str) -> list[str]:
    names = json.dumps(list(map(str, teachers)))
    return [part for each in (f"distillation.teachers={names}", *overrides) for part in ("--set", each)]


def test_batches_have_the_ensembles_distributions(tmp_path: Path, tiny_recipe: Path, teachers: list[Path]) -> None:
    names = json.dumps(list(map(str, teachers)))
    overrides = [f"distillation.teachers={names}", "distillation.top_k=3", "distillation.weight=0.25"]
    corpus = prepare(Run(tmp_path / "run"), load_recipe(tiny_recipe, overrides)).corpus
    models = [load_run(path).model for path in teachers]
    batch = collate(corpus, [5, 0, 17], models[0].start_id)
    inputs = (batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
    with torch.inference_mode():
        wanted = torch.stack([torch.softmax(model(*inputs), -1) for model in models]).mean(0)
        torch.testing.assert_close(Ensemble(models)(*inputs).exp(), wanted)
    values, ids = wanted.topk(3)
    assert batch.soft_targets is not None
    assert torch.equal(batch.soft_targets.symbols, ids)
    torch.testing.assert_close(
        batch.soft_targets.probabilities, 0.25 * values / values.sum(1, keepdim=True), rtol=1e-3, atol=1e-5
    )


def test_resuming_without_the_teachers_equals_an_uninterrupted_run(
    tmp_path: Path, tiny_recipe: Path, teachers: list[Path], refused: Runs, succeeds: Runs
) -> None:
    options = learning_from(teachers, "training.max_epochs=2")
    message = succeeds(tiny_recipe, "--output", tmp_path / "straight", *options)
    assert "predictions of 2 teachers for 192 symbols, once" in message
    first = (*options, "--set", "training.max_steps=5")
    succeeds(tiny_recipe, "--output", tmp_path / "stopped", *first)
    recorded = json.loads((tmp_path / "stopped" / "teachers.json").read_text())
    assert [item["run"] for item in recorded["runs"]] == list(map(str, teachers))
    for folder in teachers:
        shutil.rmtree(folder)
    torch.manual_seed(99)
    message = succeeds(tiny_recipe, "--output", tmp_path / "stopped", "--resume", *options)
    assert "teachers" not in message
    assert json.loads((tmp_path / "stopped" / "teachers.json").read_text()) == recorded
    assert_same_weights(tmp_path / "straight", tmp_path / "stopped")
    error = refused(tiny_recipe, "--output", tmp_path / "stopped", "--resume")
    assert "was begun with distillation.teachers = [" in error


def test_teachers_that_do_not_match_the_recipe_are_refused(
    tmp_path: Path, tiny_recipe: Path, teachers: list[Path], succeeds: Runs, refused: Runs
) -> None:
    training = (tiny_recipe, "--output", tmp_path / "run")
    message = refused(*training, *learning_from(teachers, 'source.normalize=["nfc", "lowercase"]'))
    assert (
        "distillation.teachers = " in message
        and "with source.normalize = ['nfc'], and this recipe has source.normalize = ['nfc', 'lowercase']" in message
    )
    assert "distillation.weight = 0.3 means nothing without" in refused(*training, "--set", "distillation.weight=0.3")
    few = tmp_path / "few.tsv"
    few.write_text("ab\ta b\nba\tb a\n")
    options = ("--set", f"data.train={few}", "--set", "data.allow_unknown_targets=true")
    succeeds(tiny_recipe, "--output", tmp_path / "other", *options)
    assert "have different tokenizers" in refused(*training, *learning_from([*teachers, tmp_path / "other"]))
    message = refused(*training, *learning_from(teachers, f"training.start_from={tmp_path / 'other'}"))
    assert "have different tokenizers" in message and not (tmp_path / "run").exists()
    # Equal tables, but the teacher has a tokenizer of its own for each side.
    character = ("--set", "target.tokenizer=character")
    succeeds(tiny_recipe, "--output", tmp_path / "unshared", *character)
    message = refused(*training, *character, *learning_from([tmp_path / "unshared"], "model.shared_embeddings=true"))
    assert "unshared' has other symbols for sources than for targets, and model.shared_embeddings = true" in message


def test_a_damaged_store_is_refused_and_made_again_by_the_same_teachers(
    tmp_path: Path, tiny_recipe: Path, teachers: list[Path], succeeds: Runs, refused: Runs
) -> None:
    resumed = (tiny_recipe, "--output", tmp_path / "run", "--resume", *learning_from(teachers))
    succeeds(*resumed)
    (path,) = (tmp_path / "run").glob("corpus/*/symbols.bin")
    content = path.read_bytes()
    path.write_bytes(content[:-12])
    error = refused(*resumed)
    assert "is damaged" in error and "it will be made again" in error
    shutil.rmtree(path.parent)
    succeeds(*resumed)
    assert path.read_bytes() == content
    shutil.rmtree(path.parent)
    shutil.rmtree(teachers[0])
    shutil.copytree(teachers[1], teachers[0], symlinks=True)
    assert f"{teachers[0]} has other weights than when" in refused(*resumed)
