"""attendant.evaluate and attendant.report: measure runs and bundles with the decoder that serves.

PyTorch is imported inside functions and for runs only: a server's environment, where bundles are, does not have it.
"""

import errno
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS, Precision, Provider
from attendant.runtime.command import require
from attendant.runtime.errors import UserError, shown
from attendant.runtime.files import CantWrite, is_device, path_of
from attendant.training.data.config import Split
from attendant.training.data.lines import COMPRESSIONS
from attendant.training.data.tokenization import unknown_share
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, MAX_RESAMPLES, LengthUnit, compare
from attendant.training.evaluation.evaluating import (
    EvaluationConfig,
    TextModel,
    decode_examples,
    describe_search,
    search_options,
)
from attendant.training.evaluation.evaluating import evaluate as measure
from attendant.training.evaluation.metrics import BleuTokenizer, MetricName, refuse_missing
from attendant.training.evaluation.session import (
    Data,
    EvaluationData,
    OpenedModel,
    PathName,
    is_bundle,
    open_bundle_model,
    read_data,
)
from attendant.training.library.results import AddOutputs, Result, Results, outputs_file
from attendant.training.progress import ShowProgress, check_progress, counter
from attendant.training.table import problems_of, requirement

if TYPE_CHECKING:
    from attendant.training.report.page import Report

Checkpoint = Literal["best", "last"]


