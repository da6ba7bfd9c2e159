"""Checkpoints: the state of a training after a step, written atomically and without pickle.

    checkpoints/step-00001200/model.safetensors        the weights
                              optimizer.safetensors    for training alone: the optimizer's tensors, torch's random
                                                       states, and, if the weights above are a moving average, those
                                                       that are trained
                              state.json               the training's state, and the sha256 of the two files
    checkpoints/best, last                             links to the directories that count

A checkpoint is written under a hidden name, flushed to the disk and renamed. Then the links are replaced, each in one
step. Then the directories without a link are removed, except the last validated ones if the recipe keeps some. Whenever
the power fails, `last` names a whole checkpoint. A copy of a run may lack the links, or have directories instead of
them: some programs leave links out, and others copy their contents.
"""

import itertools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attendant.runtime.errors import UserError
from attendant.runtime.files import (
    flush_to_disk,
    masked,
    new_folder,
    sha256_of,
    translate_os_errors,
    unused_name,
    write_json,
)
from attendant.training.run.directory import Run, read_json


@dataclass(slots=True)
class TrainingState:
    """The state of a training between two steps.

    Attributes:
        step: updates done.
        epoch: epochs finished.
        batch: batches of the running epoch that are done.
        seconds: spent in training and validation so far, over all resumptions.
        validated_step: the step of the last validation; if None, there was none.
        best_step, best_value, best_loss: the best validation so far; among equal values the lower loss is better.
        num_validations_without_best: number of validations in a row without a new best.
        plateau_factor: the schedule's (training/optimization.py).
        smoothed_loss, lowest_loss, num_high_losses: the guard's (training/loop/trainer.py).
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    validated_step: int | None = None
    best_step: int | None = None
    best_value: float | None = None
    best_loss: float | None = None
    num_validations_without_best: int = 0
    plateau_factor: float = 1.0
    smoothed_loss: float | None = None
    lowest_loss: float | None = None
    num_high_losses: int = 0


def random_state(device: torch.device) -> Tensor:
    """Returns the state [n] uint8 for `restore_random_state`: of the CPU's generator, then of a GPU's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Sets torch's random state from [n] uint8.

    A GPU's state is ignored on a CPU. If none was saved, the GPU keeps its own.
    """
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)


BEST, LAST = "best", "last"
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"
RANDOM_STATE, TRAINED = "random_state.", "trained."


def checkpoint_path(run: Run, which: str) -> Path | None:
    """Returns the directory that `best` or `last` names; None if there is none.

    Without links, the last checkpoint is the one of the highest step, and its state has the best one's step. A copy may
    also have the contents of one link alone.
    """
    link = run.checkpoints / which
    if link.is_dir():
        return link.resolve()
    other = run.checkpoints / (LAST if which == BEST else BEST)
    paths = sorted(run.checkpoints.glob("step-*")) or [other] * other.is_dir()
    if which == LAST:
        return paths[-1].resolve() if paths else None
    last = checkpoint_path(run, LAST)
    best_step = None if last is None else load_state(last).best_step
    return next((path.resolve() for path in paths if load_state(path).step == best_step), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The modules and the optimizer whose values an update changes; checkpoints save them.

    Attributes:
        model: the weights that are trained.
        averaged: a model with the weights that are published instead. If None, those of `model` are.
        scaler: fp16's.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averaged: nn.Module | None = None
    scaler: torch.amp.GradScaler | None = None


def save_checkpoint(
    run: Run,
    learner: Learner,
    state: TrainingState,
    *,
    best: bool,
    random_states: Sequence[Tensor] | None = None,
    num_kept: int = 0,
) -> None:
    """Publishes the training's state as `last`, and also as `best` if it is the best.

    Args:
        random_states: torch's, of each process. If None, this process's, on a CPU.
        num_kept: number of the last validated checkpoints that stay.
    """
    published = learner.model if learner.averaged is None else learner.averaged
    tensors, values = _split(learner.optimizer)
    random_states = [random_state(torch.device("cpu"))] if random_states is None else random_states
    tensors |= {f"{RANDOM_STATE}{rank}": each for rank, each in enumerate(random_states)}
    if learner.averaged is not None:
        tensors |= {f"{TRAINED}{name}": tensor for name, tensor in _plain(learner.model.state_dict()).items()}
    content = {"training": asdict(state), "optimizer": values}
    if learner.scaler is not None and learner.scaler.is_enabled():
        content["scaler"] = learner.scaler.state_dict()
    publish_checkpoint(
        run, {MODEL_FILE: _plain(published.state_dict()), OPTIMIZER_FILE: tensors}, content, step=state.step, best=best
    )
    remove_strays(run, num_kept=num_kept)


def publish_checkpoint(
    run: Run, files: Mapping[str, dict[str, Tensor]], content: dict[str, Any], *, step: int, best: bool
) -> None:
    """Writes a checkpoint whole, `content` and the digests of `files` as its state.json, and links it.

    Raises:
        CantWrite: the disk is full; the earlier checkpoints are unharmed.
    """
    # A step is saved twice if the training is stopped there, resumed, and then validated.
    names = (f"step-{step:08d}" + (f".{number}" if number else "") for number in itertools.count())
    name = next(name for name in names if not (run.checkpoints / name).exists())
    with new_folder(run.checkpoints / name) as folder:
        for file, tensors in files.items():
            _save(tensors, folder / file)
        content = content | {"sha256": {file: sha256_of(folder / file) for file in files}}
        write_json(folder / STATE_FILE, content)
    # `best` first: a run that dies in between is resumed from the former state, and comes to the same validation again.
    # With `last` first it would resume from a state with the better value, and `best` would never be replaced.
    for link in (BEST, LAST) if best else (LAST,):
        _link(run.checkpoints / link, name)
    flush_to_disk(run.checkpoints)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
        path.chmod(masked(0o666))  # the library's files are readable by their owner only
    except SafetensorError as error:
        # The message contains the operating system's error number.
        if match := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from None
        raise


def validated_checkpoints(run: Run) -> list[Path]:
    """Returns the directories of the validated checkpoints, by step, without those that a stopped training left."""
    by_step = {}
    for path in run.checkpoints.glob("step-*"):
        state = load_state(path)
        if state.validated_step == state.step:
            by_step[state.step] = path
    return [by_step[step] for step in sorted(by_step)]


def remove_strays(run: Run, *, num_kept: int = 0) -> None:
    """Removes unfinished checkpoints, and all but the best, the last and the last `num_kept` validated ones.

    Raises:
        CantWrite: the folder can't be changed; the checkpoints with a link are unharmed.
    """
    if not run.checkpoints.is_dir():
        return
    named = {path.name for which in (BEST, LAST) if (path := checkpoint_path(run, which))}
    if num_kept:
        named |= {path.name for path in validated_checkpoints(run)[-num_kept:]}
    for path in run.checkpoints.iterdir():
        if path.is_symlink():
            if path.name not in (BEST, LAST):
                path.unlink()
        elif path.is_dir() and path.name not in named:
            # Under another name first: a process that is killed here leaves no part of a checkpoint.
            with translate_os_errors(path):
                shutil.rmtree(path.rename(unused_name(path)))


def load_state(directory: Path) -> TrainingState:
    """Returns the training's state. Raises UserError: the checkpoint is damaged."""
    known = {field.name for field in fields(TrainingState)}
    values = load_content(directory)["training"]
    return TrainingState(**{name: value for name, value in values.items() if name in known})


