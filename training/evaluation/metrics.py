"""Metrics of outputs against references: texts in, percentages or scores out.

Each metric is first reduced to a few numbers per example, its sufficient statistics. Its value depends on their sums
alone. So a subset or a resample is scored by adding up rows, and no text is read twice. An example may have several
references; each metric's rule, which every result carries, describes their treatment.

N examples, F numbers per example.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.errors import UserError, reason_of
from attendant.training.data.pairs import COMBINING

TextMetricName = Literal["wer", "per", "cer", "ter", "exact_match", "bleu", "chrf", "rouge_1", "rouge_2", "rouge_l"]
BleuTokenizer = Literal["13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores101", "flores200", "none"]
"""The tokenizer that cuts texts into BLEU's words, by sacrebleu's names."""
PerplexityName = Literal["perplexity", "word_perplexity"]
"""Metrics of the references' probabilities, not of outputs: see training/evaluation/evaluating.py."""

MetricName = Literal[TextMetricName, PerplexityName]
References = Sequence[Sequence[str]]
Floats64 = NDArray[np.float64]

LOWER_IS_BETTER = frozenset(("loss", "wer", "per", "cer", "ter", "perplexity", "word_perplexity"))
LARGEST_EXPONENT: Final = 700.0  # exp(x) of a larger x is beyond the range of a float.
ROUGE_WORD: Final = re.compile(rf"(?:[^\W_][{COMBINING}]*)+")
DEFAULT_BLEU_TOKENIZER: Final[BleuTokenizer] = "13a"
NEEDED_BY_TOKENIZERS: Final[dict[BleuTokenizer, str]] = {
    "ja-mecab": "pip install 'sacrebleu[ja]'",
    "ko-mecab": "pip install 'sacrebleu[ko]'",
    "flores101": "pip install sentencepiece; its model is downloaded once",
    "flores200": "pip install sentencepiece; its model is downloaded once",
}

LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("per", "cer"), ("rapidfuzz", "rapidfuzz")),
    **dict.fromkeys(("ter", "bleu", "chrf"), ("sacrebleu", "sacrebleu")),
    **dict.fromkeys(("rouge_1", "rouge_2", "rouge_l"), ("rouge_score", "rouge-score")),
}
"""Metric -> the module that computes it, and its distribution on PyPI. The other metrics need none."""


