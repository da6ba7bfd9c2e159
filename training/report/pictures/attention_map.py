"""An attention map as SVG: a row per target token, a column per source token, the darker the more attention.

Drawn here and not by matplotlib: tokens are of any script, and fonts are the reader's affair.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Template

from attendant.runtime.stepper import Floats
from attendant.training.report.pictures.colors import HEAT, INK, RULE

TEMPLATE = Template(Path(__file__).with_suffix(".svg.jinja").read_text(encoding="utf-8"), autoescape=True)

MIN_WEIGHT = 0.02
"""Smaller weights can't be seen; so no row draws more than fifty cells, however long the source."""

MAX_LABEL = 16
SPACES = " ▁"
"""The space, and what a BPE tokenizer writes for it (training/data/tokenization.py)."""

LARGE_CELL, SMALL_CELL = 24.0, 13.0
FEW_TOKENS, MANY_TOKENS = 10, 40
"""Up to so many tokens cells are large, from so many on small."""

LABEL_SIZE = 0.5
"""Of a label's letters, in cells; never below MIN_LABEL_SIZE."""

MIN_LABEL_SIZE = 9.5
LETTER_WIDTH = 0.62
SLANT = 0.87
"""Labels of columns rise at sixty degrees, this being its sine."""


def attention_map(weights: Floats, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> str:
    """Draws weights [T, S] of T target and S source tokens."""
    num_rows, num_columns = weights.shape
    cell = _cell_size(max(num_rows, num_columns))
    size = max(MIN_LABEL_SIZE, LABEL_SIZE * cell)
    columns, rows = [_label(token) for token in source_tokens], [_label(token) for token in target_tokens]
    left = max((_width(label) for label in rows), default=0.0) * size + 8
    # Where most labels are letters, they stand upright and only the others are turned; else all are.
    are_letters = sum(len(label) == 1 for label in columns) * 2 > num_columns
    lengths = [0.0 if are_letters and len(label) == 1 else _width(label) * size for label in columns]
    top = max(lengths, default=0.0) * SLANT + size * 1.4
    # A turned label ends half its length to the right of where it stands.
    right = max((place + 0.5) * cell + length / 2 + size for place, length in enumerate(lengths))
    shown = weights.astype(np.float64)
    drawn: str = TEMPLATE.render(
        width=round(left + max(num_columns * cell + 4, right)),
        height=round(top + num_rows * cell + 4),
        left=left,
        top=top,
        cell=cell,
        size=size,
        rows=rows,
        columns=columns,
        lengths=lengths,
        cells=[(row, column, shown[row, column]) for row, column in np.argwhere(shown >= MIN_WEIGHT).tolist()],
        rule=RULE,
        ink=INK,
        heat=HEAT,
    )
    return drawn


def _cell_size(num_tokens: int) -> float:
    share = (num_tokens - FEW_TOKENS) / (MANY_TOKENS - FEW_TOKENS)
    return LARGE_CELL + (SMALL_CELL - LARGE_CELL) * min(1.0, max(0.0, share))


def _label(token: str) -> str:
    """A token as it can be shown: spaces are seen, what has no shape is replaced, what is too long is cut."""
    shown = "".join("␣" if c in SPACES else c if c.isprintable() else "�" for c in token)
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


def _width(label: str) -> float:
    """In font sizes, about: what stands on another character takes no room, what is wide takes a whole one."""
    return sum(
        0.0 if unicodedata.combining(c) else 1.0 if unicodedata.east_asian_width(c) in "WF" else LETTER_WIDTH
        for c in label
    )
