"""The parameters of Marian's `s2s` with LSTM cells: their names, and a width that makes so many of them."""

from __future__ import annotations

import json
from pathlib import Path

BLOCK = 64
"""Its integer products want widths in whole blocks."""

NAMED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Two layers on each side: the sizes of every parameter, by Marian's name for it."""


def shapes_of(vocabulary: int, embedding: int, width: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of every parameter, by Marian's name."""
    sizes = {"vocabulary": vocabulary, "embedding": embedding, "width": width}
    sizes |= {"context": 2 * width, "gates": 4 * width, "one": 1}
    return {name: (sizes[rows], sizes[columns]) for name, (rows, columns) in NAMED.items()}


def num_parameters(shapes: dict[str, tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in shapes.values())


def narrowed(vocabulary: int, embedding: int, most: int) -> int:
    """The greatest width in whole blocks with at most so many parameters; one block at least."""
    width = BLOCK
    while num_parameters(shapes_of(vocabulary, embedding, width + BLOCK)) <= most:
        width += BLOCK
    return width