def evaluate(
    models: PathName | Sequence[PathName],
    *,
    data: Data | None = None,
    split: Split | None = None,
    metrics: MetricName | Sequence[MetricName] | None = None,
    bleu_tokenizer: BleuTokenizer | None = None,
    ignored_characters: str | None = None,
    beam_size: int | Sequence[int] | None = None,
    length_penalty: float | Sequence[float] | None = None,
    length_penalty_offset: float | Sequence[float] | None = None,
    patience: float | Sequence[float] | None = None,
    max_length: int | None = None,
    ensemble: bool = False,
    rescore: PathName | Sequence[PathName] = (),
    checkpoint: Checkpoint | None = None,
    precision: Precision | Sequence[Precision] | None = None,
    provider: Provider | None = None,
    bootstrap: int = DEFAULT_RESAMPLES,
    by_length: Sequence[int] | None = None,
    length_unit: LengthUnit | None = None,
    outputs: PathName | None = None,
    progress: ShowProgress | None = None,
) -> Results:
    """Decodes a test set and measures the outputs, each value with its 95 % interval by bootstrap resampling.

    Several models are measured on the same data and compared with the first, several searches of one model with the
    first of those. A run's values are recorded in its evaluation.json too.

    Args:
        models: runs and bundles.
        data: other data than a split: a file of pairs, FILE[COLUMN,COLUMN], two files SOURCE,TARGET, or pairs (source,
            target) in memory.
        split: a split of the runs' recipe, if there are no other data; if None, the test split.
        metrics, bleu_tokenizer, ignored_characters, max_length: see `EvaluationConfig`. If None, those of the run's
            recipe, or of the bundle's manifest.
        beam_size, length_penalty, length_penalty_offset, patience: the same; if there are several, each is measured.
        ensemble: the runs decode together, by the mean of their probabilities.
        rescore: runs by whose probabilities the hypotheses of each beam are ranked.
        checkpoint: checkpoint of runs. If None, the best.
        precision: precision of a bundle's graphs; several: each is measured. If None, the manifest's default.
        provider: runs a bundle; if None, the CPU.
        bootstrap: resamples for the intervals. 0 disables them.
        by_length: measures by the source's length too, in bins that end at these lengths, which are of `length_unit`.
        outputs: a file (.tsv) for every output with its score.
        progress: is called with the name of a decoding, its finished examples and all of them.

    Raises:
        UserError: an option that can't be or has no effect, a model that can't be opened, bad or no data.
        CantWrite: `outputs` can't be written.
    """
    check_progress(progress)
    paths = paths_of("models", models)
    bootstrap = bootstrap.item() if isinstance(bootstrap, np.generic) else bootstrap
    bundles = {path for path in paths if is_bundle(path)}
    runs = [path for path in paths if path not in bundles]
    precisions = _several(precision)
    _refuse(paths, bundles, precisions, provider, checkpoint, bootstrap, ensemble=ensemble)
    common = {
        "metrics": None if metrics is None else _several(metrics),
        "bleu_tokenizer": bleu_tokenizer,
        "ignored_characters": ignored_characters,
        "max_length": max_length,
        "length_edges": by_length,
        "length_unit": length_unit,
    }
    choices = [_several(each) for each in (beam_size, length_penalty, length_penalty_offset, patience)]
    searches = list(_searches(common, choices))
    outputs_path = None if outputs is None else path_of("outputs", outputs)
    for search in searches:
        _config(EvaluationConfig(), search)  # refuses a mistake before anything is loaded
    measured = chosen_data(data, split, runs)
    if outputs_path is not None:
        check_folder("--outputs", outputs_path, [*measured.files, *kept_by(paths)])
    rescorers = paths_of("rescore", rescore)
    rescorer = open_runs(rescorers, "--rescore") if rescorers else None
    together = paths[:1] if ensemble else paths
    pairs = [(path, each) for path in together for each in (precisions if path in bundles else [None])]
    results: list[Result] = []
    first: EvaluationConfig | None = None
    unrecorded: dict[Path, CantWrite] = {}
    with nullcontext() if outputs_path is None else outputs_file(outputs_path) as add_outputs:
        result_of = partial(
            _result,
            data=measured,
            rescorer=None if rescorer is None else rescorer.model,
            add_outputs=add_outputs,
            num_resamples=bootstrap,
            progress=progress,
        )
        for path, each in pairs:
            if path in bundles:
                opened = open_bundle_model(path, each, provider or "cpu")
            else:
                opened = open_runs(paths if ensemble else [path], "--ensemble", checkpoint or "best")
            if rescorer is not None:
                opened = _rescored(opened, rescorer)
            _refuse_idle_search(path, [_config(opened.config, search) for search in searches], choices)
            for place, search in enumerate(searches):
                if len(pairs) == 1:
                    baseline = results[0] if results else None
                else:
                    baseline = results[place] if len(results) >= len(searches) else None
                config = _config(opened.config, search)
                first = first or config
                config = config.measured_as(first)
                _refuse_idle(config, bleu_tokenizer, length_unit)
                if opened.max_beam_size is not None and config.beam_size > opened.max_beam_size:
                    raise UserError(f"--beam-size {config.beam_size}: {path} allows at most {opened.max_beam_size}")
                if rescorer is not None and config.beam_size == 1:
                    raise UserError(
                        "--rescore: greedy search has one hypothesis, which needs no order: give --beam-size 4, say"
                    )
                results.append(result_of(opened, config, baseline))
                if opened.checkpoint and (refusal := _record(opened, results[-1])):
                    unrecorded[path] = refusal
    return Results(data_name=measured.name, results=tuple(results), unrecorded=tuple(unrecorded.values()))


