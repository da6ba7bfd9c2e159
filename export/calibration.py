"""Calibrates the confidence of a bundle's answers on held-out pairs: which are right, and which signals show it.

A logistic regression on the answers' signals gives each answer a score, and isotonic regression the share of right
answers at each score. The runtime needs the weights and a small table (runtime/confidence.py).

N answers, F signals.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np

from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant.runtime.bundle.bundle import BIGRAMS_NAME, Bundle
from attendant.runtime.bundle.manifest import Calibration, ConfidenceSignal, RightRule, SignalTerm
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.confidence import Signals, confidence_of
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.confidence import Bools, answer_by_default, right_rule
from attendant.training.evaluation.metrics import Floats64
from attendant.training.evaluation.session import EvaluationData, read_source_ids
from attendant.training.run.loading import LoadedRun, read_held_out

logger = logging.getLogger(__name__)

MIN_CALIBRATED: Final = 200  # With fewer answers the shares of right ones are noise, and answers get no confidence.
MAX_CALIBRATED: Final = 20_000

FOREIGN_SHARE: Final = 0.05
"""The assumed share of inputs of another domain. Without any in the calibration, a model that is nearly always right on
held-out data would be sure of its answers to anything."""

NUM_FOREIGN: Final = 1000
SEED: Final = 12345

MAX_WARNED: Final = 0.05
"""Largest share of the answers to held-out sources that come with a warning. Otherwise a model that is often wrong
would warn all the time."""

LOWEST_CONFIDENCE: Final = 0.5
"""With this confidence or more there is no warning: the answer is more likely right than wrong."""

BOUNDED_BELOW: Final[ConfidenceSignal] = "length_ratio"
"""The only signal with a lower limit. Of the other signals, only high values are suspicious."""

MARGIN: Final = 0.25  # Share of a range by which it is extended: a sample does not have the longest text that there is.
LEAST_MARGIN: Final = 1e-5
"""Extends a range without width, e.g. of ratios of codes of one length, by more than rounding changes."""

UNWEIGHTED: Final[ConfidenceSignal] = "source_tokens"
"""This signal has limits, but no weight in the score. A weight made the separation of right and wrong answers worse."""

RIDGE: Final = 1.0
"""Prior precision of a standardized weight: of a signal that separates all answers, the weight would be infinite."""

MAX_ITERATIONS: Final = 100


class Calibrated(NamedTuple):
    """A calibration and the bigrams of training sources that it may need. Without confidence, both are None."""

    calibration: Calibration | None = None
    seen: SeenBigrams | None = None

    def write(self, folder: Path) -> None:
        """Writes the bigrams, if there are any, into a bundle's folder."""
        if self.seen is not None:
            (folder / BIGRAMS_NAME).write_bytes(self.seen.content)


