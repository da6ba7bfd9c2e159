"""Tests of random states, which are restored, and of checkpoints, which are complete or absent if the process dies."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from attendant.runtime.errors import UserError
from attendant.training.optimization import OptimizerConfig, make_optimizer
from attendant.training.run import checkpoint
from attendant.training.run.checkpoint import (
    Learner,
    TrainingState,
    checkpoint_path,
    load_state,
    load_weights,
    random_state,
    remove_strays,
    restore_random_state,
    resume_checkpoint,
    save_checkpoint,
)
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.architectures import NEEDS_GPU

CPU = torch.device("cpu")


def test_the_random_state_of_a_gpu_is_ignored_without_a_gpu() -> None:
    state = torch.cat([random_state(CPU), torch.ones(16, dtype=torch.uint8)])
    wanted = torch.rand(5)
    restore_random_state(state, CPU)
    assert torch.rand(5).equal(wanted)


@pytest.mark.cuda
@NEEDS_GPU
def test_the_random_state_of_a_gpu_is_restored() -> None:
    device = torch.device("cuda")
    state = random_state(device)
    wanted = torch.rand(5, device=device)
    restore_random_state(state, device)
    assert torch.rand(5, device=device).equal(wanted)


class Training:
    """A small model, its optimizer and its learner."""

    def __init__(self, kind: str = "adam", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(3, 2)
        config = OptimizerConfig.model_validate({"kind": kind} | ({"momentum": 0.9} if kind == "sgd" else {}))
        self.optimizer = make_optimizer(config, self.model.parameters())
        self.learner = Learner(model=self.model, optimizer=self.optimizer)

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 3)).square().sum().backward()
        self.optimizer.step()


def saved(run: Run, step: int, *, best: bool = False, training: Training | None = None) -> None:
    at = training or Training()
    save_checkpoint(run, at.learner, TrainingState(step=step), best=best)


def last_of(run: Run) -> Path:
    path = checkpoint_path(run, "last")
    assert path is not None
    return path


def names(run: Run) -> set[str]:
    return {path.name for path in run.checkpoints.iterdir()}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_checkpoint_restores_model_optimizer_and_state(tmp_path: Path, kind: str) -> None:
    run, item, other = Run(tmp_path), Training(kind), Training(kind, seed=1)
    item.update()
    state = TrainingState(step=3, epoch=1, batch=2, seconds=1.5, best_step=2, best_value=0.25, validated_step=2)
    save_checkpoint(run, item.learner, state, best=True)
    item.update()
    last = last_of(run)
    assert last == checkpoint_path(run, "best")
    assert resume_checkpoint(last, other.learner) == state
    other.update()
    assert torch.equal(item.model.weight, other.model.weight)


def test_others_may_read_a_checkpoint_as_the_mask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        saved(Run(tmp_path), 5)
    finally:
        os.umask(before)
    directory = last_of(Run(tmp_path))
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir()}
    assert modes == dict.fromkeys(("model.safetensors", "optimizer.safetensors", "state.json"), "0o640")


def test_the_optimizers_values_come_from_the_recipe_after_resuming(tmp_path: Path) -> None:
    """Changes the weight decay before resuming; the new value stays."""
    run, item, other = Run(tmp_path), Training(), Training()
    item.update()
    saved(run, 1, training=item)
    other.optimizer.param_groups[0]["weight_decay"] = 0.5
    resume_checkpoint(last_of(run), other.learner)
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert len(other.optimizer.state) == 2


def test_a_moving_average_is_published_and_both_weights_are_restored(tmp_path: Path) -> None:
    run, item, other = Run(tmp_path), Training(), Training(seed=1)
    averages = [nn.Linear(3, 2), nn.Linear(3, 2)]
    learners = [
        Learner(model=each.model, optimizer=each.optimizer, averaged=average)
        for each, average in zip((item, other), averages, strict=True)
    ]
    item.update()
    save_checkpoint(run, learners[0], TrainingState(step=1), best=True)
    last = last_of(run)
    resume_checkpoint(last, learners[1])
    assert torch.equal(other.model.weight, item.model.weight)
    assert torch.equal(averages[1].weight, averages[0].weight)
    published = nn.Linear(3, 2)
    load_weights(last, published)
    assert torch.equal(published.weight, averages[0].weight)
    # If resumed without the average, the training continues with the trained weights.
    resume_checkpoint(last, other.learner)
    assert torch.equal(other.model.weight, item.model.weight)


def test_a_moving_average_may_begin_later(tmp_path: Path) -> None:
    run, item, other = Run(tmp_path), Training(), Training(seed=1)
    saved(run, 1, training=item)
    last, average = last_of(run), nn.Linear(3, 2)
    resume_checkpoint(last, Learner(model=other.model, optimizer=other.optimizer, averaged=average))
    assert torch.equal(average.weight, item.model.weight)


def test_every_process_restores_its_own_random_state(tmp_path: Path) -> None:
    run, training = Run(tmp_path), Training()
    states = [torch.Generator().manual_seed(seed).get_state() for seed in (4, 5)]
    save_checkpoint(run, training.learner, TrainingState(step=1), best=True, random_states=states)
    for rank, state in enumerate(states):
        resume_checkpoint(last_of(run), training.learner, rank=rank)
        assert torch.equal(torch.get_rng_state(), state)


def test_num_kept_validated_checkpoints_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(1, 8):
        state = TrainingState(step=step, validated_step=step - step % 2)
        save_checkpoint(run, Training().learner, state, best=step == 1, num_kept=2)
    assert names(run) == {"best", "last", *(f"step-{step:08d}" for step in (1, 4, 6, 7))}
    remove_strays(run)
    assert names(run) == {"best", "last", *(f"step-{step:08d}" for step in (1, 7))}


def test_only_the_best_and_the_last_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step, best in ((1, True), (2, True), (3, False), (4, False)):
        saved(run, step, best=best)
    assert names(run) == {"best", "last", "step-00000002", "step-00000004"}
    assert (run.checkpoints / "best").readlink() == Path("step-00000002")
    saved(run, 4)
    assert names(run) == {"best", "last", "step-00000002", "step-00000004.1"}


CHECKPOINT = "attendant.training.run.checkpoint"


@pytest.mark.parametrize(
    "moment",
    [
        f"{CHECKPOINT}.save_file",
        f"{CHECKPOINT}.sha256_of",
        "attendant.runtime.files.flush_to_disk",
        f"{CHECKPOINT}._link",
    ],
)
def test_dying_during_a_save_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run = Run(tmp_path)
    saved(run, 1, best=True)

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moment, die)
        with pytest.raises(KeyboardInterrupt):
            saved(run, 2, best=True)
    for which in ("best", "last"):
        result = checkpoint_path(run, which)
        assert result is not None and load_state(result).step == 1
        load_weights(result, Training().model)
    # A process that is killed by SIGKILL leaves these.
    (run.checkpoints / ".step-00000002.partial-x").mkdir()
    (run.checkpoints / ".last.writing").symlink_to("step-00000002")
    remove_strays(run)
    assert names(run) == {"best", "last", "step-00000001"}
    saved(run, 2, best=True)
    assert names(run) == {"best", "last", "step-00000002"}


def test_dying_during_a_removal_leaves_no_part_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    saved(run, 1, best=True)

    def die(folder: Path) -> None:
        (folder / "state.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", lambda folder, ignore_errors=False: ignore_errors or die(folder))
        with pytest.raises(KeyboardInterrupt):
            saved(run, 2, best=True)
    remove_strays(run, num_kept=2)
    assert names(run) == {"best", "last", "step-00000002"}


def test_dying_between_the_links_keeps_both_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    saved(run, 1, best=True)
    link = checkpoint._link

    def once(place: Path, name: str) -> None:
        link(place, name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_link", once)
        with pytest.raises(KeyboardInterrupt):
            saved(run, 2, best=True)
    remove_strays(run)
    steps = {which: load_state(checkpoint_path(run, which) or tmp_path).step for which in ("best", "last")}
    # The resumed run continues from step 1 and finds the same best step again.
    assert steps == {"best": 2, "last": 1}


@pytest.mark.parametrize("has_directories", [True, False])
def test_a_copy_without_links_has_the_same_checkpoints(tmp_path: Path, has_directories: bool) -> None:
    """Copies a run as `scp -r` does, with directories instead of links, or without them, as `rsync -r` does."""
    original, run, training = Run(tmp_path / "original"), Run(tmp_path / "copy"), Training()
    for step in (2, 4):
        save_checkpoint(original, training.learner, TrainingState(step=step, best_step=2), best=step == 2)
    shutil.copytree(original.checkpoints, run.checkpoints, symlinks=not has_directories)
    for which in ("best", "last") if not has_directories else ():
        (run.checkpoints / which).unlink()
    remove_strays(run)

    def steps() -> list[int]:
        return [load_state(checkpoint_path(run, which) or tmp_path).step for which in ("best", "last")]

    assert steps() == [2, 4]
    save_checkpoint(run, training.learner, TrainingState(step=5, best_step=2), best=False)
    assert steps() == [2, 5]
    save_checkpoint(run, training.learner, TrainingState(step=6, best_step=6), best=True)
    assert names(run) == {"best", "last", "step-00000006"} and steps() == [6, 6]
    for which in ("best", "last"):  # A copy of the contents of one link, which are the best and the last checkpoint.
        only = Run(tmp_path / which)
        shutil.copytree(run.checkpoints / which, only.checkpoints / which)
        remove_strays(only)
        paths = [checkpoint_path(only, each) for each in ("best", "last")]
        assert paths == [only.checkpoints / which] * 2


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str) -> None:
    run = Run(tmp_path)
    saved(run, 1)
    last = last_of(run)
    content = bytearray((last / file).read_bytes())
    content[-1] ^= 1
    (last / file).write_bytes(content)
    training = Training()
    with pytest.raises(UserError, match=f"{file} is damaged"):
        resume_checkpoint(last, training.learner)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    saved(run, 1)
    with pytest.raises(UserError, match=r"is of another model: .*weight"):
        load_weights(last_of(run), nn.Linear(3, 5))


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, tiny_recipe: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        load_run(tmp_path)
    with pytest.raises(UserError, match="is not there"):
        load_run(tmp_path / "none")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(tiny_recipe.read_text())
    with pytest.raises(UserError, match="has no checkpoint 'best' yet"):
        load_run(tmp_path / "run")
