"""Answers under the names of the API: their text, their warnings, and signals of their quality.

The signals of an answer need no reference. The population stability index measures the distance of their distribution
from another one, usually that of held-out texts:

    PSI = sum over bins of (observed - expected) ln(observed / expected)

By the rule of thumb of credit scoring, below 0.1 it means nothing, above 0.25 a shift.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import numpy as np

from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.bundle.manifest import Calibration, Distribution, Reference, Signal
from attendant.runtime.bundle.tokenizer import BOS_ID, UNFINISHED, UNK_ID, Tokenizer
from attendant.runtime.confidence import answer_signals, confidence_of, source_signals
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.trace import Trace, trace_fields
from attendant.runtime.errors import shortened, some_of
from attendant.runtime.requests import ReadRequest
from attendant.runtime.spans import altered, restored
from attendant.runtime.stepper import Floats

ENOUGH_ATTENTION: Final = 0.5
"""An unknown source symbol replaces one that is already used if it has at least this share of its attention."""


def replace_unknowns(
    hypothesis: Hypothesis, source_words: Sequence[str], source_ids: Sequence[int], tokenizer: Tokenizer
) -> tuple[list[str], str]:
    """Returns the tokens of a hypothesis and their text, with each UNK replaced by the source word it attends to
    (Jean et al. 2015).

    Args:
        hypothesis: with its attention [summands, source length].
        source_words: the word at each position of the source, without BOS and EOS.
        source_ids: as the encoder took them.
        tokenizer: the target's.
    """
    tokens = tokenizer.tokens_of(hypothesis.token_ids)
    if UNK_ID not in hypothesis.token_ids:
        return tokens, tokenizer.decode(hypothesis.token_ids)
    assert hypothesis.attention is not None, "unknowns are replaced by attention"
    places = [place for place, token_id in enumerate(hypothesis.token_ids) if token_id == UNK_ID]
    first = int(source_ids[0] == BOS_ID)
    unknown = {position for position in range(len(source_words)) if source_ids[first + position] == UNK_ID}
    attention = hypothesis.attention[places, first : first + len(source_words)]
    for place, position in zip(places, _positions(attention, unknown), strict=True):
        tokens[place] = source_words[position]
    return tokens, tokenizer.decode_tokens(tokens)


def _positions(attention: Floats, unknown: set[int]) -> list[int]:
    """Returns the source position that replaces each UNK: the one with the most attention.

    A model can't distinguish unknown symbols, so it often divides its attention among several, or attends to the same
    twice. So each is used once as long as an unused one has nearly as much attention.

    Args:
        attention: [UNKs, source positions].
        unknown: the positions of unknown symbols.
    """
    chosen: list[int] = attention.argmax(axis=1).tolist()
    unused = set(unknown)
    # Rows with the highest attention choose first.
    for row in (-attention.max(axis=1)).argsort(kind="stable").tolist():
        if chosen[row] in unknown:
            least = ENOUGH_ATTENTION * float(attention[row, chosen[row]])
            able = [position for position in sorted(unused) if attention[row, position] >= least]
            chosen[row] = max(able, key=attention[row].__getitem__, default=chosen[row])
            unused.discard(chosen[row])
    return chosen


MAX_SHOWN_SYMBOLS: Final = 8


def answer_fields(
    hypotheses: Sequence[Hypothesis], trace: Trace | None, request: ReadRequest, model: BundleModel
) -> dict[str, Any]:
    """Returns an answer to `generate`: `hypotheses`, best first, `source_tokens`, `warnings` and `trace`.

    `attention` of a hypothesis is an array [summands, source tokens], or None.
    """
    confidences = _confidences(hypotheses, request, model)
    # A text in parts is right if all its parts are.
    of_whole = [None if each is None else math.prod(each) for each in confidences]
    pairs = zip(hypotheses, of_whole, strict=True)
    fields = [_hypothesis_fields(hypothesis, confidence, request, model) for hypothesis, confidence in pairs]
    warnings = [*_warnings(hypotheses[0], confidences[0], request, model)]
    if UNFINISHED in fields[0]["text"] and _has_lost_bytes(hypotheses[0], request, model):
        warnings.append("the answer has bytes that are no character, shown as U+FFFD: a part of it is lost")
    return {
        "hypotheses": fields,
        "source_tokens": model.bundle.source_tokenizer.tokens_of(request.source_ids),
        "warnings": tuple(warnings),
        "trace": None if trace is None else trace_fields(trace, model.bundle.target_tokenizer.tokens_of),
    }


def _confidences(
    hypotheses: Sequence[Hypothesis], request: ReadRequest, model: BundleModel
) -> Sequence[tuple[float, ...] | None]:
    """Returns the confidence of each hypothesis in each unit of its request; None if the bundle is not calibrated."""
    calibration = model.manifest.confidence
    if calibration is None:
        return [None] * len(hypotheses)
    units = zip(zip(*(hypothesis.units for hypothesis in hypotheses), strict=True), request.units, strict=True)
    return list(zip(*(_unit_confidences(own, unit, model, calibration) for own, unit in units), strict=True))


def _unit_confidences(
    hypotheses: Sequence[Hypothesis], request: ReadRequest, model: BundleModel, calibration: Calibration
) -> list[float]:
    first = int(request.source_ids[0] == BOS_ID)
    source_ids = request.source_ids[first : first + request.num_source_tokens]
    of_source = source_signals(source_ids, model.bundle.seen_bigrams)
    return [confidence_of(answer_signals(of_source, hypothesis), calibration) for hypothesis in hypotheses]


def _hypothesis_fields(
    hypothesis: Hypothesis, confidence: float | None, request: ReadRequest, model: BundleModel
) -> dict[str, Any]:
    tokens, text = tokens_and_text(hypothesis, request, model.bundle.target_tokenizer)
    return {
        "text": text,
        "tokens": tokens,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "token_log_probs": hypothesis.token_log_probs if request.token_log_probs else (),
        "attention": hypothesis.attention if request.attention else None,
        "finish_reason": hypothesis.finish_reason,
        "confidence": confidence,
    }


def tokens_and_text(hypothesis: Hypothesis, request: ReadRequest, tokenizer: Tokenizer) -> tuple[list[str], str]:
    if request.parts:
        parts = [tokens_and_text(*part, tokenizer) for part in zip(hypothesis.parts, request.parts, strict=True)]
        return [token for tokens, _ in parts for token in tokens], "".join(text for _, text in parts)
    if request.source_words is None:
        tokens, text = tokenizer.tokens_of(hypothesis.token_ids), tokenizer.decode(hypothesis.token_ids)
    else:
        tokens, text = replace_unknowns(hypothesis, request.source_words, request.source_ids, tokenizer)
    return tokens, f"{request.before}{restored(text, request.spans, request.openings)}{request.after}"


def score_fields(target: Hypothesis, request: ReadRequest, model: BundleModel) -> dict[str, Any]:
    """Returns an answer to `score`; `attention` is an array [summands, source tokens], or None."""
    return {
        "log_prob": target.log_prob,
        "source_tokens": model.bundle.source_tokenizer.tokens_of(request.source_ids),
        "target_tokens": model.bundle.target_tokenizer.tokens_of(target.token_ids),
        "token_log_probs": target.token_log_probs,
        "attention": target.attention,
        "warnings": tuple(_of_unknown(request)),
    }


def _warnings(
    best: Hypothesis, confidences: Sequence[float] | None, request: ReadRequest, model: BundleModel
) -> Iterator[str]:
    """Yields the reasons why the best hypothesis, with these confidences in its units, may be worth little."""
    for place, (unit, unit_request) in enumerate(zip(best.units, request.units, strict=True)):
        head = f"part {place + 1} of {len(request.parts)}: " if request.parts else ""
        confidence = None if confidences is None else confidences[place]
        for warning in _unit_warnings(unit, confidence, unit_request, model):
            yield head + warning


def _unit_warnings(
    best: Hypothesis, confidence: float | None, request: ReadRequest, model: BundleModel
) -> Iterator[str]:
    yield from _of_unknown(request)
    options, calibration = request.options, model.manifest.confidence
    if best.finish_reason is FinishReason.LENGTH and len(best.token_ids) < options.max_length:
        yield f"the answer ends after {len(best.token_ids)} tokens because the bans left no other token"
    elif best.finish_reason is FinishReason.LENGTH:
        most = model.limits.max_target_tokens
        more = f"raise max_length (or max_length_ratio, if it is set), up to {most}"
        remedy = more if options.max_length < most else "split the source"
        yield f"the answer was cut after max_length = {options.max_length} tokens: {remedy}"
    if calibration is not None and confidence is not None and confidence < (level := calibration.warn_below):
        digits = next((digits for digits in range(2, 6) if round(confidence, digits) < round(level, digits)), 6)
        yield f"the confidence is {confidence:.{digits}f}, below {level:.{digits}f}: the answer may well be wrong"
    if request.spans and (spans := altered(model.bundle.target_tokenizer.decode(best.token_ids), request.spans)):
        yield f"the answer does not hold each protected part of the source once{_shown(spans)}: compare them"


def _has_lost_bytes(best: Hypothesis, request: ReadRequest, model: BundleModel) -> bool:
    """Returns True if the answer has bytes that are no character; U+FFFD of the source looks like them."""
    source, target = model.bundle.source_tokenizer, model.bundle.target_tokenizer
    return UNFINISHED in target.decode(best.token_ids) and UNFINISHED not in source.decode(request.source_ids)


def _of_unknown(request: ReadRequest) -> Iterator[str]:
    """Yields a warning for each side with symbols that its vocabulary lacks."""
    shown = _shown(request.unknown_source)
    if request.is_unknown:
        yield f"no symbol of the source is in the vocabulary{shown}: the answer does not depend on its content"
    elif shown:
        yield f"the vocabulary lacks symbols of the source{shown}: the model can't distinguish them"
    if shown := _shown(request.unknown_target):
        yield f"the vocabulary lacks symbols of the target{shown}: the score is that of an unknown symbol there"


def _shown(symbols: Sequence[str]) -> str:
    """Returns the first few symbols, quoted and escaped, in brackets; an empty text if there are none."""
    return f" ({some_of([*map(shortened, symbols)], MAX_SHOWN_SYMBOLS)})" if symbols else ""


SIGNALS: Final[tuple[Signal, ...]] = get_args(Signal)

NUM_BINS: Final = 10
PRIOR: Final = 0.5  # Pseudo-count of every bin: an empty bin is rare, not impossible.
HALF_LIFE: Final = 1000  # Number of answers after which an answer's weight is half.
MIN_ANSWERS: Final = 200  # With fewer answers the index is noise: without any shift it is about (bins - 1) / answers.


def signals_of(source_ids: Sequence[int], num_source_tokens: int, best: Hypothesis) -> tuple[float, ...]:
    """Returns an answer's signals, in the order of SIGNALS; the end symbol is in `source_ids`, but does not count."""
    return (
        num_source_tokens,
        source_ids.count(UNK_ID) / num_source_tokens,
        len(best.token_ids) / num_source_tokens,
        best.log_prob / max(1, len(best.token_log_probs)),
        best.finish_reason is FinishReason.LENGTH,
    )