def _result(
    opened: OpenedModel,
    config: EvaluationConfig,
    baseline: Result | None,
    *,
    data: EvaluationData,
    rescorer: TextModel | None,
    add_outputs: AddOutputs | None,
    num_resamples: int,
    progress: ShowProgress | None,
) -> Result:
    """Decodes the data, takes the metrics of `config`, and compares them with a baseline that has the same metrics."""
    refuse_missing(config.metrics, config.bleu_tokenizer)
    options = search_options(config, opened.model)
    count = counter(progress, f"{opened.name}: {describe_search(options)}", len(data.examples))
    began = time.perf_counter()
    decoded = decode_examples(opened.model, data.examples, options, rescorer=rescorer, progress=count)
    seconds = time.perf_counter() - began
    if add_outputs is not None:
        add_outputs(opened.name, options, decoded)
    name = ", ".join(filter(None, (data.name, opened.variant)))
    evaluation = measure(opened.model, decoded, config, data_name=name, num_resamples=num_resamples)
    pairs = () if baseline is None else zip(evaluation.statistics, baseline.evaluation.statistics, strict=True)
    differences = tuple(compare(*pair, num_resamples) for pair in pairs)
    source_ids = np.array([source_id for output in decoded for source_id in output.source_ids], np.int64)
    return Result(
        model=opened.name,
        evaluation=evaluation,
        decode_seconds=seconds,
        unknown_share=unknown_share(source_ids, opened.model.source_tokenizer),
        differences=differences,
    )


def paths_of(field: str, names: PathName | Sequence[PathName]) -> list[Path]:
    """Returns an argument as paths. Raises UserError: it is neither a path nor several; the message names it."""
    if isinstance(names, str | os.PathLike) or not isinstance(names, Iterable):
        return [path_of(field, names)]
    return [path_of(field, name) for name in names]


def kept_by(models: Iterable[Path]) -> list[Path]:
    """Returns the paths that no output may replace or add to: bundles as a whole, and the measurements of runs."""
    return [path if is_bundle(path) else path / "evaluation.json" for path in models]


def check_folder(option: str, path: Path, used: Iterable[Path] = ()) -> None:
    """Checks a file to write before anything is decoded.

    Args:
        used: files that it must not be, and folders that it must not be in.

    Raises:
        UserError: it is a directory, has none, is in use, or has the name of a compressed file.
        CantWrite: its directory can't be written to.
    """
    if path.is_dir():
        raise UserError(f"{option} {path}: is a directory: name a file in it")
    if path.suffix.lower() in COMPRESSIONS:
        raise UserError(f"{option} {path}: is written as plain text: leave {path.suffix} out")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no directory {path.parent}: make it first")
    if not (os.access(path.parent, os.W_OK) or is_device(path)):
        raise CantWrite(path, errno.EACCES)
    written = Path(os.path.realpath(path))  # `resolve` raises if links lead in a circle
    for each in used:
        if written.is_relative_to(os.path.realpath(each)):
            raise UserError(f"{option} {path}: would change {each}, which this command uses: name another file")


def check_bootstrap(num_resamples: int) -> None:
    """Raises UserError: the number of resamples is out of range, or not a whole number."""
    if not isinstance(num_resamples, int) or not 0 <= num_resamples <= MAX_RESAMPLES:
        limits = f"0 (no intervals) to {MAX_RESAMPLES}, e.g. {DEFAULT_RESAMPLES}"
        raise UserError(f"--bootstrap {num_resamples!r}: must be {limits}")


def _several(value: Any) -> list[Any]:
    """Returns the values of an option that may have several; [None] for an empty list."""
    return list(value) or [None] if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def chosen_data(data: Data | None, split: Split | None, runs: Sequence[Path]) -> EvaluationData:
    """Reads data, or if they are None a split of runs.

    Raises:
        UserError: there are none, there are both, or torch is not installed.
    """
    _check_choice("split", split, Split)
    if data is not None:
        if split is not None:
            raise UserError(f"--split {split}: is of a run's own data, and --data gives others: leave one out")
        return read_data(data)
    split = split or "test"
    if not runs:
        raise UserError(f"a bundle has no {split} split: give --data FILE.tsv")
    require("torch", "cpu,training")
    from attendant.training.run.loading import read_held_out  # noqa: PLC0415

    return read_held_out(runs, split)


def open_runs(paths: Sequence[Path], option: str, checkpoint: Checkpoint = "best") -> OpenedModel:
    """Opens a run, or several as an ensemble. Raises UserError: it can't be opened, or PyTorch is not installed."""
    require("torch", "cpu,training")
    from attendant.training.run import loading  # noqa: PLC0415

    return loading.open_runs(paths, option, checkpoint)


