"""attendant average RUN --last N --output DIRECTORY: the mean of the last checkpoints, as a run."""

import argparse
import shutil
from pathlib import Path

import torch

from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder
from attendant.training.run.checkpoint import (
    MODEL_FILE,
    load_content,
    load_state,
    load_tensors,
    publish_checkpoint,
    validated_checkpoints,
)
from attendant.training.run.directory import Run

COPIED = ("recipe.toml", "versions.json", "data.json", "source_tokenizer.json", "target_tokenizer.json")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="attendant average",
        description="Averages the weights of a run's last validated checkpoints (those that training.keep_checkpoints "
        "kept) into a new run, to be evaluated and exported.",
    )
    found.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    found.add_argument("--last", type=int, default=5, metavar="N", help="so many checkpoints (default: 5)")
    found.add_argument("--output", type=Path, required=True, metavar="DIRECTORY", help="the new run directory")
    return found


def run(arguments: argparse.Namespace) -> None:
    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: must be at least 1")
    steps = average_run(Run(arguments.run), arguments.last, arguments.output)
    print(f"{arguments.output}: the mean of the weights at steps {', '.join(map(str, steps))}")
    print(f"next: attendant evaluate {arguments.output}")


def average_run(run: Run, last: int, output: Path) -> list[int]:
    """Averages the weights of the last validated checkpoints.

    Args:
        output: a new run directory; its one checkpoint can be evaluated and exported, but not trained on.

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: there are fewer; `output` stands already, or can't be written.
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
    models = [load_tensors(path, MODEL_FILE) for path in chosen]
    # The means are taken in float64.
    weights = {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(first.dtype)
        for name, first in models[0].items()
    }
    steps = [load_state(path).step for path in chosen]
    content = {"training": load_content(chosen[-1])["training"], "averaged_steps": steps}
    with new_folder(output) as folder:
        for name in COPIED:
            shutil.copyfile(run.path / name, folder / name)
        for path in (run.left_out_path, run.start_path, run.teachers_path):
            if path.exists():
                shutil.copyfile(path, folder / path.name)
        publish_checkpoint(Run(folder), {MODEL_FILE: weights}, content, step=steps[-1], best=True)
    return steps