NOT_CALIBRATED: Final = Calibrated()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Pairs on which confidence is calibrated.

    Attributes:
        training: the pairs that the model was trained on; None if their files are missing.
        warn_below: the confidence below which answers come with a warning; if None, see `warning_level`.
    """

    data: EvaluationData
    right: RightRule
    training: CorpusFiles | None
    warn_below: float | None = None


def held_out_of_run(run: LoadedRun) -> HeldOut | None:
    """Returns the validation split of a run, and its training split; None if the validation split is missing."""
    data = run.recipe.data
    training, validation = data.files("train"), data.files("validation")
    if validation is None or not all(path.is_file() for path in validation.paths):
        return None
    at_hand = training is not None and all(path.is_file() for path in training.paths)
    config = run.recipe.evaluation
    return HeldOut(
        data=read_held_out([run.path], "validation"),
        right=right_rule(config.metrics, config.right_from),
        training=training if at_hand else None,
    )


def calibrate(bundle: Bundle, stepper: BundleStepper, held_out: HeldOut) -> Calibrated:
    """Answers the held-out sources by the defaults of a bundle, or of a draft, and calibrates on which are right.

    If fewer than MIN_CALIBRATED sources are valid in a request, the bundle's own calibration is returned.
    """
    tokenizer, examples = bundle.source_tokenizer, held_out.data.examples
    examples = examples[:: -(-len(examples) // MAX_CALIBRATED)]
    logger.info("calibrating confidence on %d held-out texts in %s", len(examples), stepper.precision)
    own = answer_by_default(bundle, stepper, tokenizer.encode_batch([each.source for each in examples]))
    if len(own.places) < MIN_CALIBRATED:
        return Calibrated(bundle.manifest.confidence, bundle.seen_bigrams)
    is_right = own.are_right(held_out.right, examples, bundle)
    foreign = answer_by_default(bundle, stepper, random_sources(own.source_ids))
    # Without the training pairs, the bundle's own bigrams are still valid.
    seen = bundle.seen_bigrams
    if held_out.training is not None:
        seen = SeenBigrams.of_sources(read_source_ids(held_out.training, tokenizer))
    bundle = replace(bundle, seen_bigrams=seen)
    terms, table = fit(own.signals(bundle), is_right, foreign.signals(bundle))
    calibration = Calibration(
        right=held_out.right,
        data=held_out.data.name,
        num_examples=len(own.places),
        precision=stepper.precision,
        signals=terms,
        scores=tuple(score for score, _ in table),
        probabilities=tuple(probability for _, probability in table),
        warn_below=0.0,
    )
    level = held_out.warn_below
    if level is None:
        level = warning_level([confidence_of(signals, calibration) for signals in own.signals(bundle)], table[0][1])
    return Calibrated(calibration.model_copy(update={"warn_below": _rounded(level)}), seen)


def warning_level(confidences: Sequence[float], lowest: float) -> float:
    """Returns the confidence below which answers come with a warning.

    These are at most about MAX_WARNED of the held-out answers, except that the lowest confidence always gets a warning.

    Args:
        confidences: of the answers to held-out sources.
        lowest: the confidence of answers that are unlike all of them.
    """
    level = float(np.quantile(confidences, MAX_WARNED, method="lower"))
    above = min((confidence for confidence in confidences if confidence > lowest), default=1.0)
    return min(LOWEST_CONFIDENCE, max(level, above))


def random_sources(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns up to NUM_FOREIGN sources as long as some of these, of symbols drawn from all of them."""
    random = np.random.default_rng(SEED)
    symbols = np.array([symbol for source in sources for symbol in source])
    chosen = sources[:: -(-len(sources) // NUM_FOREIGN)]
    return [random.choice(symbols, len(source)).tolist() for source in chosen]


Terms = dict[ConfidenceSignal, SignalTerm]
Table = list[tuple[float, float]]


def fit(own: Sequence[Signals], is_right: Bools, foreign: Sequence[Signals]) -> tuple[Terms, Table]:
    """Returns the terms of the score, and the probability of a right answer at some scores.

    Args:
        own: signals of answers to held-out sources.
        is_right: which of these answers are right.
        foreign: signals of answers to sources of another domain, none of which is right.
    """
    names = [name for name in get_args(ConfidenceSignal) if name in own[0]]
    features = np.array([[each[name] for name in names] for each in (*own, *foreign)])
    outcomes = np.concatenate([is_right, np.zeros(len(foreign), np.bool_)])
    weight = FOREIGN_SHARE / (1 - FOREIGN_SHARE) * len(own) / len(foreign)
    importance = np.repeat([1.0, weight], [len(own), len(foreign)])
    weighted = np.array([name != UNWEIGHTED for name in names])
    weights = np.zeros(len(names))
    weights[weighted] = logistic_weights(features[:, weighted], outcomes, importance)
    lowest, highest = features[: len(own)].min(axis=0), features[: len(own)].max(axis=0)
    margins = MARGIN * (highest - lowest) + LEAST_MARGIN
    terms = {
        name: SignalTerm(
            weight=_rounded(weight),
            low=_rounded(low - margin) if name == BOUNDED_BELOW else None,
            high=_rounded(high + margin),
        )
        for name, weight, low, high, margin in zip(names, weights, lowest, highest, margins, strict=True)
    }
    scores = features @ np.array([terms[name].weight for name in names])
    blocks = isotonic_blocks(scores, outcomes, importance)
    # Krichevsky and Trofimov's estimate: no probability is 0 or 1. It may undo the order of small blocks.
    shares = np.maximum.accumulate([(block.num_right + 0.5) / (block.weight + 1) for block in blocks])
    # A dictionary: of scores that are equal when rounded, the last one counts.
    table = {_rounded(block.total / block.weight): _rounded(share) for block, share in zip(blocks, shares, strict=True)}
    return terms, sorted(table.items())


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def logistic_weights(features: Floats64, is_right: Bools, importance: Floats64) -> Floats64:
    """Returns [F] the weights of a logistic regression with an intercept, by Newton's method.

    Each of the answers, with features [N, F], counts as often as `importance` [N].
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation[deviation == 0] = 1.0
    standardized = np.column_stack([(features - mean) / deviation, np.ones(len(features))])
    penalty = RIDGE * np.eye(standardized.shape[1])
    penalty[-1, -1] = 0.0
    weights = np.zeros(standardized.shape[1])
    for _ in range(MAX_ITERATIONS):
        probabilities = 1.0 / (1.0 + np.exp(-standardized @ weights))
        gradient = standardized.T @ (importance * (is_right - probabilities)) - penalty @ weights
        spread = importance * probabilities * (1 - probabilities)
        step = np.linalg.solve((standardized * spread[:, None]).T @ standardized + penalty, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return np.asarray(weights[:-1] / deviation)


class Block(NamedTuple):
    """Answers of neighbouring scores: the sums of their importance, of the right answers', and of weighted scores."""

    weight: float
    num_right: float
    total: float

    @property
    def share_right(self) -> float:
        return self.num_right / self.weight


def isotonic_blocks(scores: Floats64, is_right: Bools, importance: Floats64) -> list[Block]:
    """Returns the blocks of the isotonic regression, by pooling adjacent violators (Ayer et al. 1955).

    Each of N answers counts as often as its importance. Scores and shares of right answers ascend from block to block.
    """
    blocks: list[Block] = []
    values, group = np.unique(scores, return_inverse=True)
    weights, num_right = np.bincount(group, importance), np.bincount(group, importance * is_right)
    for weight, right, total in zip(weights.tolist(), num_right.tolist(), (weights * values).tolist(), strict=True):
        block = Block(weight, right, total)
        while blocks and blocks[-1].share_right >= block.share_right:
            block = Block(*map(sum, zip(blocks.pop(), block, strict=True)))
        blocks.append(block)
    return blocks
