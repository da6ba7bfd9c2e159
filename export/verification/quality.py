"""The quality of int8, and of beams, measured on a whole test set by the graphs that will serve.

A correct rewrite can still be too coarse for a model, and beams worse than greedy search: only outputs against
references tell.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, get_args

from attendant.export.status import Say, say_nothing
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Certificate, DecodingDefaults, Evaluation, Precision, search_of
from attendant.runtime.stepper import Stepper
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.evaluating import (
    EvaluationConfig,
    TextModel,
    decode_examples,
    describe_search,
    evaluate,
    search_options,
)
from attendant.training.evaluation.metrics import LOWER_IS_BETTER, PerplexityName, is_better
from attendant.training.evaluation.session import EvaluationData, open_bundle_model, read_data
from attendant.training.run.loading import LoadedRun, read_held_out, text_model

MAX_LOSS: Final = {"bleu": 0.15, "chrf": 0.15, "rouge_1": 0.2, "rouge_2": 0.2, "rouge_l": 0.2}
"""Points that int8 may lose against fp32 to be served by default."""

OTHER_MAX_LOSS: Final = 0.2
"""Of error rates and exact matches, in percentage points."""


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
"""fp32's value from which on a metric says nothing about int8: outputs for unrelated texts get as much.

Both precisions then fail alike, whatever int8 costs. Unrelated texts of a language have letters and common words in
common, so chrF and ROUGE begin higher than BLEU."""

MIN_IDENTICAL: Final = 0.5
"""The least share of a certificate's decodings in which int8 gives fp32's tokens.

The models in models/ have 0.65 and more. With fewer than half, int8 is another model, even if metrics are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityMeasurement:
    """A test set, and how a model is measured on it.

    Attributes:
        config: the metrics, the first of which is the one that counts, and the search that the bundle serves by.
        model_of: the text model around a stepper.
        former: the int8 graphs that others with halved factors are made of, if the bundle has no fp32 graphs.
        recorded: metric -> how far `former` was from fp32 when there was fp32.
    """

    data: EvaluationData
    config: EvaluationConfig
    model_of: Callable[[Stepper], TextModel]
    former: Stepper | None = None
    recorded: Mapping[str, float] = field(default_factory=dict)

    def take(
        self, steppers: Mapping[Precision, Stepper], say: Say, advise: Say = say_nothing
    ) -> tuple[Evaluation, ...]:
        """Every metric in every precision, on the same examples; int8's with their distance from fp32.

        If the bundle serves by beams, greedy search is measured too, in fp32. Halved int8 graphs are measured against
        the former ones. Their distance from fp32 is that from the former ones and these ones' own, as it was recorded.

        Args:
            steppers: fp32 first, if there is fp32.
            say: is told every tenth part.
            advise: is told of beams that are worse than greedy search, and of what halving costs.
        """
        if self.former is not None:
            return self._take_halved(self.former, steppers["int8"], say, advise)
        entries: list[Evaluation] = []
        for precision, stepper in steppers.items():
            entries += self._values(precision, stepper, self.config, say, {one.metric: one.value for one in entries})
        # A search has nothing to do with perplexity.
        searched = tuple(metric for metric in self.config.metrics if metric not in get_args(PerplexityName))
        if self.config.beam_size == 1 or not searched:
            return tuple(entries)
        config = self.config.model_copy(update={"beam_size": 1, "metrics": searched})
        first = next(iter(steppers))
        greedy = self._values(first, steppers[first], config, say, {})
        metric = searched[0]
        beam, alone = (next(one for one in found if one.metric == metric) for found in (entries, greedy))
        if is_better(metric, alone.value, beam.value):
            advise(
                f"beams of {self.config.beam_size} are worse than greedy search: {metric} {beam.value:g}, greedy "
                f"{alone.value:g}, on {alone.num_examples} examples; export with --beam-size 1, or with another "
                "--patience"
            )
        return (*entries, *greedy)

    def _take_halved(self, former: Stepper, stepper: Stepper, say: Say, advise: Say) -> tuple[Evaluation, ...]:
        before = {one.metric: one for one in self._values("int8", former, self.config, say, {})}
        plain = {name: one.value for name, one in before.items()}
        entries = self._values("int8", stepper, self.config, say, plain)
        for one in entries:
            advise(f"halved: {one.metric} {one.value:g}, with factors of 8 bits {plain[one.metric]:g}")
        return tuple(
            one.model_copy(update={"difference": self._from_fp32(one.metric, one.difference)}) for one in entries
        )

    def _from_fp32(self, metric: str, from_former: float | None) -> float | None:
        """Returns the distance from fp32 of graphs that are so far from the former ones; None if it isn't known."""
        recorded = self.recorded.get(metric)
        return None if recorded is None or from_former is None else round(recorded + from_former, 4)

    def _values(
        self,
        precision: Precision,
        stepper: Stepper,
        config: EvaluationConfig,
        say: Say,
        plain: Mapping[str, float],
    ) -> list[Evaluation]:
        """Every metric; `plain`: the values of fp32, once they are measured."""
        model = self.model_of(stepper)
        options = search_options(config, model)
        count = _tenths(f"{precision}, {describe_search(options)}", len(self.data.examples), say)
        decoded = decode_examples(model, self.data.examples, options, progress=count)
        found = evaluate(model, decoded, options, config.metrics, data_name=self.data.name, num_resamples=0)
        return [
            Evaluation(
                metric=one.metric,
                value=one.value,
                protocol=one.protocol,
                num_examples=len(self.data.examples),
                precision=precision,
                difference=round(one.value - plain[one.metric], 4) if one.metric in plain else None,
            )
            for one in found.measurements
        ]