def distribution_of(values: Sequence[float]) -> Distribution:
    """Returns bins of equal shares, as far as equal values allow, and one for values above all edges."""
    quantiles = np.quantile(values, np.arange(1, NUM_BINS) / NUM_BINS, method="inverted_cdf")
    edges = tuple(sorted({float(f"{edge:.6g}") for edge in quantiles}))
    counts = np.bincount([bisect_left(edges, value) for value in values], minlength=len(edges) + 1)
    return Distribution(edges=edges, shares=tuple(round(float(share), 6) for share in counts / len(values)))


def stability_index(distribution: Distribution, num_expected: float, observed: Sequence[float]) -> float:
    """Returns the index of the observed counts per bin against the distribution of `num_expected` examples."""
    num_bins, num_observed = len(observed), sum(observed)
    index = 0.0
    for share, count in zip(distribution.shares, observed, strict=True):
        expected = (share * num_expected + PRIOR) / (num_expected + PRIOR * num_bins)
        seen = (count + PRIOR) / (num_observed + PRIOR * num_bins)
        index += (seen - expected) * math.log(seen / expected)
    return index


class DriftWatch:
    """Counts recent answers in the bins of a reference, in constant memory and microseconds per answer."""

    def __init__(self, reference: Reference, half_life: int = HALF_LIFE) -> None:
        self._reference = reference
        self._edges = [reference.signals[name].edges for name in SIGNALS]
        self._counts = [[0.0] * (len(edges) + 1) for edges in self._edges]
        # Later answers weigh more instead of earlier ones less: one addition, and not one per bin.
        self._growth = 2.0 ** (1 / half_life)
        self._weight = 1.0
        self._num_answers = 0

    def add(self, signals: Sequence[float]) -> None:
        """Adds an answer's signals, in the order of SIGNALS."""
        for value, edges, counts in zip(signals, self._edges, self._counts, strict=True):
            counts[bisect_left(edges, value)] += self._weight
        self._num_answers += 1
        self._weight *= self._growth
        if self._weight > 1e100:
            self._counts = [[count / self._weight for count in counts] for counts in self._counts]
            self._weight = 1.0

    def index(self, signal: Signal) -> float:
        """Returns the population stability index of recent answers; NaN with fewer than MIN_ANSWERS."""
        if self._num_answers < MIN_ANSWERS:
            return math.nan
        scale = self._weight / self._growth
        counts = [count / scale for count in self._counts[SIGNALS.index(signal)]]
        return stability_index(self._reference.signals[signal], self._reference.num_examples, counts)
