"""Runs as models that can be evaluated, and the held-out data that their recipes name."""

from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Stepper
from attendant.training.assessment.models import OpenedModel
from attendant.training.assessment.session import EvaluationData, read_data
from attendant.training.data.config import CorpusFiles, Split
from attendant.training.evaluation.decoding import TextModel
from attendant.training.kernels.device import choose_device, use_threads
from attendant.training.model.stepping.ensemble import Ensemble
from attendant.training.model.stepping.stepper import TorchStepper
from attendant.training.run.checkpoint import BEST
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_members


def open_run(path: Path, checkpoint: str = BEST) -> OpenedModel:
    """Raises UserError where the run has no such checkpoint, or is damaged."""
    return open_runs([path], "", checkpoint)


def open_runs(paths: Sequence[Path], option: str, checkpoint: str = BEST) -> OpenedModel:
    """A run, or several as one model, which is measured as the first one's recipe says.

    Args:
        option: what names them, for errors.

    Raises:
        UserError: a run that can't be opened, or that has another tokenizer than the first.
    """
    loaded = load_members(paths, option, checkpoint)
    weights = "" if checkpoint == BEST else f"{checkpoint} checkpoint"
    others = f"with {', '.join(map(str, paths[1:]))} as an ensemble" if len(paths) > 1 else ""
    return OpenedModel(
        path=paths[0],
        model=model_of_runs(loaded),
        config=loaded[0].recipe.evaluation,
        variant=", ".join(filter(None, (weights, others))),
        max_beam_size=None,
    )


def model_of_runs(loaded: Sequence[LoadedRun]) -> TextModel:
    """A run's model, or several as an ensemble, on the device of the first one's recipe."""
    first = loaded[0]
    use_threads(None)
    model = first.model if len(loaded) == 1 else Ensemble([one.model for one in loaded])
    return text_model(first, TorchStepper(model, choose_device(first.recipe.training.device)))


def text_model(loaded: LoadedRun, stepper: Stepper) -> TextModel:
    """A run's text model around a stepper of its weights."""
    recipe = loaded.recipe
    return TextModel(
        stepper=stepper,
        source_tokenizer=loaded.source_tokenizer,
        target_tokenizer=loaded.target_tokenizer,
        special_ids=special_ids(loaded.model.start_id),
        append_eos=recipe.source.append_eos,
        max_length=recipe.data.max_target_tokens,
    )


def read_chosen(file: str | None, runs: Sequence[Path], split: Split) -> EvaluationData:
    """What `--data` names, FILE.tsv or SOURCE,TARGET; None: the split of these runs. Raises UserError: no such data."""
    return read_held_out(runs, split) if file is None else read_data(CorpusFiles.named(file))


def read_held_out(runs: Sequence[Path], split: Split) -> EvaluationData:
    """The held-out split that all these runs' recipes name, without what one of them was trained on. Raises UserError:
    a recipe names no such split, or another one than the first's; bad or no data.
    """
    found = [_held_out_files(path, split) for path in runs]
    for path, files in zip(runs, found, strict=True):
        if files != found[0]:
            raise UserError(
                f"the {split} split of {path} is {files}, that of {runs[0]} is {found[0]}: to compare them on one, "
                "give --data FILE.tsv"
            )
    return read_data(found[0], frozenset().union(*(Run(path).left_out(split) for path in runs)))


def _held_out_files(path: Path, split: Split) -> CorpusFiles:
    files = Run(path).recipe().data.files(split)
    if files is None:
        other = ", or --split validation" if split == "test" else ""
        raise UserError(f"the recipe of {path} has no data.{split}: give --data FILE.tsv{other}")
    return files
