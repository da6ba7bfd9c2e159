"""attendant.train: a training in this process, from its recipe or pairs to the values measured on the test split."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendant.runtime.errors import UserError, shown
from attendant.runtime.files import only_writer, path_of
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import MOST_CHARACTERS, is_in_memory
from attendant.training.data.tokenization import TokenizerConfig
from attendant.training.evaluation.session import PathName
from attendant.training.kernels.hardware import translate_memory_errors
from attendant.training.library.evaluation import evaluate
from attendant.training.library.results import Results
from attendant.training.loop.callbacks import TrainingCallback, make_progress
from attendant.training.loop.experiment import Experiment, prepare
from attendant.training.loop.trainer import Trainer
from attendant.training.loop.update import Processes
from attendant.training.progress import print_line, progress_bars
from attendant.training.recipe import RECIPE_NAME, Overrides, Recipe, load_recipe, settings_of
from attendant.training.recipe_choice import Inputs, files_of, is_recipe, named_inputs, recipe_of_inputs
from attendant.training.run.checkpoint import BEST, LAST, checkpoint_path, weights_digest
from attendant.training.run.directory import Run

if TYPE_CHECKING:
    from attendant.training.report.curves import LearningCurves


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """The result of `attendant.train`. Functions that take the path of a run also take this object.

    Attributes:
        path: the run directory.
        recipe: the resolved recipe.
        data: counts and lengths of the splits, and their files: the content of data.json.
        notes: lines about the data and the model, among them warnings.
        step: steps of the whole run.
        seconds: time of training and validation, over all resumptions.
        best_step, best_value: step and value of the best validation so far, by the recipe's metric. None if there was
            no validation.
        results: measured on the test split. None if there is no such split, or nothing was trained this time.
    """

    path: Path
    recipe: Recipe
    data: Mapping[str, Any]
    notes: tuple[str, ...]
    step: int
    seconds: float
    best_step: int | None
    best_value: float | None
    results: Results | None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return f"trained {self.step:,} steps, {self.seconds:.0f} s; best at step {self.best_step}"

    @property
    def curves(self) -> "LearningCurves":
        """The loss and the validations over the whole run, read from its journal."""
        from attendant.training.report.curves import read_curves  # noqa: PLC0415

        return read_curves(Run(self.path))

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the report's curves, and the values measured."""
        # Imported here: drawing takes long to load.
        from attendant.training.report.page import learning_charts, pictures_html  # noqa: PLC0415

        charts = pictures_html(learning_charts([self.curves], [""], against=("steps",)))
        results = "" if self.results is None else self.results._repr_html_()
        return f"<p>{escape(str(self.path))}: {escape(str(self))}</p>{charts}{results}"


