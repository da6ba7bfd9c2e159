"""Chooses the outputs to show: the best and the worst, by the metric and by the model's own probability."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.errors import UserError
from attendant.training.data.lines import numbered_lines
from attendant.training.data.pairs import Example, sample_evenly
from attendant.training.evaluation.decoding import Decoded
from attendant.training.evaluation.metrics import LOWER_IS_BETTER, MetricName, TextMetricName, take_statistics

LIST_SIZE = 6


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
    """Each output by `metric`, or by the graded one in its place; outputs that nothing was decoded for are left out."""
    graded = _graded(metric)
    found = [one for one in decoded if one.finish_reason is not None]
    if not found:
        return []
    values = take_statistics(graded, [one.text for one in found], [one.example.references for one in found]).values()
    return [
        Judged(decoded=one, metric=graded, value=float(value), confidence=_confidence(one))
        for one, value in zip(found, values, strict=True)
    ]


def _graded(metric: MetricName) -> TextMetricName:
    """What ranks single outputs: where a metric only knows right and wrong, needs a whole test set or does not look at
    outputs, another in its place.
    """
    match metric:
        case "wer" | "exact_match":
            return "per"
        case "bleu" | "perplexity" | "word_perplexity":
            return "chrf"
        case _:
            return metric


def rank(judged: Sequence[Judged]) -> tuple[Ranking, ...]:
    """The lists of a report, the same ones each time; a list that nothing belongs to is left out."""
    sign = -1.0 if judged and judged[0].metric in LOWER_IS_BETTER else 1.0

    def first(entries: Sequence[Judged], key: Callable[[Judged], tuple[float, ...]]) -> tuple[Judged, ...]:
        return tuple(sorted(entries, key=key)[:LIST_SIZE])

    wrong = [one for one in judged if not one.is_right]
    rankings = (
        Ranking(
            "Worst by the metric; of equals, those that the model was surest of",
            first(wrong, lambda one: (sign * one.value, -one.confidence)),
        ),
        Ranking("Wrong, and surest of it", first(wrong, lambda one: (-one.confidence,))),
        Ranking("Least sure", first(judged, lambda one: (one.confidence,))),
        Ranking(
            "Best by the metric; of equals, the longest sources",
            first(judged, lambda one: (-sign * one.value, -len(one.decoded.source_ids))),
        ),
        Ranking("Surest", first(judged, lambda one: (-one.confidence,))),
    )
    return tuple(ranking for ranking in rankings if ranking.entries)


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
    """Words of a text, all of which are in the other text too, or none."""

    text: str
    is_shared: bool


def nearest_reference(output: str, references: Sequence[str]) -> str:
    """The reference with the fewest edits of words to the output."""
    words = output.split()
    return min(references, key=lambda reference: Levenshtein.distance(words, reference.split()))


def align(text: str, other: str) -> tuple[Span, ...]:
    """The words of `text` in spans that `other` has too, in order, and spans that it has not."""
    words, others = text.split(), other.split()
    spans = []
    for kind, start, end, _, _ in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if end > start:
            spans.append(Span(" ".join(words[start:end]), kind == "equal"))
    return tuple(spans)


def _confidence(one: Decoded) -> float:
    return one.log_prob / max(1, len(one.token_ids) + (one.finish_reason is FinishReason.EOS))
