"""What `evaluate` found, as files for programs and spreadsheets; training/assessment/tables.py is for people."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.files import new_file
from attendant.training.evaluation.bootstrap import Difference
from attendant.training.evaluation.decoding import Decoded
from attendant.training.evaluation.evaluating import Evaluation

COLUMNS = ("model", *SEARCH_OPTIONS, "source", "output", "references", "score", "log_prob")
REFERENCE_SEPARATOR = " ||| "


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


class OutputsFile:
    """A tab-separated table with a header and a line per example, the examples of each decoding in the order of their
    scores: those that the model is least sure of come first.

    Several references are joined by " ||| "; white space inside a text is written as one space.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._write(COLUMNS)

    def add(self, model: str, options: DecodingOptions, decoded: Sequence[Decoded]) -> None:
        """Writes a line per output."""
        for one in sorted(decoded, key=lambda output: output.score):
            cells = (
                model,
                *("" if (value := getattr(options, name)) is None else f"{value:g}" for name in SEARCH_OPTIONS),
                _cell(one.example.source),
                _cell(one.text),
                REFERENCE_SEPARATOR.join(map(_cell, one.example.references)),
                f"{one.score:.6f}",
                f"{one.log_prob:.6f}",
            )
            self._write(cells)

    def _write(self, cells: Sequence[str]) -> None:
        self._file.write("\t".join(cells) + "\n")


@contextmanager
def outputs_file(path: Path) -> Iterator[OutputsFile]:
    """Opens `path` for the outputs; it is there when all of them are, and not before. Raises CantWrite."""
    with new_file(path) as file:
        yield OutputsFile(file)


def _cell(text: str) -> str:
    return " ".join(text.split())