def train(
    recipe: Inputs,
    *,
    output: PathName | None = None,
    overrides: Overrides = (),
    resume: bool = False,
    callbacks: Sequence[TrainingCallback] = (),
    verbose: bool = False,
) -> TrainedRun:
    """Trains a model and leaves a run directory, as the command `attendant train` does.

    The same recipe gives the same weights as by the command, bit for bit. torch's random numbers and number of threads
    are set by the recipe. Ctrl-C ends the training after the running step, which is saved.

    Args:
        recipe: a recipe's file, folder or name, or its tables as a dictionary, in which a split may be pairs (source,
            target) in memory; or files of pairs or pairs in memory alone, for which a recipe is chosen. Pairs in memory
            are stored in the run directory.
        output: the run directory; if None, runs/ and the name of the recipe or the first file.
        overrides: changes of the recipe, {"training.max_epochs": 3}, or texts as --set takes them.
        resume: continues from the last checkpoint of `output`, or begins if there is none.
        callbacks: watch the training; see `TrainingCallback`.
        verbose: prints the command's output: lines about the data, progress, validations.

    Raises:
        UserError: `output` exists, and `resume` is false; a bad recipe or bad data; the training diverges.
        KeyboardInterrupt: Ctrl-C; `resume=True` continues.
        Exception: an exception of a callback; `resume=True` continues.
    """
    run = Run(_run_path(recipe, output, resume=resume))
    processes = Processes()
    if run.path.is_file():
        raise UserError(f"{run.path} is a file: name a folder for the run by --output, e.g. runs/NAME")
    if processes.is_first and run.path.exists() and not resume:
        raise UserError(f"{run.path} exists: --resume continues it, --output names another")
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, TrainingCallback) for each in callbacks):
        raise UserError(f"callbacks = {shown(callbacks)}: must be a list of objects of subclasses of TrainingCallback")
    announce = print_line if verbose and processes.is_first else lambda line: None
    with ExitStack() as stack:
        stack.callback(processes.leave)
        if processes.is_first:
            stack.enter_context(_written(run))
        resolved, notes = _resolved(run, recipe, overrides, processes, resume=resume)
        for note in notes:
            announce(note)
        if processes.is_first:
            fetch(resolved.data, announce=announce)
        stack.enter_context(translate_memory_errors())
        progress = stack.enter_context(progress_bars()) if verbose else None
        experiment = prepare(run, resolved, processes, announce=announce, progress=progress)
        watching = [*callbacks, *([make_progress()] if verbose else [])]
        trainer = Trainer(experiment, processes, watching if processes.is_first else [])
        first_step = trainer.state.step
        described = [*_description(experiment, trainer, processes)]
        for note in described:
            announce(note)
        state = trainer.train()
        processes.wait()  # no process leaves the group while another still listens
        trained = TrainedRun(
            path=run.path,
            recipe=resolved,
            data=experiment.facts,
            notes=(*notes, *described),
            step=state.step,
            seconds=state.seconds,
            best_step=state.best_step,
            best_value=state.best_value,
            results=None,
        )
        announce(str(trained))
        if not processes.is_first or resolved.data.files("test") is None:
            return trained
        best = checkpoint_path(run, BEST)
        if state.step == first_step and best is not None and run.evaluations(weights_digest(best)):
            return trained
        return replace(trained, results=evaluate(run.path, progress=progress))


def _run_path(recipe: Inputs, output: PathName | None, *, resume: bool) -> Path:
    """Returns the run directory; without `output`, runs/ and the name of the recipe or of the first file of pairs.

    A run that is the recipe of a training to resume is continued where it is.
    """
    if output is not None:
        return path_of("output", output)
    names = named_inputs(recipe)
    if not names:
        raise UserError("output: a recipe or pairs in memory have no name: give the run directory, output='runs/NAME'")
    name = names[0]
    path = Path(name if Path(name).exists() else name.partition("[")[0].partition(",")[0])
    if path.is_dir() or path.name == RECIPE_NAME:
        folder = path if path.is_dir() else path.parent
        is_resumed = resume and checkpoint_path(Run(folder), LAST) is not None
        return folder if is_resumed else Path("runs") / folder.resolve().name
    return Path("runs") / (path.stem if is_recipe(name) else path.name.partition(".")[0] or path.name)


@contextmanager
def _written(run: Run) -> Iterator[None]:
    """Locks a run directory; removes it at the end if it is new and no step was made.

    It then has at most data and tokenizers, which would block the next attempt.
    """
    made = [path for path in (run.path, *run.path.parents) if not path.exists()]
    with only_writer(run.path):
        try:
            yield
        finally:
            has_steps = run.metrics_path.exists() and run.metrics_path.stat().st_size > 0
            if run.path in made and not has_steps and checkpoint_path(run, LAST) is None:
                shutil.rmtree(run.path, ignore_errors=True)
                with suppress(OSError):
                    for path in made[1:]:
                        path.rmdir()


def _resolved(
    run: Run, recipe: Inputs, overrides: Overrides, processes: Processes, *, resume: bool
) -> tuple[Recipe, list[str]]:
    """Returns the recipe, and lines that explain it if it was chosen.

    A run of pairs resumes with the recipe that was chosen for them; `prepare` refuses other pairs.
    """
    names = named_inputs(recipe)
    keep_pairs = _refuse_pairs if processes.is_many else run.keep_pairs
    are_pairs = not any(map(is_recipe, names)) if names else is_in_memory(recipe)
    if resume and are_pairs and run.recipe_path.exists():
        files = files_of(names).model_dump(mode="json", exclude_none=True) if names else recipe
        settings = settings_of(overrides) | {"data.train": files}
        return load_recipe(run.recipe_path, settings, keep_pairs=keep_pairs), []
    resolved, lines = recipe_of_inputs(recipe, overrides, keep_pairs)
    return resolved, [*lines, *([f"its file: {run.recipe_path}"] if lines else [])]


