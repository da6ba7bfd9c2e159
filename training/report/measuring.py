"""Takes all measurements that a report shows of its runs: learning curves, quality by length, examples, attention."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import TracedSearch
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Floats
from attendant.training.data.pairs import Example, num_words, numbered_lines, sample_evenly
from attendant.training.evaluation.bootstrap import DEFAULT_EDGES, Difference, LengthUnit, compare
from attendant.training.evaluation.evaluating import (
    SHARED_MEASURES,
    Decoded,
    Evaluation,
    TextModel,
    decode_examples,
    evaluate,
    search_options,
    source_lengths,
)
from attendant.training.evaluation.metrics import (
    LOWER_IS_BETTER,
    MetricName,
    PerplexityName,
    TextMetricName,
    take_statistics,
)
from attendant.training.evaluation.session import EvaluationData
from attendant.training.progress import ShowProgress, counter
from attendant.training.recipe_choice import are_symbols
from attendant.training.report.gradients import Gradients, measure_gradients
from attendant.training.run.checkpoint import load_state, load_weights, validated_checkpoints
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_run, model_of_runs

MAX_RUNS = len(ascii_uppercase)
MAX_POINTS = 400  # Points of a curve in a picture; more are averaged in groups.
NUM_GRADIENT_PAIRS = 64
NUM_WORST_MAPS = 3
NUM_CHECKPOINTS = 5
NUM_CANDIDATES = 4  # Of each live hypothesis of a recorded search.
LIST_SIZE = 6
BY_CHARACTERS: Final = frozenset({"cer"})
MAX_ALIGNED: Final = 4000  # Characters of two texts that are compared character by character.
BIN_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_BINS = 8
TAIL = 1.0  # Per cent of the examples that the first and the last bin have at least.
FEW_WORDS = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over the course of a training.

    Attributes:
        steps: [N] rising; seconds: [N] of the training so far; values: [N].
    """

    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def empty(cls) -> "Curve":
        return cls(np.empty(0), np.empty(0), np.empty(0))

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self) -> "Curve":
        """Returns the means of groups of neighbours, at most MAX_POINTS."""
        if len(self) <= MAX_POINTS:
            return self
        groups = np.array_split(np.stack([self.steps, self.seconds, self.values]), MAX_POINTS, axis=1)
        return Curve(*np.stack([group.mean(1) for group in groups], 1))


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """The curves of a run's journal.

    Attributes:
        train_loss: loss of the batches, in nats per target token, smoothed labels and dropout included.
        validation: by name: "loss", in nats per target token, and the recipe's metric.
    """

    train_loss: Curve
    validation: Mapping[str, Curve]