ROUGE_KINDS: Final = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
RULES: Final[Mapping[str, str]] = {  # sacrebleu's metrics have its signature as their rule.
    "exact_match": "% of examples whose output equals any of its references",
    "wer": "% of examples whose output equals none of its references, 100 - exact_match; where an example is a word, "
    "as in pronunciation, that is the word error rate",
    "per": "% of edits (insertions, deletions, substitutions) of symbols to the nearest reference, over its length; "
    "symbols are what white space separates",
    "cer": "% of edits (insertions, deletions, substitutions) of characters to the nearest reference, over its length",
} | {
    name: f"mean F1 in % with the nearest reference, rouge-score {kind}, lower-cased letters and digits, no stemming"
    for name, kind in ROUGE_KINDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The sufficient statistics of a metric.

    Attributes:
        rule: definition of the metric, in words, or the library's signature.
        rows: [N, F] the sufficient statistics of each example.
        value_of: the metric of the examples whose rows add up to its argument, [F].
    """

    metric: MetricName
    rule: str
    rows: Floats64
    value_of: Callable[[Floats64], float]

    @property
    def value(self) -> float:
        """The metric of all examples."""
        return self.value_of(self.rows.sum(axis=0))

    def values(self) -> Floats64:
        """Returns [N] the metric of each example alone.

        BLEU is 0 for a sentence that shares no word with its reference, and coarse otherwise: to rank take chrF.
        """
        return np.array([self.value_of(row) for row in self.rows])


def take_statistics(
    metric: TextMetricName,
    outputs: Sequence[str],
    references: References,
    bleu_tokenizer: BleuTokenizer = DEFAULT_BLEU_TOKENIZER,
) -> Statistics:
    """Returns a metric's statistics of outputs against the references of their examples, one entry each.

    Raises:
        ValueError: there are no outputs.
        UserError: the tokenizer of BLEU needs a package that is not installed.
    """
    if not outputs:
        raise ValueError("there is nothing to score")
    rows: Sequence[tuple[float, float]]
    match metric:
        case "bleu" | "chrf" | "ter":
            return _sacrebleu(metric, outputs, references, bleu_tokenizer)
        case "exact_match":
            rows = _right(outputs, references)
        case "wer":
            rows = [(1.0 - right, count) for right, count in _right(outputs, references)]
        case "per":
            rows = _edits([text.split() for text in outputs], [[*map(str.split, each)] for each in references])
        case "cer":
            spaced = [[" ".join(text.split()) for text in each] for each in references]
            rows = _edits([" ".join(text.split()) for text in outputs], spaced)
        case "rouge_1" | "rouge_2" | "rouge_l":
            rows = _rouge(ROUGE_KINDS[metric], outputs, references)
    return Statistics(metric=metric, rule=RULES[metric], rows=np.asarray(rows, np.float64), value_of=_percentage)


@lru_cache
def bleu_with(tokenizer: BleuTokenizer) -> Any:
    """Returns sacrebleu's BLEU with a tokenizer. Raises UserError: the tokenizer needs a package or a download."""
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415

    try:
        return BLEU(tokenize=tokenizer)
    # sacrebleu's own download ends the process where the server has no certificate.
    except (ImportError, RuntimeError, OSError, SystemExit) as error:
        # The reason of urllib's errors is an exception within them.
        reason = reason_of(getattr(error, "reason", error)) if isinstance(error, OSError) else "not installed"
        raise UserError(
            f"evaluation.bleu_tokenizer = {tokenizer!r}: {reason}: it needs {NEEDED_BY_TOKENIZERS.get(tokenizer, '')}"
        ) from None


def refuse_missing(metrics: Iterable[str], bleu_tokenizer: BleuTokenizer = DEFAULT_BLEU_TOKENIZER) -> None:
    """Refuses metrics whose library is not installed, as in a server's environment; each is imported by its metric.

    Raises:
        UserError: names the metric, the library and the package to install.
    """
    for metric in metrics:
        library = LIBRARIES.get(metric)
        if library is not None and find_spec(library[0]) is None:
            others = ", ".join(name for name in get_args(MetricName) if name not in LIBRARIES)
            remedy = f"pip install {library[1]}, or choose --metrics of {others}"
            raise UserError(f"metric {metric}: {library[1]} is not installed: {remedy}")
        if metric == "bleu":
            bleu_with(bleu_tokenizer)


def perplexity(log_prob: float, count: float) -> float:
    """Returns exp(-log_prob / count): the number of equally likely symbols among which a model hesitates, on average.

    Args:
        log_prob: the sum of the true symbols' log-probabilities under teacher forcing, EOS included, not smoothed.
        count: number of tokens or of words, ends included. Per word, models of unlike tokenizers can be compared. If 0,
            the perplexity is 1.
    """
    return math.exp(min(-log_prob / count, LARGEST_EXPONENT)) if count else 1.0


def is_better(
    metric: str, value: float, best: float | None, *, loss: float = 0.0, best_loss: float | None = None
) -> bool:
    """Returns True if `value` beats `best`, or `best` is None. Of equal values, the lower loss is better."""
    if best is None:
        return True
    if value == best:
        return best_loss is not None and loss < best_loss
    return (value < best) == (metric in LOWER_IS_BETTER)


def _percentage(totals: Floats64) -> float:
    part, whole = totals
    # References of which `ignored_characters` leave nothing have no length.
    return float(100.0 * part / (whole or 1.0))


def _right(outputs: Sequence[str], references: References) -> list[tuple[float, float]]:
    """Returns (1 if the output equals a reference symbol by symbol, 1), per example."""
    return [
        (float(output.split() in map(str.split, targets)), 1.0)
        for output, targets in zip(outputs, references, strict=True)
    ]


def _edits(
    outputs: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> list[tuple[float, float]]:
    """Returns the edits of each output to its nearest reference, and that reference's length."""
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415

    rows = []
    for output, targets in zip(outputs, references, strict=True):
        distances = [(Levenshtein.distance(output, target), len(target)) for target in targets]
        # Among equally near references the longest counts: relative to it the edits are fewest.
        fewest, negative_length = min((distance, -size) for distance, size in distances)
        rows.append((float(fewest), float(-negative_length)))
    return rows


def _sacrebleu(
    name: TextMetricName, outputs: Sequence[str], references: References, bleu_tokenizer: BleuTokenizer
) -> Statistics:
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415
    from sacrebleu.metrics.ter import TER  # noqa: PLC0415

    metric: Any = bleu_with(bleu_tokenizer) if name == "bleu" else CHRF() if name == "chrf" else TER()
    # sacrebleu's layout: the first references of all examples, then the second ones; None fills gaps.
    width = max(map(len, references))
    streams = [[targets[place] if place < len(targets) else None for targets in references] for place in range(width)]
    # Not public, but sacrebleu's own significance tests use it; tests compare the values with corpus_score.
    rows = metric._extract_corpus_statistics(list(outputs), streams)
    return Statistics(
        metric=name,
        rule=f"sacrebleu {metric.get_signature()}",
        rows=np.asarray(rows, np.float64),
        value_of=partial(_sacrebleu_value, metric),  # not a closure: results can be pickled
    )


def _sacrebleu_value(metric: Any, totals: Floats64) -> float:
    return float(metric._compute_score_from_stats(totals.tolist()).score)


def _rouge(kind: str, outputs: Sequence[str], references: References) -> list[tuple[float, float]]:
    # Imported here: it imports the whole of nltk.
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415

    scorer = RougeScorer([kind], tokenizer=_RougeTokenizer())
    return [
        (scorer.score_multi(targets, output)[kind].fmeasure, 1.0)
        for output, targets in zip(outputs, references, strict=True)
    ]


class _RougeTokenizer:
    """Words of any script. The library's own keeps a-z and 0-9 only, which cuts French to pieces and leaves nothing of
    Greek; of English both make the same words.
    """

    def tokenize(self, text: str) -> list[str]:
        return ROUGE_WORD.findall(text.lower())
