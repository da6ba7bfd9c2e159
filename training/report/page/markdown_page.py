"""A report as Markdown, its pictures as files beside it. Every text of a user's is escaped, here and only here."""

import re
from collections.abc import Sequence
from urllib.parse import quote

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
from attendant.training.report.pictures.colors import PAPER

ACTIVE = re.compile(r"[\\`*_\[\]|~<>&]|^[#+=-]|^\d{1,9}[.)](?=\s|$)")
"""What Markdown, or the HTML in it, could take for more than itself: anywhere, or where a line begins."""

ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}

FENCE = re.compile(r"`{3,}")


def markdown_page(report: Report, folder: str) -> tuple[str, dict[str, str]]:
    """The text, and the pictures by their file's name.

    Args:
        folder: of the pictures, as the text refers to it.
    """
    pictures: dict[str, str] = {}
    parts = [f"# {escaped(report.title)}", escaped(report.subtitle)]
    for section in report.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [_block(block, report.runs, folder, pictures) for block in section.blocks]
    parts.append(f"---\n\n{escaped(report.footer)}")
    return "\n\n".join(parts) + "\n", pictures


def escaped(text: str) -> str:
    """A text as Markdown that shows it and does nothing, on one line."""
    return ACTIVE.sub(lambda found: ENTITIES.get(found[0], f"{found[0][:-1]}\\{found[0][-1]}"), " ".join(text.split()))


def _block(block: Block, runs: Sequence[tuple[str, str]], folder: str, pictures: dict[str, str]) -> str:
    match block:
        case Paragraph(text):
            return escaped(text)
        case Tiles(entries):
            return _rows(("", "", ""), [(one.label, one.value, one.detail) for one in entries], num_texts=1)
        case Table():
            title = f"{escaped(block.folded)}:\n\n" if block.folded else ""
            return title + _rows(block.headings, block.rows, num_texts=block.num_texts)
        case Pictures():
            for one in block.entries:
                pictures[f"{one.name}.svg"] = on_paper(one.svg)
            shown = "\n\n".join(_picture(one, folder) for one in block.entries)
            key = ", ".join(f"**{letter}** {escaped(name)}" for letter, name in runs)
            return f"{shown}\n\n{key}" if block.has_key else shown
        case Samples(title, entries):
            shown = "\n".join(
                f"- {escaped(one.source)}  \n  → {_spans(one.output)}  \n  reference: {_spans(one.reference)}  \n"
                f"  {escaped(' · '.join(one.facts))}"
                for one in entries
            )
            return f"### {escaped(title)}\n\n{shown}"
        case Listing(title, text):
            fence = "`" * max([3, *(len(found) + 1 for found in FENCE.findall(text))])
            return f"{escaped(title)}:\n\n{fence}toml\n{text.rstrip()}\n{fence}"


def _picture(picture: Picture, folder: str) -> str:
    caption = "".join(f"  \n{escaped(line)}" for line in picture.caption)
    return f"![{escaped(picture.description)}]({quote(folder)}/{picture.name}.svg){caption}"


def on_paper(svg: str) -> str:
    """The drawing on a white ground: a Markdown viewer may have a page of any color."""
    opened = svg.index(">") + 1
    return f'{svg[:opened]}<rect width="100%" height="100%" style="fill:{PAPER}"/>{svg[opened:]}\n'


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]], *, num_texts: int) -> str:
    rule = ["---"] * num_texts + ["---:"] * (len(headings) - num_texts)
    lines = [" | ".join(cells) for cells in (map(escaped, headings), rule, *(map(escaped, row) for row in rows))]
    return "\n".join(f"| {line} |" for line in lines)


def _spans(spans: Sequence[Span]) -> str:
    return " ".join(escaped(one.text) if one.is_shared else f"**{escaped(one.text)}**" for one in spans)
