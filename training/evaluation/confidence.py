"""Measures the confidence of answers: whether it is calibrated, and whether it separates right answers from wrong ones.

N answers, B bins of confidence, R resamples.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import RightRule, search_of
from attendant.runtime.confidence import Signals, answer_signals, confidence_of, source_signals
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, default_max_length
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Stepper
from attendant.training.data.pairs import Example
from attendant.training.evaluation.bootstrap import (
    DEFAULT_RESAMPLES,
    MIN_EXAMPLES,
    Interval,
    percentiles,
    resampled_counts,
)
from attendant.training.evaluation.metrics import Floats64, TextMetricName, refuse_missing, take_statistics

RIGHT_METRICS: Final[dict[str, tuple[TextMetricName, float]]] = {
    **dict.fromkeys(("exact_match", "wer", "per", "cer"), ("exact_match", 100.0)),
    **dict.fromkeys(("bleu", "chrf", "ter"), ("chrf", 60.0)),
    **{name: (name, 40.0) for name in ("rouge_1", "rouge_2", "rouge_l")},
}
"""Metric of a model -> the metric that decides if a single answer is right, and the least value of a right answer. BLEU
and the edit rate are too coarse for single sentences."""

NUM_BINS: Final = 10

Bools = NDArray[np.bool_]


def right_rule(metrics: Sequence[str], at_least: float | None = None) -> RightRule:
    """Returns the rule that fits a model's metrics, by the first one of outputs; exact match if there is none."""
    metric, value = next((RIGHT_METRICS[name] for name in metrics if name in RIGHT_METRICS), ("exact_match", 100.0))
    return RightRule(metric=metric, at_least=value if at_least is None or metric == "exact_match" else at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Sources that a request could give, and their answers.

    Attributes:
        places: places of the sources among all texts.
        source_ids: without EOS.
    """

    places: list[int]
    source_ids: list[list[int]]
    hypotheses: list[Hypothesis]
    texts: list[str]

    def signals(self, bundle: Bundle) -> list[Signals]:
        return [
            answer_signals(source_signals(source, bundle.seen_bigrams), hypothesis)
            for source, hypothesis in zip(self.source_ids, self.hypotheses, strict=True)
        ]

    def are_right(self, rule: RightRule, examples: Sequence[Example], bundle: Bundle) -> Bools:
        """Returns [N] bool, True for answers that are right by the references of their examples.

        Args:
            examples: the examples of all texts.
        """
        # No tokenizer writes the white space that it does not read.
        spaced = bundle.target_tokenizer.spaced
        references = [tuple(map(spaced, examples[place].references)) for place in self.places]
        values = take_statistics(rule.metric, self.texts, references).values()  # type: ignore[arg-type]
        return np.asarray(values >= rule.at_least - 1e-9)


def answer_by_default(
    bundle: Bundle, stepper: Stepper, sources: Sequence[Sequence[int]], progress: Callable[[int], None] | None = None
) -> Answered:
    """Decodes sources as requests without options are decoded; those beyond a request's limits are left out.

    Args:
        sources: ids without EOS.
        progress: called with the number of sources that have just finished.
    """
    manifest = bundle.manifest
    places = [place for place, ids in enumerate(sources) if 0 < len(ids) <= manifest.limits.max_source_tokens]
    allowed = [list(sources[place]) for place in places]
    options = [
        DecodingOptions(**search_of(manifest.decoding), max_length=default_max_length(manifest, len(source)))
        for source in allowed
    ]
    encoded = [bundle.source_ids(source) for source in allowed]
    outputs = decode_all(stepper, encoded, options, manifest.special_ids, progress=progress)
    hypotheses = [best for best, *_ in outputs]
    texts = [bundle.target_tokenizer.decode(hypothesis.token_ids) for hypothesis in hypotheses]
    return Answered(places=places, source_ids=allowed, hypotheses=hypotheses, texts=texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A value with its 95 % interval, which is None without resamples, and for a value of a single answer.

    Attributes:
        value: None if it does not exist, such as the share of warnings among no wrong answers.
    """

    value: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Answers with a confidence from `low` to `high`.

    Attributes:
        confidence: their mean confidence.
        share_right: the share of right answers among these.
    """

    low: float
    high: float
    num_answers: int
    num_right: int
    confidence: float
    share_right: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignInputs:
    """Inputs of another domain, none of whose answers counts as right.

    Attributes:
        num_in_bins: numbers of inputs, by the bin of their answers' confidence.
        warned: share of the inputs whose answers come with a warning about their confidence.
        auroc: probability that a right answer to an example has a higher confidence than an answer to one of these.
    """

    name: str
    num_inputs: int
    num_in_bins: tuple[int, ...]
    confidence: float
    warned: Measured
    auroc: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """The quality of the confidences of N answers.

    Attributes:
        ece: expected calibration error (Guo et al. 2017): the mean distance of confidence and share of right answers
            over the bins, weighted by their answers.
        auroc: probability that a right answer has a higher confidence than a wrong one.
        warned: share of the answers that come with a warning about their confidence; also of the wrong ones alone.
    """

    rule: str
    warn_below: float
    num_examples: int
    share_right: Measured
    confidence: float
    ece: Measured
    auroc: Measured
    warned: Measured
    warned_of_wrong: Measured
    bins: tuple[ReliabilityBin, ...]
    foreign: tuple[ForeignInputs, ...] = ()


def reliability(
    confidences: Floats64,
    is_right: Bools,
    *,
    rule: str,
    warn_below: float,
    foreign: Sequence[tuple[str, Floats64]] = (),
    num_resamples: int = DEFAULT_RESAMPLES,
) -> Reliability:
    """Measures confidences.

    Args:
        confidences: [N], at least one.
        is_right: [N].
        foreign: name and confidences of inputs of other domains.
        num_resamples: resamples of the bootstrap. 0 disables intervals.
    """
    in_bin = _bins_of(confidences)[:, None] == np.arange(NUM_BINS)
    gap = in_bin * (confidences - is_right)[:, None]
    is_warned, numbers = confidences < warn_below, np.flatnonzero(in_bin.any(axis=0)).tolist()
    share_right, ece, area, warned, warned_of_wrong, *shares = _measured(
        len(confidences),
        num_resamples,
        _share(is_right),
        lambda counts: np.abs(counts @ gap).sum(axis=1) / counts.sum(axis=1),
        lambda counts: auroc(confidences, is_right, counts),
        _share(is_warned),
        _share(is_warned, ~is_right),
        *(_share(is_right, in_bin[:, number]) for number in numbers),
    )
    return Reliability(
        rule=rule,
        warn_below=warn_below,
        num_examples=len(confidences),
        share_right=share_right,
        confidence=round(float(confidences.mean()), 4),
        ece=ece,
        auroc=area,
        warned=warned,
        warned_of_wrong=_among(warned_of_wrong, int((~is_right).sum())),
        bins=tuple(
            ReliabilityBin(
                low=number / NUM_BINS,
                high=(number + 1) / NUM_BINS,
                num_answers=int(in_bin[:, number].sum()),
                num_right=int(is_right[in_bin[:, number]].sum()),
                confidence=round(float(confidences[in_bin[:, number]].mean()), 4),
                share_right=_among(share, int(in_bin[:, number].sum())),
            )
            for number, share in zip(numbers, shares, strict=True)
        ),
        foreign=tuple(
            _foreign(name, confidences[is_right], values, warn_below, num_resamples) for name, values in foreign
        ),
    )


def _foreign(name: str, right: Floats64, values: Floats64, warn_below: float, num_resamples: int) -> ForeignInputs:
    both = np.concatenate([right, values])
    is_own = np.arange(len(both)) < len(right)
    warned, area = _measured(
        len(both), num_resamples, _share(both < warn_below, ~is_own), lambda counts: auroc(both, is_own, counts)
    )
    return ForeignInputs(
        name=name,
        num_inputs=len(values),
        num_in_bins=tuple(np.bincount(_bins_of(values), minlength=NUM_BINS).tolist()),
        confidence=round(float(values.mean()), 4),
        warned=_among(warned, len(values)),
        auroc=area,
    )


def _bins_of(confidences: Floats64) -> NDArray[np.int64]:
    return np.minimum((confidences * NUM_BINS).astype(np.int64), NUM_BINS - 1)


ValueOf = Callable[[Floats64], Floats64]
"""Returns a value [r] for each of the counts [r, N] of N answers."""


def _share(is_chosen: Bools, is_among: Bools | None = None) -> ValueOf:
    """Returns the share of the chosen answers among some, or all."""
    among = np.ones(len(is_chosen), np.bool_) if is_among is None else is_among
    columns = np.stack([is_chosen & among, among], axis=1).astype(np.float64)

    def share_of(counts: Floats64) -> Floats64:
        totals = counts @ columns
        with np.errstate(invalid="ignore", divide="ignore"):
            shares: Floats64 = totals[:, 0] / totals[:, 1]
        return shares

    return share_of


def _measured(num_answers: int, num_resamples: int, *values: ValueOf) -> list[Measured]:
    """Measures values of the answers, and their intervals on the same resamples."""
    blocks = resampled_counts(num_answers, num_resamples) if num_resamples and num_answers >= MIN_EXAMPLES else ()
    resampled = [[value_of(counts) for value_of in values] for counts in blocks]
    measured = []
    for place, value_of in enumerate(values):
        value = float(value_of(np.ones((1, num_answers)))[0])
        drawn = np.concatenate([parts[place] for parts in resampled]) if resampled else np.empty(0)
        drawn = drawn[np.isfinite(drawn)]
        interval = percentiles(drawn) if len(drawn) else None
        measured.append(Measured(value=round(value, 4) if np.isfinite(value) else None, interval=interval))
    return measured


def _among(measured: Measured, num_answers: int) -> Measured:
    """Returns a share among some answers, without its interval if there is one answer: it is equal in all resamples."""
    return measured if num_answers >= MIN_EXAMPLES else replace(measured, interval=None)


def auroc(scores: Floats64, is_positive: Bools, counts: Floats64) -> Floats64:
    """Returns [R] the area under the ROC curve of each resample; NaN if it has no positive or no negative.

    It is the probability that a positive has a higher score than a negative, with half of a tie (Hanley and McNeil
    1982).

    Args:
        scores: [N].
        is_positive: [N].
        counts: [R, N] how often each counts.
    """
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    positives, negatives = (
        np.add.reduceat((counts * chosen)[:, order], starts, axis=1) for chosen in (is_positive, ~is_positive)
    )
    below = negatives.cumsum(axis=1) - negatives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Floats64 = (positives * below).sum(axis=1) / pairs
    return area


def measure_confidence(
    bundle: Bundle,
    stepper: Stepper,
    examples: Sequence[Example],
    foreign: Sequence[tuple[str, Sequence[str]]] = (),
    *,
    num_resamples: int = DEFAULT_RESAMPLES,
    progress: Callable[[int], None] | None = None,
) -> Reliability:
    """Answers examples and inputs of other domains by the bundle's defaults, and measures the confidences.

    Args:
        foreign: name and texts of inputs of other domains.
        progress: called with the number of inputs that have just been answered.

    Raises:
        UserError: the bundle has no calibration; no source is within its limits; the metric needs a library that is not
            installed.
    """
    calibration = bundle.manifest.confidence
    if calibration is None:
        raise UserError(
            f"{bundle.path} has no calibration: attendant reference {shlex.quote(str(bundle.path))} "
            "--data VALIDATION.tsv --output NEW adds one"
        )
    refuse_missing([calibration.right.metric])

    def confidences(texts: Sequence[str]) -> tuple[Answered, Floats64]:
        answered = answer_by_default(bundle, stepper, bundle.source_tokenizer.encode_batch(list(texts)), progress)
        if not answered.places:
            raise UserError("no source is within the limits of a request to this bundle: give others")
        return answered, np.array([confidence_of(signals, calibration) for signals in answered.signals(bundle)])

    answered, own = confidences([example.source for example in examples])
    return reliability(
        own,
        answered.are_right(calibration.right, examples, bundle),
        rule=str(calibration.right),
        warn_below=calibration.warn_below,
        foreign=[(name, confidences(texts)[1]) for name, texts in foreign],
        num_resamples=num_resamples,
    )
