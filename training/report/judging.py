"""Ranks the outputs of runs, compares them with another run's, and shows where a text differs from another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.training.evaluation.evaluating import Decoded
from attendant.training.evaluation.metrics import LOWER_IS_BETTER, MetricName, TextMetricName, take_statistics
from attendant.training.recipe_choice import are_symbols

LIST_SIZE = 6
BY_CHARACTERS: Final = frozenset({"cer"})
MAX_ALIGNED: Final = 4000  # Characters of two texts that are compared character by character.


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An output with its value by the metric and its probability by the model.

    Attributes:
        metric, value: metric and its value for this output alone.
        is_right: the output equals a reference, symbol by symbol.
        confidence: the mean natural-log probability of its symbols, EOS included if it ended there. The sum would only
            show which outputs are long.
    """

    decoded: Decoded
    metric: TextMetricName
    value: float
    is_right: bool
    confidence: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Outputs ranked by one criterion, most extreme first."""

    title: str
    entries: tuple[Judged, ...]


def judge(decoded: Sequence[Decoded], metric: MetricName, ignored_characters: str = "") -> list[Judged]:
    """Returns each decoded output by `metric`, or by a graded one instead, see `_graded`.

    Args:
        ignored_characters: characters that are removed before the comparison, as by `evaluate`.
    """
    outputs = [output for output in decoded if output.finish_reason is not None]
    if not outputs:
        return []
    left_out = dict.fromkeys(map(ord, ignored_characters))
    texts = [output.text.translate(left_out) for output in outputs]
    references = [[text.translate(left_out) for text in output.example.references] for output in outputs]
    graded = _graded(metric, references)
    values = take_statistics(graded, texts, references).values()
    are_right = take_statistics("exact_match", texts, references).values() > 0
    return [
        Judged(
            decoded=output,
            metric=graded,
            value=float(value),
            is_right=bool(is_right),
            confidence=output.log_prob / max(1, len(output.token_ids) + (output.finish_reason is FinishReason.EOS)),
        )
        for output, value, is_right in zip(outputs, values, are_right, strict=True)
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
