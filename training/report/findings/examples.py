"""Chooses the outputs to show: the best and the worst, by the metric and by the model's own probability."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rapidfuzz.distance import Levenshtein

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.errors import UserError
from attendant.training.data.inspection import are_symbols
from attendant.training.data.lines import numbered_lines
from attendant.training.data.pairs import Example, sample_evenly
from attendant.training.evaluation.decoding import Decoded
from attendant.training.evaluation.metrics import LOWER_IS_BETTER, MetricName, TextMetricName, take_statistics

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