def read_curves(run: Run) -> LearningCurves:
    """Reads metrics.jsonl, except an unfinished last line. Raises UserError: a line is not an event of a training."""
    events: list[dict[str, Any]] = []
    text = run.metrics_path.read_text(encoding="utf-8") if run.metrics_path.exists() else ""
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            event = json.loads(line)
            _ = event["event"], event["step"], event["seconds"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{run.metrics_path}:{number}: is no event of a training: remove the line") from None
        events.append(event)
    train = [event for event in events if event["event"] == "train"]
    validation = [event for event in events if event["event"] == "validation"]
    # Perplexities are the loss again, in another unit.
    skipped = ("event", "step", "epoch", "seconds", *get_args(PerplexityName))
    names = [name for name in dict.fromkeys(name for event in validation for name in event) if name not in skipped]
    return LearningCurves(_curve(train, "loss"), {name: _curve(validation, name) for name in names})


def _curve(events: Sequence[Mapping[str, Any]], name: str) -> Curve:
    having = [event for event in events if name in event]
    return Curve(*(np.array([event[key] for event in having], np.float64) for key in ("step", "seconds", name)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An output with its value by the metric and its probability by the model.

    Attributes:
        metric, value: metric and its value for this output alone.
        confidence: the mean natural-log probability of its symbols, EOS included if it ended there. The sum would only
            show which outputs are long.
    """

    decoded: Decoded
    metric: TextMetricName
    value: float
    confidence: float

    @property
    def is_right(self) -> bool:
        output = self.decoded.text.split()
        return any(output == reference.split() for reference in self.decoded.example.references)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Outputs ranked by one criterion, most extreme first."""

    title: str
    entries: tuple[Judged, ...]


def judge(decoded: Sequence[Decoded], metric: MetricName) -> list[Judged]:
    """Returns each decoded output by `metric`, or by a graded one instead, see `_graded`."""
    outputs = [output for output in decoded if output.finish_reason is not None]
    if not outputs:
        return []
    references = [output.example.references for output in outputs]
    graded = _graded(metric, references)
    values = take_statistics(graded, [output.text for output in outputs], references).values()
    return [
        Judged(
            decoded=output,
            metric=graded,
            value=float(value),
            confidence=output.log_prob / max(1, len(output.token_ids) + (output.finish_reason is FinishReason.EOS)),
        )
        for output, value in zip(outputs, values, strict=True)
    ]


def _graded(metric: MetricName, references: Sequence[Sequence[str]]) -> TextMetricName:
    """Returns the metric that ranks single outputs. A metric that is only right or wrong, needs a whole test set, or is
    not of outputs, is replaced.
    """
    match metric:
        case "wer" | "exact_match":
            # A word that differs in a letter would be as wrong by PER as any other.
            return "per" if are_symbols([targets[0] for targets in references]) else "cer"
        case "bleu" | "perplexity" | "word_perplexity":
            return "chrf"
        case _:
            return metric


def rank(judged: Sequence[Judged]) -> tuple[Ranking, ...]:
    """Returns the lists of a report, always the same ones. No output is in two lists; an empty list is left out."""
    sign = -1.0 if judged and judged[0].metric in LOWER_IS_BETTER else 1.0
    wrong = [entry for entry in judged if not entry.is_right]
    criteria: dict[str, tuple[Sequence[Judged], Callable[[Judged], tuple[float, ...]]]] = {
        "Worst by the metric; of equals, those that the model was surest of": (
            wrong,
            lambda entry: (sign * entry.value, -entry.confidence),
        ),
        "Wrong, and surest of it": (wrong, lambda entry: (-entry.confidence,)),
        "Least sure": (judged, lambda entry: (entry.confidence,)),
        "Best by the metric; of equals, the longest sources": (
            judged,
            lambda entry: (-sign * entry.value, -len(entry.decoded.source_ids)),
        ),
        "Surest": (judged, lambda entry: (-entry.confidence,)),
    }
    waiting = {title: iter(sorted(entries, key=key)) for title, (entries, key) in criteria.items()}
    lists: dict[str, list[Judged]] = {title: [] for title in waiting}
    shown: set[int] = set()
    # The lists choose in turns, so that each begins with the most extreme output by its criterion.
    for _ in range(LIST_SIZE):
        for title, entries in waiting.items():
            chosen = next((entry for entry in entries if id(entry) not in shown), None)
            if chosen is not None:
                shown.add(id(chosen))
                lists[title].append(chosen)
    return tuple(Ranking(title, tuple(entries)) for title, entries in lists.items() if entries)


@dataclass(frozen=True, slots=True)
class Change:
    """Two runs' outputs of the same source."""

    now: Judged
    former: Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A run's outputs compared with those of the first run.

    Attributes:
        num_same: sources with the same output, word by word.
        num_better, num_worse: sources whose output is better or worse by the metric.
        num_equal: sources with another output that is as good.
        better, worse: the largest differences; of equal ones, those with the shortest sources.
    """

    num_same: int
    num_better: int
    num_worse: int
    num_equal: int
    better: tuple[Change, ...]
    worse: tuple[Change, ...]


def changes_since(former: Sequence[Judged], judged: Sequence[Judged]) -> Changes:
    """Compares outputs for the same sources, each of which is there once, by the same metric."""
    by_source = {entry.decoded.example.source: entry for entry in former}
    pairs = [
        Change(entry, by_source[entry.decoded.example.source])
        for entry in judged
        if entry.decoded.example.source in by_source
    ]
    sign = -1.0 if judged and judged[0].metric in LOWER_IS_BETTER else 1.0
    gains = [sign * (pair.now.value - pair.former.value) for pair in pairs]
    num_same = sum(pair.now.decoded.text.split() == pair.former.decoded.text.split() for pair in pairs)
    better, worse = (
        sorted(
            (place for place, gain in enumerate(gains) if direction * gain > 0),
            key=lambda place: (-abs(gains[place]), len(pairs[place].now.decoded.source_ids)),
        )
        for direction in (1.0, -1.0)
    )
    return Changes(
        num_same=num_same,
        num_better=len(better),
        num_worse=len(worse),
        num_equal=len(pairs) - num_same - len(better) - len(worse),
        better=tuple(pairs[place] for place in better[:LIST_SIZE]),
        worse=tuple(pairs[place] for place in worse[:LIST_SIZE]),
    )


def choose_examples(option: str, examples: Sequence[Example]) -> list[Example]:
    """Returns the examples that `--examples` names: a number of them, evenly from the data, or a file of sources.

    A line of the file is a source, or a source, a tab and a reference.

    Raises:
        UserError: no such file, bad UTF-8, or no source in it.
    """
    if option.isdecimal():
        return sample_evenly(examples, int(option))
    columns = [line.partition("\t") for _, line in numbered_lines(Path(option))]
    chosen = [
        Example(source.strip(), (target.strip(),) if target.strip() else ())
        for source, _, target in columns
        if source.strip()
    ]
    if not chosen:
        raise UserError(f"--examples {option}: has no sources: write one per line")
    return chosen


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text; the other text has all of it, or none. `space` follows it in the text before the next span."""

    text: str
    is_shared: bool
    space: str = ""


def nearest_reference(output: str, references: Sequence[str], metric: TextMetricName = "per") -> str:
    """Returns the reference with the fewest edits to the output: of characters if the metric counts them, or words."""
    cut: Callable[[str], Sequence[str]] = str if metric in BY_CHARACTERS else str.split
    return min(references, key=lambda reference: Levenshtein.distance(cut(output), cut(reference)))


def align(text: str, other: str, metric: TextMetricName = "per") -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Returns both texts in spans that they share, in order, and spans that only one has, by the fewest edits.

    Spans are of whole words; they are of characters if the metric counts these or a text is a single word, unless the
    texts are too long to be compared so.
    """
    is_single = len(text.split()) < 2 or len(other.split()) < 2
    by_characters = (metric in BY_CHARACTERS or is_single) and len(text) + len(other) <= MAX_ALIGNED
    parts: Sequence[str] = " ".join(text.split()) if by_characters else text.split()
    others: Sequence[str] = " ".join(other.split()) if by_characters else other.split()
    space = "" if by_characters else " "
    spans: list[Span] = []
    other_spans: list[Span] = []
    for operation in Levenshtein.opcodes(parts, others):
        is_shared = operation.tag == "equal"
        for result, whole, start, end in (
            (spans, parts, operation.src_start, operation.src_end),
            (other_spans, others, operation.dest_start, operation.dest_end),
        ):
            if end > start:
                result.append(Span(space.join(whole[start:end]), is_shared, "" if end == len(whole) else space))
    return tuple(spans), tuple(other_spans)


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
    first = runs[0].recipe.evaluation
    measures = {name: getattr(first, name) for name in SHARED_MEASURES} | {"length_edges": edges, "length_unit": unit}
    for place, (run, model, options, decoded) in enumerate(zip(runs, models, searches, outputs, strict=True)):
        config = run.recipe.evaluation.model_copy(update=measures)
        evaluation = evaluate(model, decoded, config, data_name=data.name)
        baseline = measured[0].evaluation.statistics if measured else ()
        judgements.append(judge(decoded, evaluation.measurements[0].metric))
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