def _record(opened: OpenedModel, result: Result) -> CantWrite | None:
    """Adds the measurements to the run's own list; returns the error if it can't be written."""
    from attendant.training.run.directory import Run  # noqa: PLC0415

    measurements = [measurement.to_json() for measurement in result.evaluation.measurements]
    try:
        Run(opened.path).record_evaluations(measurements, opened.checkpoint)
    except CantWrite as refusal:
        return refusal
    return None


def _rescored(opened: OpenedModel, rescorer: OpenedModel) -> OpenedModel:
    """Returns a model whose name contains the rescorer. Raises UserError: the rescorer has other tokenizers."""
    for side in ("source_tokenizer", "target_tokenizer"):
        if getattr(opened.model, side).to_text() != getattr(rescorer.model, side).to_text():
            raise UserError(f"--rescore {rescorer.path}: has another {side} than {opened.path}: train both with one")
    variant = ", ".join(filter(None, (opened.variant, f"rescored by {rescorer.name}")))
    return replace(opened, variant=variant, checkpoint="")


def _refuse(
    paths: Sequence[Path],
    bundles: set[Path],
    precisions: Sequence[str | None],
    provider: str | None,
    checkpoint: str | None,
    bootstrap: int,
    *,
    ensemble: bool,
) -> None:
    """Refuses options without effect, and mistakes that would be noticed only after decoding."""
    if not paths:
        raise UserError("models: there is none: name a run or a bundle")
    check_bootstrap(bootstrap)
    for option, value in (("precision", precisions[0]), ("provider", provider)):
        if value is not None and not bundles:
            raise UserError(f"--{option} {value}: is for bundles, and {paths[0]} is a run: export it first")
    if ensemble and (bundles or len(paths) < 2):
        reason = f"{next(iter(bundles))} is a bundle" if bundles else "there is one"
        raise UserError(f"--ensemble: is of two runs or more, and {reason}")
    for precision in precisions:
        _check_choice("precision", precision, Precision)
    _check_choice("provider", provider, Provider)
    _check_choice("checkpoint", checkpoint, Checkpoint)
    if checkpoint is not None and bundles.issuperset(paths):
        raise UserError(f"--checkpoint {checkpoint}: is for runs; a bundle has the weights it was made of")


def _refuse_idle(config: EvaluationConfig, bleu_tokenizer: str | None, length_unit: str | None) -> None:
    """Refuses options that have no effect on this configuration."""
    if bleu_tokenizer is not None and "bleu" not in config.metrics:
        raise UserError(
            f"--bleu-tokenizer {bleu_tokenizer}: is of bleu, and the metrics are {', '.join(config.metrics)}"
        )
    if length_unit is not None and config.length_edges is None:
        raise UserError(f"--length-unit {length_unit}: is of the bins by length: give --by-length too")


def _refuse_idle_search(path: Path, configs: Sequence[EvaluationConfig], choices: Sequence[Sequence[Any]]) -> None:
    """Refuses options of a search that have no effect on any search of a model.

    Args:
        configs: the model's configuration, for each search.
        choices: the values of each of SEARCH_OPTIONS; None is the configuration's own.
    """
    chosen = {
        name: value
        for name, values in zip(SEARCH_OPTIONS, choices, strict=True)
        for value in values
        # Greedy search has a penalty and a patience of 0.
        if name != "beam_size" and value is not None and (name == "length_penalty_offset" or float(value))
    }
    if chosen and all(config.beam_size == 1 for config in configs):
        name, value = next(iter(chosen.items()))
        raise UserError(
            f"--{name.replace('_', '-')} {value}: has no effect on the greedy search of {path}, which has one "
            "hypothesis: give --beam-size 4, say"
        )
    if "length_penalty_offset" in chosen and not any(config.length_penalty for config in configs):
        raise UserError(
            f"--length-penalty-offset {chosen['length_penalty_offset']}: is of the length penalty, which is 0 for "
            f"{path}: give --length-penalty 1, say"
        )


