"""What a precision costs, measured on a whole test set by the graphs that will serve, and what it may cost.

A rewrite that is right can still be too coarse for a model: only outputs against references say so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from attendant.export.verification.certification import Say
from attendant.runtime.bundle.manifest import Evaluation, Precision
from attendant.runtime.stepper import Stepper
from attendant.training.assessment.data import EvaluationData, read_data, read_held_out
from attendant.training.assessment.models import open_bundle_model, text_model
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation import EvaluationConfig, TextModel, decode_examples, evaluate, search_options
from attendant.training.evaluation.metrics import LOWER_IS_BETTER
from attendant.training.run.loading import LoadedRun

MAX_LOSS: Final = {"bleu": 0.15, "chrf": 0.15, "rouge_1": 0.2, "rouge_2": 0.2, "rouge_l": 0.2}
"""Points that int8 may lose against fp32 to be served by default."""

OTHER_MAX_LOSS: Final = 0.2
"""Of error rates and exact matches, in percentage points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A test set, and how a model is measured on it.

    Attributes:
        model_of: the text model around a stepper.
    """

    data: EvaluationData
    config: EvaluationConfig
    model_of: Callable[[Stepper], TextModel]

    def taking(self, say: Say) -> Callable[[Mapping[Precision, Stepper]], tuple[Evaluation, ...]]:
        """What `write_bundle` measures with; `say` is told every tenth part."""
        return lambda steppers: self.take(steppers, say)

    def take(self, steppers: Mapping[Precision, Stepper], say: Say) -> tuple[Evaluation, ...]:
        """Every metric in every precision, on the same examples; int8's with their distance from fp32.

        Args:
            steppers: fp32 first.
        """
        entries: list[Evaluation] = []
        for precision, stepper in steppers.items():
            plain = {one.metric: one.value for one in entries if one.precision == "fp32"}
            for metric, value, protocol in self._values(stepper, _Counter(precision, len(self.data.examples), say)):
                difference = None if precision == "fp32" else round(value - plain[metric], 4)
                entries.append(
                    Evaluation(
                        metric=metric,
                        value=value,
                        protocol=protocol,
                        num_examples=len(self.data.examples),
                        precision=precision,
                        difference=difference,
                    )
                )
        return tuple(entries)

    def _values(self, stepper: Stepper, count: Callable[[int], None]) -> list[tuple[str, float, str]]:
        """(metric, value, protocol) of each metric."""
        model = self.model_of(stepper)
        options = search_options(self.config, model)
        decoded = decode_examples(model, self.data.examples, options, progress=count)
        found = evaluate(model, decoded, options, self.config.metrics, data_name=self.data.name, num_resamples=0)
        return [(one.metric, one.value, one.protocol) for one in found.measurements]


class _Counter:
    """Tells of every tenth part of the examples."""

    def __init__(self, precision: Precision, total: int, say: Say) -> None:
        self._precision, self._total, self._say = precision, total, say
        self._done = self._told = 0

    def __call__(self, count: int) -> None:
        self._done += count
        if self._done * 10 // self._total > self._told:
            self._told = self._done * 10 // self._total
            self._say(f"measuring {self._precision}: {self._done} of {self._total} examples")


def measurement_of_run(run: LoadedRun, file: str | None) -> Measurement | None:
    """On `file`, or else on the run's test part; None where its recipe has none.

    Raises:
        UserError: bad or no data.
    """
    if file is None and run.recipe.data.files("test") is None:
        return None
    data = read_held_out([run.path], "test") if file is None else read_data(CorpusFiles(tsv=file))
    return Measurement(data=data, config=run.recipe.evaluation, model_of=partial(text_model, run))


def measurement_of_bundle(path: Path, file: str) -> Measurement:
    """On `file`, with the metrics that the bundle was measured by and the search that it serves by.

    Raises:
        UserError: bad or no data, or a bundle that is refused.
    """
    opened = open_bundle_model(path, "fp32")
    return Measurement(
        data=read_data(CorpusFiles(tsv=file)),
        config=opened.config,
        model_of=lambda stepper: replace(opened.model, stepper=stepper),
    )


def losses(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Metric -> by how much int8 is worse than fp32, of those measured in both; negative where it is better."""
    return {
        one.metric: one.difference if one.metric in LOWER_IS_BETTER else -one.difference
        for one in evaluation
        if one.precision == "int8" and one.difference is not None
    }


def too_costly(evaluation: Sequence[Evaluation]) -> dict[str, float]:
    """Metric -> what int8 may lose at most, of those where it loses more."""
    return {
        metric: limit
        for metric, loss in losses(evaluation).items()
        if loss > (limit := MAX_LOSS.get(metric, OTHER_MAX_LOSS))
    }


def preferred_precision(evaluation: Sequence[Evaluation]) -> Precision:
    """What a CPU serves unless it is told otherwise: int8 where it was measured and costs no more than it may."""
    return "int8" if losses(evaluation) and not too_costly(evaluation) else "fp32"
