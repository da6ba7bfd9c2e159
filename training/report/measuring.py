"""Takes all measurements that a report shows of its runs: learning curves, quality by length, examples, attention."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import TracedSearch
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Floats
from attendant.training.data.lines import source_lines
from attendant.training.data.pairs import MOST_CHARACTERS, Example, num_words, sample_evenly
from attendant.training.evaluation.bootstrap import DEFAULT_EDGES, Difference, LengthUnit, compare
from attendant.training.evaluation.evaluating import (
    Decoded,
    Evaluation,
    TextModel,
    decode_examples,
    evaluate,
    search_options,
    source_lengths,
)
from attendant.training.evaluation.session import EvaluationData
from attendant.training.progress import ShowProgress, counter
from attendant.training.report.curves import LearningCurves, read_curves
from attendant.training.report.gradients import Gradients, measure_gradients
from attendant.training.report.judging import Changes, Judged, Ranking, changes_since, judge, rank
from attendant.training.run.checkpoint import load_state, load_weights, validated_checkpoints
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_run, model_of_runs

MAX_RUNS = len(ascii_uppercase)
NUM_GRADIENT_PAIRS = 64
NUM_WORST_MAPS = 3
NUM_CHECKPOINTS = 5
NUM_CANDIDATES = 4  # Recorded candidates of each live hypothesis.
BIN_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_BINS = 8
TAIL = 1.0  # Per cent of the examples that the first and the last bin have at least.
FEW_WORDS = 3


def natural_unit(sources: Sequence[str]) -> LengthUnit:
    """Returns the default unit of lengths: words, or tokens if most sources are only one or two words."""
    return "words" if float(np.median([num_words(source) for source in sources])) >= FEW_WORDS else "tokens"


def natural_edges(lengths: Sequence[int]) -> tuple[int, ...]:
    """Returns the ends of at most MAX_BINS bins of a round width that suit the lengths.

    If the lengths are those of sentences, these are the usual bins of papers on translation.
    """
    low, high = (round(float(length)) for length in np.percentile(lengths, [TAIL, 100 - TAIL]))
    if DEFAULT_EDGES[2] < high <= DEFAULT_EDGES[-1]:
        return tuple(edge for edge in DEFAULT_EDGES if edge < high)
    width = next((width for width in BIN_WIDTHS if (high - low) / width <= MAX_BINS - 1), BIN_WIDTHS[-1])
    first = max(1, -(-low // width)) * width
    return tuple(range(first, max(first + 1, high), width))


def choose_examples(option: str, examples: Sequence[Example]) -> list[Example]:
    """Returns the examples that `--examples` names: a number of them, evenly from the data, or a file of sources.

    A line of the file is a source, or a source, a tab and a reference.

    Raises:
        UserError: a negative number; no such file, bad UTF-8, a table, no source in it, or a text that is too long.
    """
    if option.startswith("-") and option[1:].isdecimal():
        raise UserError(f"--examples {option}: must be a number of examples, 0 or more, or a file of sources")
    if option.isdecimal():
        return sample_evenly(examples, int(option))
    columns = [line.partition("\t") for line in source_lines(Path(option))]
    chosen = [
        Example(source.strip(), (target.strip(),) if target.strip() else ())
        for source, _, target in columns
        if source.strip()
    ]
    if not chosen:
        raise UserError(f"--examples {option}: has no sources: write one per line")
    if any(len(text) > MOST_CHARACTERS for example in chosen for text in (example.source, *example.references)):
        raise UserError(f"--examples {option}: has a text of more than {MOST_CHARACTERS:,} characters: shorten it")
    return chosen


@dataclass(frozen=True, slots=True)
class Attended:
    """An output with the attention [T, S] that made it, and the T and S tokens on both sides, EOS included."""

    decoded: Decoded
    weights: Floats
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]


@dataclass(frozen=True, slots=True)
class Searched:
    """An example with the course of its search; `tokens_of` are the target tokenizer's."""

    example: Example
    text: str
    search: TracedSearch
    tokens_of: Callable[[Iterable[int]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as a report shows it.

    Attributes:
        letter: its name in the pictures; empty for a single run.
        name: the directory's name; the path if two runs share the name.
        loaded: its best checkpoint.
        evaluation: by source length too.
        differences: to the first run, metric by metric; empty for the first.
        rankings: the best and the worst outputs.
        changes: since the first run; None for the first.
        chosen, worst: empty if the model has no attention.
        course: steps of the training, rising, with the first chosen example's output and attention then; empty if the
            run kept fewer than two checkpoints, or the model has no attention.
        searches: searches of the worst outputs; empty if the recipe decodes greedily.
        gradients: None if no example could be followed.
    """

    letter: str
    name: str
    loaded: LoadedRun
    curves: LearningCurves
    evaluation: Evaluation
    differences: tuple[Difference, ...]
    rankings: tuple[Ranking, ...]
    changes: Changes | None
    chosen: tuple[Attended, ...]
    worst: tuple[Attended, ...]
    course: tuple[tuple[int, Attended], ...]
    searches: tuple[Searched, ...]
    gradients: Gradients | None

    @property
    def title(self) -> str:
        return f"{self.letter} {self.name}".strip()


def measure_runs(
    paths: Sequence[Path],
    data: EvaluationData,
    chosen: Sequence[Example],
    *,
    length_unit: LengthUnit | None = None,
    progress: ShowProgress | None = None,
) -> list[MeasuredRun]:
    """Decodes and measures, each run by the search of its recipe, all by the metrics of the first.

    Args:
        paths: directories of runs, at most MAX_RUNS.
        chosen: examples whose attention is shown.
        length_unit: unit of the bins. If None, the unit suits the sources.
        progress: shows each decoding.

    Raises:
        UserError: a run has no checkpoint, or is damaged.
    """
    runs = [load_run(path) for path in paths]
    short_names = [path.resolve().name for path in paths]
    names = [name if short_names.count(name) == 1 else str(path) for name, path in zip(short_names, paths, strict=True)]
    models = [model_of_runs([run]) for run in runs]
    searches = [search_options(run.recipe.evaluation, model) for run, model in zip(runs, models, strict=True)]
    outputs = []
    for name, model, options in zip(names, models, searches, strict=True):
        count = counter(progress, f"decoding {name}", len(data.examples))
        outputs.append(decode_examples(model, data.examples, options, progress=count))
    unit = length_unit or natural_unit([example.source for example in data.examples])
    edges = natural_edges(
        [
            length
            for model, decoded in zip(models, outputs, strict=True)
            for length in source_lengths(model, decoded, unit)
        ]
    )
    measured: list[MeasuredRun] = []
    judgements: list[list[Judged]] = []
    bins = {"length_edges": edges, "length_unit": unit}
    for place, (run, model, options, decoded) in enumerate(zip(runs, models, searches, outputs, strict=True)):
        config = run.recipe.evaluation.measured_as(runs[0].recipe.evaluation).model_copy(update=bins)
        evaluation = evaluate(model, decoded, config, data_name=data.name)
        baseline = measured[0].evaluation.statistics if measured else ()
        judgements.append(judge(decoded, evaluation.measurements[0].metric, config.ignored_characters))
        rankings = rank(judgements[-1])
        worst = [entry.decoded.example for entry in rankings[0].entries[:NUM_WORST_MAPS]] if rankings else []
        attending = replace(options, attention=True)
        attend = partial(_attend, model, attending)
        has_attention = run.recipe.model.has_attention
        measured.append(
            MeasuredRun(
                letter=ascii_uppercase[place] if len(paths) > 1 else "",
                name=names[place],
                loaded=run,
                curves=read_curves(Run(run.path)),
                evaluation=evaluation,
                differences=tuple(
                    compare(*pair) for pair in zip(evaluation.statistics, baseline, strict=bool(baseline))
                ),
                rankings=rankings,
                changes=changes_since(judgements[0], judgements[-1]) if place else None,
                chosen=attend(chosen) if has_attention else (),
                worst=attend(worst) if has_attention else (),
                searches=_searches(model, options, worst) if options.beam_size > 1 else (),
                course=_course(run, attending, chosen[:1]) if has_attention else (),
                gradients=_gradients(run, model, data.examples),
            )
        )
    return measured


def _attend(model: TextModel, options: DecodingOptions, examples: Sequence[Example]) -> tuple[Attended, ...]:
    end = model.target_tokenizer.tokens_of([model.special_ids.eos])
    return tuple(
        Attended(
            output,
            output.attention,
            model.source_tokenizer.tokens_of(output.source_ids),
            model.target_tokenizer.tokens_of(output.token_ids) + end * (output.finish_reason is FinishReason.EOS),
        )
        for output in decode_examples(model, examples, options)
        if output.attention is not None
    )


def _course(run: LoadedRun, options: DecodingOptions, examples: Sequence[Example]) -> tuple[tuple[int, Attended], ...]:
    """Decodes an example, the only one of `examples`, with the weights of up to NUM_CHECKPOINTS of the run."""
    kept = validated_checkpoints(Run(run.path))
    if len(kept) < 2:
        return ()
    course = []
    for place in np.unique(np.linspace(0, len(kept) - 1, min(len(kept), NUM_CHECKPOINTS)).round().astype(int)):
        model = copy.deepcopy(run.model)
        load_weights(kept[place], model)
        attended = _attend(model_of_runs([replace(run, model=model)]), options, examples)
        course += [(load_state(kept[place]).step, each) for each in attended]
    return tuple(course)


def _searches(model: TextModel, options: DecodingOptions, examples: Sequence[Example]) -> tuple[Searched, ...]:
    """Decodes examples again, with a record of each search."""
    batch = RunningBatch(model.stepper, model.special_ids)
    traced = replace(options, trace=NUM_CANDIDATES)
    sources = model.source_ids([example.source for example in examples])
    batch.join([BatchRequest(number, source, traced) for number, source in enumerate(sources)])
    searches: dict[int, Searched] = {}
    while batch.num_rows:
        report = batch.step()
        for number, (best, *_) in report.finished:
            text = model.target_tokenizer.decode(best.token_ids)
            (search,) = report.traces[number]
            searches[number] = Searched(examples[number], text, search, model.target_tokenizer.tokens_of)
    return tuple(searches[number] for number in range(len(examples)))


def _gradients(run: LoadedRun, model: TextModel, examples: Sequence[Example]) -> Gradients | None:
    """Measures examples that training could have seen: neither empty nor beyond the recipe's lengths."""
    data = run.recipe.data
    sampled = sample_evenly(examples, NUM_GRADIENT_PAIRS)
    sources = model.source_ids([example.source for example in sampled])
    targets = model.target_tokenizer.encode_batch([example.references[0] for example in sampled])
    fitting = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if 0 < len(source) - model.num_special <= data.max_source_tokens and 0 < len(target) <= data.max_target_tokens
    ]
    return measure_gradients(run.model, *zip(*fitting, strict=True)) if fitting else None
