"""Takes all measurements that a report shows of its runs: learning curves, quality by length, examples, attention."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Floats
from attendant.training.data.pairs import Example, num_words, numbered_lines, sample_evenly
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
from attendant.training.evaluation.metrics import (
    LOWER_IS_BETTER,
    MetricName,
    PerplexityName,
    TextMetricName,
    take_statistics,
)
from attendant.training.evaluation.session import EvaluationData
from attendant.training.progress import progress_bar
from attendant.training.recipe_choice import are_symbols
from attendant.training.report.gradients import Gradients, measure_gradients
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_run, model_of_runs

MAX_POINTS = 400
"""Of a curve in a picture: more are averaged in groups."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over the course of a training.

    Attributes:
        steps: [N] rising.
        seconds: [N] that the training had taken.
        values: [N].
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
        """The means of groups of neighbours, at most MAX_POINTS."""
        if len(self) <= MAX_POINTS:
            return self
        groups = np.array_split(np.stack([self.steps, self.seconds, self.values]), MAX_POINTS, axis=1)
        return Curve(*np.stack([group.mean(1) for group in groups], 1))


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """What a run's journal says.

    Attributes:
        train_loss: of the batches, in nats per target token, smoothed labels and dropout included.
        validation: by name: "loss", in nats per target token, and the recipe's metric.
    """

    train_loss: Curve
    validation: Mapping[str, Curve]


def read_curves(run: Run) -> LearningCurves:
    """Raises UserError where a line of the journal is no event; an unfinished last line is one being written."""
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
    names = dict.fromkeys(name for event in validation for name in event)
    # Perplexities are the loss again, in another unit.
    measured = [name for name in names if name not in ("event", "step", "epoch", "seconds", *get_args(PerplexityName))]
    return LearningCurves(_curve(train, "loss"), {name: _curve(validation, name) for name in measured})


def _curve(events: Sequence[Mapping[str, Any]], name: str) -> Curve:
    having = [event for event in events if name in event]
    return Curve(*(np.array([event[key] for event in having], np.float64) for key in ("step", "seconds", name)))


WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_BINS = 8
TAIL = 1.0
"""Per cent of the examples that the first and the last bin take in at least, so that neither hangs on a handful."""

FEW_WORDS = 3


def natural_unit(sources: Sequence[str]) -> LengthUnit:
    """What lengths are counted in: words, or tokens where most sources are only one or two words."""
    return "words" if float(np.median([num_words(source) for source in sources])) >= FEW_WORDS else "tokens"


