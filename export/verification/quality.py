"""The quality of int8, and of beams, on a whole test set, and reference distributions of a bundle's answers.

A correct rewrite can still be too coarse for a model, and beams worse than greedy search: only a measurement of the
graphs that will serve shows that. A server compares its answers with the distributions on held-out texts.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args

from attendant.runtime.answers import SIGNALS, distribution_of, signals_of
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import (
    Certificate,
    DecodingDefaults,
    Evaluation,
    Manifest,
    Precision,
    Reference,
    search_of,
)
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.stepper import Stepper
from attendant.training.evaluation import evaluating
from attendant.training.evaluation.confidence import answer_by_default
from attendant.training.evaluation.metrics import LOWER_IS_BETTER, PerplexityName, is_better
from attendant.training.evaluation.session import Data, EvaluationData, open_bundle_model, read_data
from attendant.training.run.loading import LoadedRun, read_held_out

logger = logging.getLogger(__name__)

MAX_LOSS: Final = {"bleu": 0.15, "chrf": 0.15, "rouge_1": 0.2, "rouge_2": 0.2, "rouge_l": 0.2}
"""Points that int8 may lose against fp32 and still be the default."""

OTHER_MAX_LOSS: Final = 0.2  # The same for error rates and exact matches, in percentage points.
WORTHLESS: Final[Mapping[str, float]] = {
    "bleu": 2,
    "chrf": 15,
    "rouge_1": 10,
    "rouge_2": 1,
    "rouge_l": 8,
    "exact_match": 1,
    "wer": 95,
    "per": 95,
}
"""Values of fp32 at which a metric shows nothing about int8: outputs for unrelated texts reach them.

Both precisions then fail alike at any cost of int8. Unrelated texts of a language have letters and common words in
common, so chrF and ROUGE begin higher than BLEU."""

MIN_IDENTICAL: Final = 0.5
"""Least share of a certificate's decodings in which int8 must give fp32's tokens.

The models in models/ have 0.65 and more. With fewer than half, int8 is another model, even if metrics are alike."""

NUM_REFERENCE: Final = 1000
"""Texts decoded for reference: with ten bins the index is then about 0.01 by chance, and 0.25 is a shift."""

MIN_REFERENCE: Final = 100  # With fewer texts a distribution is noise, and it is left out.


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityMeasurement:
    """A test set and the measurement on it.

    Attributes:
        config: the metrics, the first of which is the decisive one, and the search that the bundle serves by.
        model_of: makes the text model around a stepper.
        advice: lines for the user that `take` adds: beams that are worse than greedy search.
    """

    data: EvaluationData
    config: evaluating.EvaluationConfig
    model_of: Callable[[Stepper], evaluating.TextModel]
    advice: list[str] = field(default_factory=list)

    def take(self, steppers: Mapping[Precision, Stepper]) -> tuple[Evaluation, ...]:
        """Measures every metric in every precision on the same examples, int8 with its distance from fp32.

        The first stepper is fp32, if there is fp32. If the bundle serves by beams, it measures greedy search, too.
        """
        entries: list[Evaluation] = []
        for precision, stepper in steppers.items():
            plain = {entry.metric: entry.value for entry in entries}
            entries += self._values(precision, stepper, self.config, plain)
        # Perplexity does not depend on the search.
        searched = tuple(metric for metric in self.config.metrics if metric not in get_args(PerplexityName))
        if self.config.beam_size == 1 or not searched:
            return tuple(entries)
        config = self.config.model_copy(update={"beam_size": 1, "metrics": searched})
        precision, stepper = next(iter(steppers.items()))
        greedy = self._values(precision, stepper, config, {})
        metric = searched[0]
        beam, alone = (next(entry for entry in side if entry.metric == metric) for side in (entries, greedy))
        if is_better(metric, alone.value, beam.value):
            self.advice.append(
                f"beams of {self.config.beam_size} are worse than greedy search: {metric} {beam.value:g}, greedy "
                f"{alone.value:g}, on {alone.num_examples} examples; export with --beam-size 1, or with another "
                "--patience"
            )
        return (*entries, *greedy)

    def _values(
        self, precision: Precision, stepper: Stepper, config: evaluating.EvaluationConfig, plain: Mapping[str, float]
    ) -> list[Evaluation]:
        """Measures every metric; `plain` has the values of fp32, once they are measured."""
        model = self.model_of(stepper)
        options = evaluating.search_options(config, model)
        done, total = 0, len(self.data.examples)

        def progress(more: int) -> None:
            """Logs every tenth part."""
            nonlocal done
            before, done = done, done + more
            if done * 10 // total > before * 10 // total:
                search = evaluating.describe_search(options)
                logger.info("measuring %s, %s: %d of %d examples", precision, search, done, total)

        decoded = evaluating.decode_examples(model, self.data.examples, options, progress=progress)
        evaluated = evaluating.evaluate(model, decoded, config, data_name=self.data.name, num_resamples=0)
        return [
            Evaluation(
                metric=entry.metric,
                value=entry.value,
                protocol=entry.protocol,
                num_examples=total,
                precision=precision,
                difference=round(entry.value - plain[entry.metric], 4) if entry.metric in plain else None,
            )
            for entry in evaluated.measurements
        ]


def measurement_of_run(
    run: LoadedRun, data: Data | None, decoding: DecodingDefaults, *, required: bool
) -> QualityMeasurement | None:
    """Returns the measurement on data, or if they are None on the run's test split; None if its recipe has none.

    Args:
        decoding: the search that the bundle serves by.
        required: if true, a test split that is missing on this machine is an error; if false, nothing is measured.
    """
    files = run.recipe.data.files("test")
    if data is None and (files is None or not (required or all(path.is_file() for path in files.paths))):
        return None
    measured = read_held_out([run.path], "test") if data is None else read_data(data)
    config = run.recipe.evaluation.model_copy(update=search_of(decoding))
    return QualityMeasurement(data=measured, config=config, model_of=run.text_model)


def measurement_of_bundle(
    bundle: Bundle, data: Data, decoding: DecodingDefaults, base: Precision
) -> QualityMeasurement:
    """Returns the measurement on data, with the bundle's metrics and the new bundle's search, of precisions against
    `base`.
    """
    opened = open_bundle_model(bundle.path, base)
    return QualityMeasurement(
        data=read_data(data),
        config=opened.config.model_copy(update=search_of(decoding)),
        model_of=lambda stepper: replace(opened.model, stepper=stepper),
    )


def with_measured(former: Sequence[Evaluation], measured: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Returns all measurements; a new one replaces those of its metric, precision, data and search.

    The data may be in another folder now: the files' names and the number of examples identify them.
    """

    def identity(evaluation: Evaluation) -> tuple[str, str, int, str]:
        data, separator, rest = evaluation.protocol.partition("; ")
        protocol = re.sub(r"[^\s,]*/", "", data) + separator + rest
        return evaluation.metric, evaluation.precision, evaluation.num_examples, protocol

    again = set(map(identity, measured))
    return (*(evaluation for evaluation in former if identity(evaluation) not in again), *measured)


