"""Averages the weights of several checkpoints into a run of its own."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from attendant.runtime.errors import UserError
from attendant.training.run.checkpoint import (
    MODEL_FILE,
    load_content,
    load_state,
    publish_checkpoint,
    published_weights,
    validated_checkpoints,
)
from attendant.training.run.directory import Run

COPIED = ("recipe.toml", "versions.json", "data.json", "source_tokenizer.json", "target_tokenizer.json")


def average_run(run: Run, last: int, output: Path) -> list[int]:
    """Averages the weights of the last validated checkpoints.

    Args:
        run: stays as it is.
        last: how many.
        output: a new run directory; its one checkpoint can be evaluated and exported, but not trained on.

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: there are fewer; `output` stands already.
    """
    if output.exists():
        raise UserError(f"{output} exists: --output names another")
    run.recipe()
    found = validated_checkpoints(run)
    if len(found) < last:
        raise UserError(
            f"{run.path} has {len(found)} validated checkpoint{'' if len(found) == 1 else 's'}, fewer than --last "
            f"{last}: train with training.keep_checkpoints = {last}, or average fewer"
        )
    chosen = found[-last:]
    weights = average_weights([published_weights(path) for path in chosen])
    steps = [load_state(path).step for path in chosen]
    content = {"training": load_content(chosen[-1])["training"], "averaged_steps": steps}
    # Aside first: a run stands whole or not at all.
    aside = Run(output.with_name(f".{output.name}.writing"))
    shutil.rmtree(aside.path, ignore_errors=True)
    aside.path.mkdir(parents=True)
    for name in COPIED:
        shutil.copyfile(run.path / name, aside.path / name)
    for path in (run.left_out_path, run.start_path):
        if path.exists():
            shutil.copyfile(path, aside.path / path.name)
    publish_checkpoint(aside, {MODEL_FILE: weights}, content, step=steps[-1], best=True)
    aside.path.rename(output)
    return steps


def average_weights(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, taken in double precision."""
    return {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(first.dtype)
        for name, first in models[0].items()
    }
