"""Outputs as a file, for eyes and spreadsheets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.evaluation.decoding import Decoded
from attendant.training.evaluation.evaluating import has_patience

COLUMNS = ("model", "beam_size", "length_penalty", "patience", "source", "output", "references", "score", "log_prob")
REFERENCE_SEPARATOR = " ||| "


class OutputsFile:
    """A tab-separated table with a header and a line per example.

    Several references are joined by " ||| "; white space inside a text is written as one space.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._write(COLUMNS)

    def add(self, model: str, options: DecodingOptions, decoded: Sequence[Decoded]) -> None:
        """Writes a line per output."""
        for one in decoded:
            cells = (
                model,
                str(options.beam_size),
                f"{options.length_penalty:g}",
                f"{options.patience:g}" if has_patience(options) else "",
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
    """Opens `path` for the outputs; it is there when all of them are, and not before."""
    aside = path.with_name(f".{path.name}.writing")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            yield OutputsFile(file)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _cell(text: str) -> str:
    return " ".join(text.split())