def weights_digest(directory: Path) -> str:
    """Returns "sha256:" and the digest of the published weights in state.json; loading compares the file with it.

    Raises:
        UserError: state.json can't be read.
    """
    return f"sha256:{load_content(directory)['sha256'][MODEL_FILE]}"


def load_weights(directory: Path, model: nn.Module) -> None:
    """Loads the published weights into the model. Raises UserError: the file is damaged or of another model."""
    _fill(model, load_tensors(directory, MODEL_FILE), directory / MODEL_FILE)


def resume_checkpoint(
    directory: Path, learner: Learner, *, device: torch.device | None = None, rank: int = 0
) -> TrainingState:
    """Restores weights, optimizer and this process's random state.

    A moving average that is new in this run begins with the present weights.

    Args:
        device: device of the training. If None, it is the CPU.
        rank: this process's.

    Raises:
        UserError: a damaged file, or averaged weights without an optimizer's state.
    """
    content = load_content(directory)
    if OPTIMIZER_FILE not in content["sha256"]:
        raise UserError(f"{directory} holds averaged weights only, which can't be trained on: resume their run")
    published, tensors = load_tensors(directory, MODEL_FILE), load_tensors(directory, OPTIMIZER_FILE)
    random_states = _taken(tensors, RANDOM_STATE)
    trained = _taken(tensors, TRAINED) or published
    _fill(learner.model, trained, directory / MODEL_FILE)
    if learner.averaged is not None:
        _fill(learner.averaged, published, directory / MODEL_FILE)
    if str(rank) in random_states:
        restore_random_state(random_states[str(rank)], device or torch.device("cpu"))
    # The groups have the recipe's values, which may have changed since the checkpoint.
    groups = learner.optimizer.state_dict()["param_groups"]
    state = _joined(tensors, content["optimizer"]["values"])
    learner.optimizer.load_state_dict({"state": state, "param_groups": groups})
    if learner.scaler is not None and content.get("scaler"):
        learner.scaler.load_state_dict(content["scaler"])
    return load_state(directory)


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{path} is of another model: {' '.join(str(error).split())}") from None


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Moves the tensors whose names begin with a prefix out of `tensors`; their names lose the prefix."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def load_content(directory: Path) -> dict[str, Any]:
    """Returns a checkpoint's state.json. Raises UserError: it can't be read."""
    return read_json(directory / STATE_FILE, dict, "training", "sha256")


def load_tensors(directory: Path, file: str) -> dict[str, Tensor]:
    """Returns a file's tensors [...] by name, e.g. a model's state dict. Raises UserError: the file is damaged."""
    path = directory / file
    if sha256_of(path) != load_content(directory)["sha256"][file]:
        raise UserError(f"{path} is damaged: its sha256 is not the one that {STATE_FILE} recorded")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors requires tensors that share no memory; recurrent layers keep theirs in one block on CUDA.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _split(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns an optimizer's state of each parameter as named tensors and as plain values."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values[f"{index}.{name}"] = value
    return _plain(tensors), {"values": values}


def _joined(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Returns the inverse of `_split`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in itertools.chain(tensors.items(), values.items()):
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state


def _link(link: Path, name: str) -> None:
    aside = unused_name(link)
    with translate_os_errors(link):
        if link.is_dir() and not link.is_symlink():
            link.rename(unused_name(link))
        aside.symlink_to(name, target_is_directory=True)
        aside.replace(link)