def _refuse_pairs(split: str, pairs: object) -> dict[str, Any]:
    raise UserError(f"data.{split}: pairs in memory are for a single process: write them to a file for several")


def _description(experiment: Experiment, trainer: Trainer, processes: Processes) -> Iterator[str]:
    """Yields lines about the data and the model of a training."""
    sizes, warmup_steps = experiment.facts["vocabulary_size"], experiment.recipe.schedule.warmup_steps
    yield from describe(experiment.facts)
    yield from few_symbols(experiment.recipe, sizes)
    yield from experiment.warnings
    max_steps = experiment.recipe.training.step_limit(trainer.num_batches)
    if max_steps is not None and warmup_steps > max_steps:
        yield (
            f"warning: schedule.warmup_steps = {warmup_steps}, and the training has {max_steps} steps, so the learning "
            "rate never reaches optimizer.learning_rate: lower it, or train longer"
        )
    together = f", {processes.size} processes" if processes.is_many else ""
    yield (
        f"vocabularies {sizes['source']} -> {sizes['target']}, {experiment.model.num_parameters:,} parameters, "
        f"on {experiment.device} in {trainer.precision}{together}"
    )


def describe(facts: Mapping[str, Any]) -> list[str]:
    """Returns lines about the data, and about pairs that were left out of the training split."""
    counts = {
        "empty": facts["num_empty"]["train"],
        "too long or empty when normalized": facts["num_too_long"]["train"],
        "of too unequal lengths": facts["num_unequal"]["train"],
        "duplicates or of shared sources": facts["num_left_out"],
    }
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    lines = [
        f"{facts['num_trained_pairs']:,} of {facts['num_pairs']['train']:,} pairs"
        + (left_out and f"; left out: {left_out}")
    ]
    lines += facts["notes"]
    for side, (least, median, most, longest) in facts["lengths"].items():
        lines.append(f"{side}s: {least} to {longest} tokens, half of them up to {median}, 99 % up to {most}")
    for split, count in facts["num_empty"].items():
        if count and split != "train":
            lines.append(f"empty pairs left out of {split}: {count:,}")
    for split, count in facts["num_huge"].items():
        if count:
            lines.append(
                f"pairs left out of {split}, with a text of more than {MOST_CHARACTERS:,} characters: {count:,}"
            )
    if count := facts["num_too_long"]["validation"] + facts["num_unequal"]["validation"]:
        lines.append(f"pairs left out of the loss of validation, too long or of too unequal lengths: {count:,}")
    if facts["num_duplicates"]:
        lines.append(f"duplicates in the training split: {facts['num_duplicates']:,} (see data.drop_duplicates)")
    for split, count in facts["num_sources_shared_with_training"].items():
        if count:
            lines.append(f"sources of {split} that are in the training split too: {count:,} (see data.shared_sources)")
    if count := facts["num_sources_shared_by_validation_and_test"]:
        lines.append(f"sources in both validation and test: {count:,}")
    return lines


def few_symbols(recipe: Recipe, sizes: Mapping[str, int]) -> list[str]:
    """Returns a line for each vocabulary that has fewer symbols than the recipe allows, with the reason."""
    lines = []
    for side in ("source", "target"):
        config: TokenizerConfig = getattr(recipe, side)
        wanted = config.vocabulary_size
        if wanted is not None and sizes[side] < wanted:
            unit = "pair of symbols to merge within a word" if config.tokenizer == "bpe" else "symbol"
            often = f"{config.min_frequency} times" if config.min_frequency > 1 else "at all"
            reason = f"no other {unit} occurs {often}"
            if config.tokenizer == "unigram":  # It drops parts of words that occur, but that it does not need.
                reason = "the model needs no other part of a word"
            lines.append(f"{side}: {sizes[side]:,} symbols, and {side}.vocabulary_size = {wanted}: {reason}")
    return lines