def losses(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Returns metric -> loss of int8 against fp32, for metrics measured in both; negative if int8 is better.

    Perplexities are left out: outputs are served.
    """
    return {
        entry.metric: entry.difference if entry.metric in LOWER_IS_BETTER else -entry.difference
        for entry in evaluation
        if entry.precision == "int8" and entry.difference is not None and entry.metric not in get_args(PerplexityName)
    }


def too_costly(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Returns metric -> the largest allowed loss of int8, for metrics where it loses more."""
    return {
        metric: limit
        for metric, loss in losses(evaluation).items()
        if loss > (limit := MAX_LOSS.get(metric, OTHER_MAX_LOSS))
    }


def doubt(evaluation: Sequence[Evaluation], certificates: Sequence[Certificate], vocabulary_size: int) -> str:
    """Returns the reason why the measured losses show nothing about int8; empty if they do show something.

    They do if fp32 is better at one metric than `WORTHLESS`, and its perplexity is below that of guessing, which is the
    size of the vocabulary.
    """
    plain = {
        entry.metric: entry.value - entry.difference
        for entry in evaluation
        if entry.precision == "int8" and entry.difference is not None
    }
    measured = {metric: plain[metric] for metric in losses(evaluation)}
    bad = [
        f"{metric} {value:g}"
        for metric, value in measured.items()
        if metric in WORTHLESS
        and (value >= WORTHLESS[metric] if metric in LOWER_IS_BETTER else value < WORTHLESS[metric])
    ]
    if measured and len(bad) == len(measured):
        return f"fp32 itself fails on this data ({', '.join(bad)})"
    if (perplexity := plain.get("perplexity", 1.0)) >= vocabulary_size:
        return f"fp32 itself fails on this data (perplexity {perplexity:.3g}, guessing has {vocabulary_size})"
    for tokens in (certificate.tokens for certificate in certificates if certificate.precision == "int8"):
        if tokens.num_identical < MIN_IDENTICAL * tokens.num_compared:
            share = f"only {tokens.num_identical} of {tokens.num_compared} decodings are identical to fp32's"
            return f"{share}, must be {MIN_IDENTICAL:.0%}"
    return ""


def preferred_precision(evaluation: Sequence[Evaluation]) -> Precision:
    """Returns a CPU's default precision: int8 if it was measured and loses no more than allowed."""
    return "int8" if losses(evaluation) and not too_costly(evaluation) else "fp32"


def references_of(
    bundle: Bundle, steppers: Iterable[BundleStepper], sources: Sequence[Sequence[int]], data_name: str
) -> dict[Precision, Reference]:
    """Returns the reference distributions of each stepper's precision on sources, ids without EOS; none if too few
    sources are within a request's limits.
    """
    references = dict[Precision, Reference]()
    limit = bundle.manifest.limits.max_source_tokens
    allowed = [source for source in sources if 0 < len(source) <= limit][:NUM_REFERENCE]
    for stepper in steppers if len(allowed) >= MIN_REFERENCE else ():
        logger.info("decoding %d held-out texts in %s, for reference", len(allowed), stepper.precision)
        answered = answer_by_default(bundle, stepper, allowed)
        values = [
            signals_of(bundle.source_ids(source), len(source), hypothesis)
            for source, hypothesis in zip(answered.source_ids, answered.hypotheses, strict=True)
        ]
        columns = zip(SIGNALS, zip(*values, strict=True), strict=True)
        references[stepper.precision] = Reference(
            num_examples=len(allowed),
            precision=stepper.precision,
            data=data_name,
            signals={name: distribution_of(column) for name, column in columns},
        )
    return references


def with_references(manifest: Manifest, references: Mapping[Precision, Reference]) -> Manifest:
    """Returns the manifest with these distributions: the default precision's apart from the others."""
    default = manifest.default_precision.get("cpu", "fp32")
    others = {precision: reference for precision, reference in references.items() if precision != default}
    return manifest.model_copy(update={"reference": references.get(default), "references": others})
