"""Attention, drawn in the terminal: a row per target token, a column per source token.

Darker cells have more of their row's attention, which is 1 in all.
"""

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len

from attendant_client.types import EOS, Generation, Score, attention_of

# The smallest weight of each shade, and how the shades are written.
THRESHOLDS = (0.05, 0.2, 0.4, 0.7)
UNICODE_SHADES = ("· ", "░░", "▒▒", "▓▓", "██")
ASCII_SHADES = (". ", "--", "++", "%%", "##")
CELL = 2

# A column's token is written downwards, a row's to the left of it; longer ones are cut.
MAX_HEADING = 12
MAX_LABEL = 20


def draw(answer: Generation | Score, *, hypothesis: int = 0, width: int | None = None, ascii_only: bool = False) -> str:
    """Returns the attention map of an answer, several lines.

    Args:
        answer: of `generate` or `score`, called with `attention=True`.
        hypothesis: its place in a generation; 0 is the best.
        width: columns of the terminal; a wider map is drawn in several parts below each other. If None, no limit.
        ascii_only: draw the shades with ASCII characters; the tokens stay as they are.

    Raises:
        ValueError: the answer has no attention.
    """
    weights, tokens = attention_of(answer, hypothesis)
    return draw_weights(weights, answer.source_tokens, tokens, width=width, ascii_only=ascii_only)


def draw_weights(
    weights: Sequence[Sequence[float]],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    width: int | None = None,
    ascii_only: bool = False,
) -> str:
    """Draws weights and tokens, as `draw`.

    Args:
        weights: [T, S], or [T + 1, S] if the last row is EOS's.
    """
    shades = ASCII_SHADES if ascii_only else UNICODE_SHADES
    labels = [cut(token, MAX_LABEL) for token in (*target_tokens, EOS)[: len(weights)]]
    margin = max((cell_len(label) for label in labels), default=0) + 1
    num_columns = len(source_tokens) if width is None else max(1, (width - margin) // CELL)
    parts = []
    for first in range(0, len(source_tokens), num_columns):
        columns = slice(first, first + num_columns)
        lines = [" " * margin + heading for heading in _headings(source_tokens[columns])]
        for label, row in zip(labels, weights, strict=True):
            cells = "".join(shades[sum(weight >= limit for limit in THRESHOLDS)] for weight in row[columns])
            lines.append(" " * (margin - 1 - cell_len(label)) + label + " " + cells)
        parts.append("\n".join(line.rstrip() for line in lines))
    key = "  ".join(f"{shade} {limit:.0%}" for shade, limit in zip(shades[1:], THRESHOLDS, strict=True))
    return "\n\n".join([*parts, f"{' ' * margin}at least: {key}"])


def _headings(tokens: Sequence[str]) -> list[str]:
    """Returns the lines above the map: the tokens, written downwards."""
    written = [_characters(cut(token, MAX_HEADING)) for token in tokens]
    height = max(map(len, written), default=0)
    padded = [[""] * (height - len(characters)) + characters for characters in written]
    return ["".join(c + " " * (CELL - cell_len(c)) for c in line).rstrip() for line in zip(*padded, strict=True)]


def cut(token: str, limit: int) -> str:
    """Returns a token for the terminal, shortened to a number of characters, without invisible ones."""
    characters = _characters(token)
    return "".join(characters if len(characters) <= limit else [*characters[: limit - 1], "~"])


def _characters(token: str) -> list[str]:
    """Splits into visible characters: combining marks stay with their base, invisible characters are replaced."""
    characters: list[str] = []
    for character in token:
        if unicodedata.combining(character) and characters:
            characters[-1] += character
        else:
            characters.append("_" if character == " " else character if character.isprintable() else "?")
    return characters or ["?"]