def natural_edges(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where bins of a round width end, at most MAX_BINS, that suit the lengths.

    Lengths that suit the usual bins get those, in which papers report translation.
    """
    low, high = (round(float(length)) for length in np.percentile(lengths, [TAIL, 100 - TAIL]))
    if DEFAULT_EDGES[2] < high <= DEFAULT_EDGES[-1]:
        return tuple(edge for edge in DEFAULT_EDGES if edge < high)
    width = next((width for width in WIDTHS if (high - low) / width <= MAX_BINS - 1), WIDTHS[-1])
    first = max(1, -(-low // width)) * width
    return tuple(range(first, max(first + 1, high), width))


LIST_SIZE = 6
BY_CHARACTERS: Final = frozenset({"cer"})
MOST_ALIGNED: Final = 4000
"""Characters of two texts that are compared character by character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An output with its value by the metric and its probability by the model.

    Attributes:
        metric, value: of this output alone.
        confidence: the mean natural-log probability of its symbols, EOS included where it ended there. The sum would
            only say which outputs are long.
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
    """Returns each output by `metric`, or by the graded one in its place; those that nothing was decoded for are left
    out.
    """
    found = [one for one in decoded if one.finish_reason is not None]
    if not found:
        return []
    references = [one.example.references for one in found]
    graded = _graded(metric, references)
    values = take_statistics(graded, [one.text for one in found], references).values()
    return [
        Judged(decoded=one, metric=graded, value=float(value), confidence=_confidence(one))
        for one, value in zip(found, values, strict=True)
    ]


def _graded(metric: MetricName, references: Sequence[Sequence[str]]) -> TextMetricName:
    """Returns what ranks single outputs: where a metric only knows right and wrong, needs a whole test set or does not
    look at outputs, another in its place.
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
    """Returns the lists of a report, the same ones each time. No output is in two lists; an empty list is left out."""
    sign = -1.0 if judged and judged[0].metric in LOWER_IS_BETTER else 1.0
    wrong = [one for one in judged if not one.is_right]
    sorted_by: dict[str, tuple[Sequence[Judged], Callable[[Judged], tuple[float, ...]]]] = {
        "Worst by the metric; of equals, those that the model was surest of": (
            wrong,
            lambda one: (sign * one.value, -one.confidence),
        ),
        "Wrong, and surest of it": (wrong, lambda one: (-one.confidence,)),
        "Least sure": (judged, lambda one: (one.confidence,)),
        "Best by the metric; of equals, the longest sources": (
            judged,
            lambda one: (-sign * one.value, -len(one.decoded.source_ids)),
        ),
        "Surest": (judged, lambda one: (-one.confidence,)),
    }
    waiting = {title: iter(sorted(entries, key=key)) for title, (entries, key) in sorted_by.items()}
    lists: dict[str, list[Judged]] = {title: [] for title in waiting}
    shown: set[int] = set()
    # The lists choose in turns, so that each begins with what is most extreme by its criterion.
    for _ in range(LIST_SIZE):
        for title, entries in waiting.items():
            chosen = next((one for one in entries if id(one) not in shown), None)
            if chosen is not None:
                shown.add(id(chosen))
                lists[title].append(chosen)
    return tuple(Ranking(title, tuple(entries)) for title, entries in lists.items() if entries)


def read_examples(path: Path) -> list[Example]:
    """Sources, one per line, each with its reference after a tab where there is one.

    Raises:
        UserError: no such file, bad UTF-8, or nothing in it.
    """
    columns = [line.partition("\t") for _, line in numbered_lines(path)]
    examples = [
        Example(source.strip(), (target.strip(),) if target.strip() else ())
        for source, _, target in columns
        if source.strip()
    ]
    if not examples:
        raise UserError(f"--examples {path}: has no sources: write one per line")
    return examples


def choose_examples(given: str, examples: Sequence[Example]) -> list[Example]:
    """What `--examples` means: a number of them, taken evenly from the data, or a file of one's own."""
    return sample_evenly(examples, int(given)) if given.isdecimal() else read_examples(Path(given))


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, all of which is in the other text too, or nothing of it.

    Attributes:
        space: what follows it in the text before the next span.
    """

    text: str
    is_shared: bool
    space: str = ""


def nearest_reference(output: str, references: Sequence[str], metric: TextMetricName = "per") -> str:
    """Returns the reference with the fewest edits to the output: of characters where the metric counts these, else of
    words.
    """
    cut: Callable[[str], Sequence[str]] = str if metric in BY_CHARACTERS else str.split
    return min(references, key=lambda reference: Levenshtein.distance(cut(output), cut(reference)))


def align(text: str, other: str, metric: TextMetricName = "per") -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Returns both texts in spans that they share, in order, and spans that only one has, by the fewest edits.

    Spans are of whole words; they are of characters where the metric counts these or a text is a single word, unless
    the texts are too long to be compared so.
    """
    is_single = len(text.split()) < 2 or len(other.split()) < 2
    by_characters = (metric in BY_CHARACTERS or is_single) and len(text) + len(other) <= MOST_ALIGNED
    parts: Sequence[str] = " ".join(text.split()) if by_characters else text.split()
    others: Sequence[str] = " ".join(other.split()) if by_characters else other.split()
    space = "" if by_characters else " "
    spans: list[Span] = []
    other_spans: list[Span] = []
    for operation in Levenshtein.opcodes(parts, others):
        is_shared = operation.tag == "equal"
        for found, whole, start, end in (
            (spans, parts, operation.src_start, operation.src_end),
            (other_spans, others, operation.dest_start, operation.dest_end),
        ):
            if end > start:
                found.append(Span(space.join(whole[start:end]), is_shared, "" if end == len(whole) else space))
    return tuple(spans), tuple(other_spans)


def _confidence(one: Decoded) -> float:
    return one.log_prob / max(1, len(one.token_ids) + (one.finish_reason is FinishReason.EOS))


MAX_RUNS = len(ascii_uppercase)
NUM_GRADIENT_PAIRS = 64
NUM_WORST_MAPS = 3


@dataclass(frozen=True, slots=True)
class Attended:
    """An output with the attention [T, S] that made it, and the T and S tokens on both sides, EOS included."""

    decoded: Decoded
    weights: Floats
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as a report shows it.

    Attributes:
        letter: what the pictures call it; empty where it is the only one.
        name: the directory's; the path as given where two runs share that.
        loaded: of its best checkpoint.
        evaluation: by source length too.
        differences: to the first run, metric by metric; empty for the first.
        rankings: the best and the worst outputs.
        chosen, worst: empty where the model has no attention.
        gradients: None where no example could be followed.
    """

    letter: str
    name: str
    loaded: LoadedRun
    curves: LearningCurves
    evaluation: Evaluation
    differences: tuple[Difference, ...]
    rankings: tuple[Ranking, ...]
    chosen: tuple[Attended, ...]
    worst: tuple[Attended, ...]
    gradients: Gradients | None

    @property
    def title(self) -> str:
        return f"{self.letter} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A run that has decoded the data."""

    letter: str
    name: str
    loaded: LoadedRun
    model: TextModel
    options: DecodingOptions
    decoded: list[Decoded]


def measure_runs(
    paths: Sequence[Path],
    data: EvaluationData,
    chosen: Sequence[Example],
    *,
    length_unit: LengthUnit | None = None,
) -> list[MeasuredRun]:
    """Decodes and measures, each run by the search of its recipe, all by the metrics of the first.

    Args:
        paths: of runs, at most MAX_RUNS.
        chosen: examples whose attention is shown.
        length_unit: that sources are binned by; None: what suits them.

    Raises:
        UserError: a run without a checkpoint, or damaged.
    """
    loaded = [load_run(path) for path in paths]
    names = _names(paths)
    letters = ascii_uppercase[: len(paths)] if len(paths) > 1 else [""]
    opened = []
    with progress_bar() as progress:
        for place, run in enumerate(loaded):
            model = model_of_runs([run])
            options = search_options(run.recipe.evaluation, model)
            task = progress.add_task(f"decoding {names[place]}", total=len(data.examples))
            decoded = decode_examples(model, data.examples, options, progress=partial(progress.advance, task))
            opened.append(_Opened(letters[place], names[place], run, model, options, decoded))
    metrics = loaded[0].recipe.evaluation.metrics
    unit = length_unit or natural_unit([example.source for example in data.examples])
    lengths = [length for one in opened for length in source_lengths(one.model, one.decoded, unit)]
    edges = natural_edges(lengths)
    evaluations = [
        evaluate(
            one.model,
            one.decoded,
            one.options,
            metrics,
            data_name=data.name,
            bleu_tokenizer=loaded[0].recipe.evaluation.bleu_tokenizer,
            length_edges=edges,
            length_unit=unit,
        )
        for one in opened
    ]
    baselines = [None, *evaluations[:1] * (len(paths) - 1)]
    return [
        _measure(one, evaluation, baseline, data.examples, chosen)
        for one, evaluation, baseline in zip(opened, evaluations, baselines, strict=True)
    ]


def _measure(
    opened: _Opened,
    evaluation: Evaluation,
    baseline: Evaluation | None,
    examples: Sequence[Example],
    chosen: Sequence[Example],
) -> MeasuredRun:
    metric: MetricName = evaluation.measurements[0].metric
    rankings = rank(judge(opened.decoded, metric))
    has_attention = opened.loaded.recipe.model.has_attention
    worst = [one.decoded.example for one in rankings[0].entries[:NUM_WORST_MAPS]] if rankings else []
    pairs = () if baseline is None else zip(evaluation.statistics, baseline.statistics, strict=True)
    return MeasuredRun(
        letter=opened.letter,
        name=opened.name,
        loaded=opened.loaded,
        curves=read_curves(Run(opened.loaded.path)),
        evaluation=evaluation,
        differences=tuple(compare(one, other) for one, other in pairs),
        rankings=rankings,
        chosen=_attend(opened, chosen) if has_attention else (),
        worst=_attend(opened, worst) if has_attention else (),
        gradients=_gradients(opened, examples),
    )


def _attend(opened: _Opened, examples: Sequence[Example]) -> tuple[Attended, ...]:
    found = decode_examples(opened.model, examples, replace(opened.options, attention=True))
    end = opened.model.target_tokenizer.tokens_of([opened.model.special_ids.eos])
    return tuple(
        Attended(
            one,
            one.attention,
            opened.model.source_tokenizer.tokens_of(one.source_ids),
            opened.model.target_tokenizer.tokens_of(one.token_ids) + end * (one.finish_reason is FinishReason.EOS),
        )
        for one in found
        if one.attention is not None
    )


def _gradients(opened: _Opened, examples: Sequence[Example]) -> Gradients | None:
    """Of examples that training could have seen: neither empty nor beyond the recipe's lengths."""
    model, data = opened.model, opened.loaded.recipe.data
    sampled = sample_evenly(examples, NUM_GRADIENT_PAIRS)
    sources = model.source_ids([one.source for one in sampled])
    targets = model.target_tokenizer.encode_batch([one.references[0] for one in sampled])
    fitting = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if 0 < len(source) - model.append_eos <= data.max_source_tokens and 0 < len(target) <= data.max_target_tokens
    ]
    return measure_gradients(opened.loaded.model, *zip(*fitting, strict=True)) if fitting else None


def _names(paths: Sequence[Path]) -> list[str]:
    short = [path.resolve().name for path in paths]
    return [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