def _tenths(what: str, total: int, say: Say) -> Callable[[int], None]:
    """Tells of every tenth part of `total` examples, when it is called with how many more are done."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        told, done = done * 10 // total, done + more
        if done * 10 // total > told:
            say(f"measuring {what}: {done} of {total} examples")

    return count


def measurement_of_run(
    run: LoadedRun, file: str | None, decoding: DecodingDefaults, *, required: bool
) -> QualityMeasurement | None:
    """On `file`, or else on the run's test split; None where its recipe has none.

    Args:
        decoding: the search that the bundle serves by.
        required: whether a test split that is not on this machine is an error, and not a reason to measure nothing.

    Raises:
        UserError: bad or no data.
    """
    files = run.recipe.data.files("test")
    if file is None and (files is None or not (required or all(path.is_file() for path in files.paths))):
        return None
    data = read_held_out([run.path], "test") if file is None else read_data(CorpusFiles.named(file))
    config = _served_by(decoding, run.recipe.evaluation)
    return QualityMeasurement(data=data, config=config, model_of=partial(text_model, run))


def measurement_of_bundle(
    bundle: Bundle, file: str, decoding: DecodingDefaults, base: Precision, *, halves: bool
) -> QualityMeasurement:
    """Returns the measurement on `file`, with the metrics that the bundle was measured by.

    Args:
        decoding: the search that the new bundle serves by.
        base: of the bundle's precisions, the one that others are measured against.
        halves: the new bundle has the bundle's int8 graphs with halved factors.

    Raises:
        UserError: bad or no data, or graphs that this host can't compute.
    """
    opened = open_bundle_model(bundle.path, base)
    recorded = [one for one in bundle.manifest.evaluation if one.precision == "int8" and one.difference is not None]
    return QualityMeasurement(
        data=read_data(CorpusFiles.named(file)),
        config=_served_by(decoding, opened.config),
        model_of=lambda stepper: replace(opened.model, stepper=stepper),
        former=opened.model.stepper if halves else None,
        recorded={one.metric: one.difference for one in recorded if one.difference is not None},
    )


def with_measured(former: Sequence[Evaluation], measured: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Returns all measurements; a new one replaces those of its metric, precision, data and search.

    The data may be in another folder now: the files' names and the number of examples identify them.
    """
    again = {_identity(evaluation) for evaluation in measured}
    return (*(evaluation for evaluation in former if _identity(evaluation) not in again), *measured)


def _identity(evaluation: Evaluation) -> tuple[str, str, int, str]:
    data, separator, rest = evaluation.protocol.partition("; ")
    protocol = re.sub(r"[^\s,]*/", "", data) + separator + rest
    return evaluation.metric, evaluation.precision, evaluation.num_examples, protocol


def _served_by(decoding: DecodingDefaults, config: EvaluationConfig) -> EvaluationConfig:
    return config.model_copy(update=search_of(decoding))


def losses(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Metric -> by how much int8 is worse than fp32, of those measured in both; negative where it is better.

    Perplexities are not among them: what is served is outputs.
    """
    return {
        one.metric: one.difference if one.metric in LOWER_IS_BETTER else -one.difference
        for one in evaluation
        if one.precision == "int8" and one.difference is not None and one.metric not in get_args(PerplexityName)
    }


def too_costly(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Metric -> what int8 may lose at most, of those where it loses more."""
    return {
        metric: limit
        for metric, loss in losses(evaluation).items()
        if loss > (limit := MAX_LOSS.get(metric, OTHER_MAX_LOSS))
    }


def doubt(evaluation: Sequence[Evaluation], certificates: Sequence[Certificate], vocabulary_size: int) -> str:
    """Returns why the measured losses say nothing about int8; an empty string if they do say something.

    They do if fp32 is better at one metric than `WORTHLESS`, and its perplexity is below that of guessing, which is the
    size of the vocabulary.
    """
    plain = {
        one.metric: one.value - one.difference
        for one in evaluation
        if one.precision == "int8" and one.difference is not None
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
    for one in certificates:
        tokens = one.tokens
        if one.precision == "int8" and tokens.num_identical < MIN_IDENTICAL * tokens.num_compared:
            share = f"only {tokens.num_identical} of {tokens.num_compared} decodings are identical to fp32's"
            return f"{share}, must be {MIN_IDENTICAL:.0%}"
    return ""


def preferred_precision(evaluation: Sequence[Evaluation]) -> Precision:
    """What a CPU serves unless it is told otherwise: int8 where it was measured and costs no more than it may."""
    return "int8" if losses(evaluation) and not too_costly(evaluation) else "fp32"
