"""What a set of outputs is worth against its references. Texts in, percentages or scores out.

An example may have several references; how each metric treats them is said in RULES, which every result carries.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rapidfuzz.distance import LCSseq, Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

MetricName = Literal["wer", "per", "exact_match", "bleu", "chrf", "rouge_1", "rouge_2", "rouge_l"]
References = Sequence[Sequence[str]]

LOWER_IS_BETTER = frozenset(("loss", "wer", "per"))
ROUGE_WORD: Final = re.compile(r"[^\W_]+")


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


def is_better(
    metric: str, value: float, best: float | None, *, loss: float = 0.0, best_loss: float | None = None
) -> bool:
    """Whether `value` beats `best`; anything beats None. Of equal values the one with the lower loss is better."""
    if best is None:
        return True
    if value == best:
        return best_loss is not None and loss < best_loss
    return (value < best) == (metric in LOWER_IS_BETTER)


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


def _rouge(outputs: Sequence[str], references: References, size: int | None) -> Score:
    """ROUGE (Lin 2004): F1 of n-grams in common, or of the longest common subsequence where size is None."""
    total = 0.0
    for output, targets in zip(outputs, references, strict=True):
        words = _rouge_words(output)
        total += max(_f1(words, _rouge_words(target), size) for target in targets)
    kind = "longest common subsequence" if size is None else f"{size}-grams in common"
    rule = f"mean F1 in % of the {kind} with the nearest reference; lower-cased, letters and digits only, no stemming"
    return Score(100.0 * total / len(outputs), rule)


def _f1(output: list[str], target: list[str], size: int | None) -> float:
    if size is None:
        common, sizes = LCSseq.similarity(output, target), len(output) + len(target)
    else:
        grams = [Counter(zip(*(words[start:] for start in range(size)), strict=False)) for words in (output, target)]
        common, sizes = (grams[0] & grams[1]).total(), grams[0].total() + grams[1].total()
    return 2 * common / sizes if sizes else 0.0


SCORERS: dict[MetricName, Callable[[Sequence[str], References], Score]] = {
    "wer": _wer,
    "per": _per,
    "exact_match": _exact_match,
    "bleu": _bleu,
    "chrf": _chrf,
    "rouge_1": lambda outputs, references: _rouge(outputs, references, 1),
    "rouge_2": lambda outputs, references: _rouge(outputs, references, 2),
    "rouge_l": lambda outputs, references: _rouge(outputs, references, None),
}


def _words(text: str) -> list[str]:
    return text.split()


def _rouge_words(text: str) -> list[str]:
    return ROUGE_WORD.findall(text.lower())


def _streams(references: References) -> Any:
    """The layout of sacrebleu: the first references of all examples, then the second ones, None where there is none."""
    width = max(map(len, references))
    return [[targets[place] if place < len(targets) else None for targets in references] for place in range(width)]
