"""What `evaluate` found, for programs; training/assessment/tables.py is for people."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attendant.training.evaluation.comparison import Difference
from attendant.training.evaluation.evaluating import Evaluation


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
