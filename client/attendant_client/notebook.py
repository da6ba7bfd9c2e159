"""Answers as notebooks show them: HTML, whatever the texts hold."""

from collections.abc import Sequence
from html import escape

COLOR = "31, 119, 180"
CELL = "width: 1.4em; height: 1.4em; padding: 0; border: 1px solid rgba(128, 128, 128, .25);"
HEADING = "writing-mode: vertical-rl; transform: rotate(180deg); padding: .3em 0; font-weight: normal;"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(texts: Sequence[str]) -> str:
    """Returns a paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def attention_table(weights: Sequence[Sequence[float]], columns: Sequence[str], rows: Sequence[str]) -> str:
    """Attention as a table: a row per target token, a column per source token, the darker the more attention."""
    head = "".join(f'<th style="{HEADING}">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th style="font-weight: normal;">{escape(label)}</th>'
        + "".join(
            f'<td style="{CELL} background: rgba({COLOR}, {weight:.2f});" '
            f'title="{escape(label)} &larr; {escape(column)}: {weight:.2f}"></td>'
            for column, weight in zip(columns, row, strict=True)
        )
        + "</tr>"
        for label, row in zip(rows, weights, strict=True)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
