"""What a set of outputs is worth against its references. Texts in, percentages or scores out.

An example may have several references; how each metric treats them is said in RULES, which every result carries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

MetricName = Literal["wer", "per", "exact_match", "bleu", "chrf"]
References = Sequence[Sequence[str]]

LOWER_IS_BETTER = frozenset(("loss", "wer", "per"))


@dataclass(frozen=True, slots=True)
class Score:
    """A metric's value and the rule it was taken by."""

    value: float
    rule: str


def score(metric: MetricName, outputs: Sequence[str], references: References) -> Score:
    """Scores outputs against the references of their examples, one entry each, none empty."""
    if not outputs:
        raise ValueError("there is nothing to score")
    return SCORERS[metric](outputs, references)


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether `value` beats `best`; anything beats None."""
    if best is None:
        return True
    return value < best if metric in LOWER_IS_BETTER else value > best


def _exact_match(outputs: Sequence[str], references: References) -> Score:
    right = sum(_words(output) in map(_words, targets) for output, targets in zip(outputs, references, strict=True))
    return Score(100.0 * right / len(outputs), "% of examples whose output equals any of its references")


def _wer(outputs: Sequence[str], references: References) -> Score:
    rule = "% of examples (words) whose output equals none of the listed references (pronunciations)"
    return Score(100.0 - _exact_match(outputs, references).value, rule)


def _per(outputs: Sequence[str], references: References) -> Score:
    edits = length = 0
    for output, targets in zip(outputs, references, strict=True):
        symbols = _words(output)
        distances = [(Levenshtein.distance(symbols, target), len(target)) for target in map(_words, targets)]
        # Of references equally near the longest, which asks most of the output for the same edits.
        fewest, negative_length = min((distance, -size) for distance, size in distances)
        edits += fewest
        length -= negative_length
    rule = "% of edits (insertions, deletions, substitutions) to the nearest reference, over its length"
    return Score(100.0 * edits / length, rule)


def _bleu(outputs: Sequence[str], references: References) -> Score:
    bleu = BLEU()
    value = bleu.corpus_score(list(outputs), _streams(references)).score
    return Score(value, f"sacrebleu {bleu.get_signature()}")


def _chrf(outputs: Sequence[str], references: References) -> Score:
    chrf = CHRF()
    value = chrf.corpus_score(list(outputs), _streams(references)).score
    return Score(value, f"sacrebleu {chrf.get_signature()}")


SCORERS: dict[MetricName, Callable[[Sequence[str], References], Score]] = {
    "wer": _wer,
    "per": _per,
    "exact_match": _exact_match,
    "bleu": _bleu,
    "chrf": _chrf,
}


def _words(text: str) -> list[str]:
    return text.split()


def _streams(references: References) -> Any:
    """The layout of sacrebleu: the first references of all examples, then the second ones, None where there is none."""
    width = max(map(len, references))
    return [[targets[place] if place < len(targets) else None for targets in references] for place in range(width)]