def _check_choice(option: str, value: str | None, choices: Any) -> None:
    """Raises UserError: a value is not among the choices, a Literal; None is."""
    if value is not None and value not in get_args(choices):
        raise UserError(f"--{option} {value}: must be of {', '.join(get_args(choices))}")


def _searches(common: dict[str, Any], choices: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yields the changes to a model's own configuration, for each search.

    Args:
        choices: the values of each of SEARCH_OPTIONS; None is the configuration's own. Commands pass them as texts.
    """
    done: list[tuple[Any, ...]] = []  # a value may be a list by mistake, which a set would not take
    for values in itertools.product(*choices):
        beam_size, penalty, _, patience = values
        # Greedy search has one hypothesis: no penalty can rank others, and no patience wait for them. Without a penalty
        # its offset changes nothing.
        is_greedy, has_no_penalty = beam_size in (1, "1"), penalty in (0, "0")
        effective = (beam_size,) if is_greedy else (beam_size, patience) if has_no_penalty else values
        if effective not in done:
            done.append(effective)
            search = common | dict(zip(SEARCH_OPTIONS, values, strict=True))
            yield {name: value for name, value in search.items() if value is not None}


def _config(own: EvaluationConfig, search: dict[str, Any]) -> EvaluationConfig:
    try:
        return EvaluationConfig.model_validate(own.model_dump() | search)
    except ValidationError as error:
        problem = problems_of(error)[0]
        field = str(problem["loc"][0])
        option = "by-length" if field == "length_edges" else field.replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {requirement(problem)}") from None


def report(
    runs: PathName | Sequence[PathName],
    *,
    output: PathName | Sequence[PathName] = (),
    data: Data | None = None,
    split: Split | None = None,
    examples: int | PathName = 3,
    length_unit: LengthUnit | None = None,
    progress: ShowProgress | None = None,
) -> "Report":
    """Measures runs on held-out data and shows them as `attendant report` does; notebooks show the page.

    Args:
        runs: the others are compared with the first.
        output: files to write: FILE.html, or FILE.md with its pictures in FILE_pictures/ next to it.
        data, split: as in `evaluate`.
        examples: those whose attention is shown, in addition to the worst ones: their number, or a file of sources.
        length_unit: unit of the bins. If None, the unit suits the sources.
        progress: as in `evaluate`.

    Raises:
        UserError: too many runs, one that is none, or a file of another form; bad or no data.
        CantWrite: a file can't be written.
    """
    require("torch", "cpu,training")
    # Drawing takes long to load, and an evaluation does not draw.
    from attendant.training.report.measuring import MAX_RUNS, choose_examples, measure_runs  # noqa: PLC0415
    from attendant.training.report.page import check_form, compose, write_report  # noqa: PLC0415

    check_progress(progress)
    if not isinstance(examples, int | np.integer | str | os.PathLike):
        raise UserError(f"examples={shown(examples)}: must be a number of examples, or a file of sources")
    paths, outputs = paths_of("runs", runs), paths_of("output", output)
    _check_choice("length-unit", length_unit, LengthUnit)
    if not 1 <= len(paths) <= MAX_RUNS:
        raise UserError(f"{len(paths)} runs: a report compares 1 to {MAX_RUNS}")
    for path in paths:
        if is_bundle(path):
            raise UserError(f"{path} is a bundle: a report is of a run, which has the training's journal and weights")
    for path in outputs:
        check_form(path)
        check_folder("--output", path)
    measured = chosen_data(data, split, paths)
    chosen = choose_examples(str(examples), measured.examples)
    composed = compose(measure_runs(paths, measured, chosen, length_unit=length_unit, progress=progress), measured.name)
    for path in outputs:
        write_report(composed, path)
    return composed
