"""A report as one HTML page: no script, nothing loaded; every text of a user's is escaped, here and only here."""

import re
from collections.abc import Sequence
from html import escape

from attendant.training.report.findings.examples import Span
from attendant.training.report.page.blocks import (
    Block,
    Listing,
    Paragraph,
    Picture,
    Pictures,
    Report,
    Samples,
    Table,
    Tiles,
)
from attendant.training.report.page.style import STYLE
from attendant.training.report.pictures.colors import series_name, with_variables


def html_page(report: Report) -> str:
    """The whole page."""
    links = "".join(
        f'<li><a href="#{_anchor(number)}">{escape(section.title)}</a></li>'
        for number, section in enumerate(report.sections, 1)
    )
    sections = "\n".join(
        f'<section id="{_anchor(number)}">\n<h2>{escape(section.title)}</h2>\n'
        + "\n".join(_block(block, report.runs) for block in section.blocks)
        + "\n</section>"
        for number, section in enumerate(report.sections, 1)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';style-src 'unsafe-inline';img-src data:">
<title>{escape(report.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(report.title)}</h1>
<p>{escape(report.subtitle)}</p>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{sections}
</main>
<footer>{escape(report.footer)}</footer>
</body>
</html>
"""


def _anchor(number: int) -> str:
    return f"section-{number}"


def _block(block: Block, runs: Sequence[tuple[str, str]]) -> str:
    match block:
        case Paragraph(text, is_note):
            return f'<p class="note">{escape(text)}</p>' if is_note else f"<p>{escape(text)}</p>"
        case Tiles():
            return _tiles(block)
        case Table():
            return _folded(block.folded, _table(block)) if block.folded else _table(block)
        case Pictures():
            return _pictures(block, runs)
        case Samples():
            return _samples(block)
        case Listing(title, text):
            return _folded(title, f"<pre>{escape(text)}</pre>")


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _tiles(tiles: Tiles) -> str:
    entries = (
        f'<div><dt>{escape(one.label)}</dt><dd class="value">{escape(one.value)}</dd>'
        f'<dd class="detail">{escape(one.detail)}</dd></div>'
        for one in tiles.entries
    )
    return f'<dl class="tiles">{"".join(entries)}</dl>'


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} class="number">{escape(cell)}</{tag}>'
            if place >= table.num_texts
            else f"<{tag}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    return (
        f'<div class="scroll"><table><thead><tr>{row(table.headings, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _pictures(pictures: Pictures, runs: Sequence[tuple[str, str]]) -> str:
    figures = "".join(_figure(one) for one in pictures.entries)
    return f'<div class="{pictures.kind}">{figures}</div>' + (_key(runs) if pictures.has_key else "")


def _figure(picture: Picture) -> str:
    caption = "".join(f"<span>{escape(line)}</span>" for line in picture.caption)
    return (
        f'<figure><div class="scroll" role="img" aria-label="{escape(picture.description)}">'
        f"{with_variables(_own_ids(picture))}</div>"
        + (f"<figcaption>{caption}</figcaption>" if caption else "")
        + "</figure>"
    )


def _own_ids(picture: Picture) -> str:
    """The drawing with ids that no other of the page has."""
    prefix = f"{picture.name}-"
    with_ids = re.sub(r'(<[^<>]*?\s)id="', rf'\1id="{prefix}', picture.svg)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", with_ids)


def _key(runs: Sequence[tuple[str, str]]) -> str:
    entries = (
        f'<li><b style="color:var(--{series_name(number)})">{escape(letter)}</b>{escape(name)}</li>'
        for number, (letter, name) in enumerate(runs)
    )
    return f'<ul class="key">{"".join(entries)}</ul>'


def _samples(samples: Samples) -> str:
    entries = (
        f"<li><dl><dt>source</dt><dd>{escape(one.source)}</dd><dt>output</dt><dd>{_spans(one.output)}</dd>"
        f"<dt>reference</dt><dd>{_spans(one.reference)}</dd></dl><p>{escape(' · '.join(one.facts))}</p></li>"
        for one in samples.entries
    )
    return f'<h3>{escape(samples.title)}</h3><ul class="samples">{"".join(entries)}</ul>'


def _spans(spans: Sequence[Span]) -> str:
    """The words, those that the other text has not as marks."""
    return " ".join(escape(one.text) if one.is_shared else f"<mark>{escape(one.text)}</mark>" for one in spans)
