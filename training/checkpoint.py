"""Checkpoints: a training stopped at a step, whole on disk or not there. No pickle.

    checkpoints/step-00001200/model.safetensors        the weights
                              optimizer.safetensors    the optimizer's tensors, and torch's random state
                              state.json               where the training stood, and the sha256 of the two files
    checkpoints/best, last                             links to the directories that count

A checkpoint is written under a hidden name, flushed to the disk and renamed; then the links are replaced, each in one
step; then what no link names is removed. Whatever moment the power fails, `last` names a whole checkpoint.
"""

import itertools
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from runtime.errors import UserError
from runtime.tokenizer import Tokenizer
from training.data.fetch.published import file_digest
from training.model import Seq2Seq
from training.recipe import Recipe
from training.run import Run

BEST, LAST = "best", "last"
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"
RANDOM_STATE = "random_state.torch_cpu"
WRITING_PREFIX = ".writing-"


@dataclass(slots=True)
class TrainingState:
    """Where a training stands, between two steps.

    Attributes:
        step: updates done.
        epoch: epochs finished.
        batch: batches of the running epoch that are done.
        seconds: spent in training and validation so far, over all resumptions.
        validated_step: the step of the last validation; None: there was none.
        best_step, best_value: the best validation so far.
        num_validations_without_best: in a row.
        plateau_factor, num_flat_validations: the schedule's (training/schedule.py).
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    validated_step: int | None = None
    best_step: int | None = None
    best_value: float | None = None
    num_validations_without_best: int = 0
    plateau_factor: float = 1.0
    num_flat_validations: int = 0


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with everything that says where it came from.

    Attributes:
        recipe: the recipe as resolved; `recipe.model_dump(mode="json")` is its plain form.
        model: in evaluation mode, on the CPU.
        checkpoint: "sha256:" and the digest of the weights' file.
        state: where the training stood.
        evaluation: entries {metric, value, protocol, num_examples, decoding}; may be empty.
        versions: what the training ran on; `commit` is among them.
        data: files with their digests, and counts; `digest` stands for all of them.
    """

    path: Path
    recipe: Recipe
    model: Seq2Seq
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    checkpoint: str
    state: TrainingState
    evaluation: list[dict[str, Any]]
    versions: dict[str, str]
    data: dict[str, Any]

    @property
    def commit(self) -> str:
        return self.versions["commit"]

    @property
    def data_digest(self) -> str:
        return str(self.data["digest"])


def load_run(path: Path | str, which: str = BEST) -> LoadedRun:
    """Opens a run for evaluation or export.

    Args:
        path: the run directory.
        which: "best" or "last".

    Raises:
        UserError: no run, no checkpoint yet, a damaged file.
    """
    run = Run(Path(path))
    recipe = run.recipe()
    directory = checkpoint_path(run, which)
    if directory is None:
        raise UserError(f"{run.path} has no checkpoint {which!r} yet: train it (--resume continues what was begun)")
    source_tokenizer, target_tokenizer = run.tokenizer("source"), run.tokenizer("target")
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    load_weights(directory, model)
    return LoadedRun(
        path=run.path,
        recipe=recipe,
        model=model.eval(),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        checkpoint=f"sha256:{file_digest(directory / MODEL_FILE)}",
        state=load_state(directory),
        evaluation=run.evaluations(),
        versions=run.facts("versions.json"),
        data=run.facts("data.json"),
    )


def checkpoint_path(run: Run, which: str) -> Path | None:
    """The directory that `best` or `last` names; None where there is none."""
    link = run.checkpoints / which
    return link.resolve() if link.is_dir() else None


def save_checkpoint(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState, *, best: bool
) -> None:
    """Publishes the training's present state as `last`, and as `best` too where it is."""
    run.checkpoints.mkdir(exist_ok=True)
    name = _free_name(run.checkpoints, state.step)
    aside = run.checkpoints / f"{WRITING_PREFIX}{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    save_file(_plain(model.state_dict()), aside / MODEL_FILE)
    optimizer_tensors, optimizer_values = _split(optimizer)
    save_file(optimizer_tensors | {RANDOM_STATE: torch.get_rng_state()}, aside / OPTIMIZER_FILE)
    content = {
        "training": asdict(state),
        "optimizer": optimizer_values,
        "sha256": {file: file_digest(aside / file) for file in (MODEL_FILE, OPTIMIZER_FILE)},
    }
    (aside / STATE_FILE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for file in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        _flush(aside / file)
    _flush(aside)
    aside.rename(run.checkpoints / name)
    _flush(run.checkpoints)
    # `last` first: a run that dies in between resumes from a state that knows of the better value, and `best` would
    # then stay behind for ever. With `best` first, a resumed run meets the same validation again.
    for link in (BEST, LAST) if best else (LAST,):
        _link(run.checkpoints / link, name)
    _flush(run.checkpoints)
    remove_strays(run)


def remove_strays(run: Run) -> None:
    """Removes checkpoints that were never finished, or that no link names."""
    if not run.checkpoints.is_dir():
        return
    named = {path.name for which in (BEST, LAST) if (path := checkpoint_path(run, which))}
    for path in run.checkpoints.iterdir():
        if path.is_symlink():
            if path.name not in (BEST, LAST):
                path.unlink()
        elif path.is_dir() and path.name not in named:
            shutil.rmtree(path)


def load_state(directory: Path) -> TrainingState:
    """Where the training stood. Raises UserError where the checkpoint is damaged."""
    known = {field.name for field in fields(TrainingState)}
    values = _content(directory)["training"]
    return TrainingState(**{name: value for name, value in values.items() if name in known})


def load_weights(directory: Path, model: nn.Module) -> None:
    """Fills the model. Raises UserError where the file is damaged or of another model."""
    tensors = _tensors(directory, MODEL_FILE)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{directory / MODEL_FILE} is of another model: {' '.join(str(error).split())}") from None


def resume_checkpoint(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Puts model, optimizer and torch's random state back to where they stood."""
    load_weights(directory, model)
    tensors = _tensors(directory, OPTIMIZER_FILE)
    torch.set_rng_state(tensors.pop(RANDOM_STATE))
    optimizer.load_state_dict(_joined(tensors, _content(directory)["optimizer"]))
    return load_state(directory)


def _content(directory: Path) -> dict[str, Any]:
    path = directory / STATE_FILE
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None
    return content


def _tensors(directory: Path, file: str) -> dict[str, Tensor]:
    path = directory / file
    if file_digest(path) != _content(directory)["sha256"][file]:
        raise UserError(f"{path} is damaged: its sha256 is not the one that {STATE_FILE} recorded")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors wants tensors that share no memory; recurrent layers keep theirs in one block on CUDA.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _split(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and as plain values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values[f"{index}.{name}"] = value
    return _plain(tensors), {"groups": state["param_groups"], "values": values}


def _joined(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
    """What `_split` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in itertools.chain(tensors.items(), plain["values"].items()):
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": plain["groups"]}


def _free_name(folder: Path, step: int) -> str:
    """A step may be saved twice: stopped by hand there, then resumed and validated."""
    names = (f"step-{step:08d}" + (f".{number}" if number else "") for number in itertools.count())
    return next(name for name in names if not (folder / name).exists())


def _link(link: Path, name: str) -> None:
    aside = link.with_name(f"{WRITING_PREFIX}{link.name}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(name, target_is_directory=True)
    aside.replace(link)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
