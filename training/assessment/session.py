"""One test set, on which any number of models are measured."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.progress import Progress

from attendant.training.assessment.data import EvaluationData
from attendant.training.assessment.models import OpenedModel
from attendant.training.assessment.outputs import OutputsFile
from attendant.training.evaluation.bootstrap import Difference, compare
from attendant.training.evaluation.config import EvaluationConfig
from attendant.training.evaluation.decoding import decode_examples
from attendant.training.evaluation.evaluating import Evaluation, describe_search, evaluate, search_options
from attendant.training.evaluation.lengths import LengthUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One evaluation of one model.

    Attributes:
        model: what it is called, e.g. "bundles/mine, int8 on cpu".
        decode_seconds: wall time of tokenizing and decoding; loading and scoring are not in it.
        differences: to the first model by the same search, or where there is only one model, to its first search;
            metric by metric; empty for what the others are compared with.
    """

    model: str
    evaluation: Evaluation
    decode_seconds: float
    differences: tuple[Difference, ...] = ()

    @property
    def examples_per_second(self) -> float:
        return self.evaluation.num_examples / self.decode_seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "decode_seconds": round(self.decode_seconds, 4),
            "examples_per_second": round(self.examples_per_second, 2),
            "measurements": [measurement.to_json() for measurement in self.evaluation.measurements],
            "differences": [asdict(difference) for difference in self.differences],
        }


def document(results: Sequence[Result], data_name: str) -> dict[str, Any]:
    """The document that --output writes and --json prints."""
    return {"data": data_name, "results": [result.to_json() for result in results]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The data and the settings that all evaluated models share.

    Attributes:
        num_resamples: of the bootstrap; 0: no intervals.
        length_edges: where the bins of source lengths end; None: no bins.
        progress: has a bar while something is decoded.
        outputs: takes every output; may be None.
    """

    data: EvaluationData
    num_resamples: int
    length_edges: tuple[int, ...] | None
    length_unit: LengthUnit
    progress: Progress
    outputs: OutputsFile | None

    def evaluate(self, opened: OpenedModel, config: EvaluationConfig, baseline: Result | None) -> Result:
        """Decodes the data once and takes its metrics: those of `config`, or with a baseline those of the baseline."""
        options = search_options(config, opened.model)
        examples = self.data.examples
        task = self.progress.add_task(f"{opened.name}: {describe_search(options)}", total=len(examples))
        began = time.perf_counter()
        decoded = decode_examples(
            opened.model, examples, options, progress=lambda count: self.progress.advance(task, count)
        )
        seconds = time.perf_counter() - began
        self.progress.remove_task(task)
        if self.outputs is not None:
            self.outputs.add(opened.name, options, decoded)
        theirs = () if baseline is None else baseline.evaluation.statistics
        evaluation = evaluate(
            opened.model,
            decoded,
            options,
            config.metrics if baseline is None else tuple(statistics.metric for statistics in theirs),
            data_name=", ".join(filter(None, (self.data.name, opened.variant))),
            num_resamples=self.num_resamples,
            length_edges=self.length_edges,
            length_unit=self.length_unit,
        )
        ours = () if baseline is None else evaluation.statistics
        return Result(
            model=opened.name,
            evaluation=evaluation,
            decode_seconds=seconds,
            differences=tuple(compare(*pair, self.num_resamples) for pair in zip(ours, theirs, strict=True)),
        )
