"""Both forms of a report: every text of a user's is shown and does nothing."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attendant.runtime.errors import UserError
from attendant.training.report.findings.examples import Span
from attendant.training.report.page.blocks import (
    Listing,
    Paragraph,
    Picture,
    Pictures,
    Report,
    Sample,
    Samples,
    Section,
    Table,
    Tile,
    Tiles,
)
from attendant.training.report.page.html_page import html_page
from attendant.training.report.page.markdown_page import escaped, markdown_page
from attendant.training.report.page.writing import check_outputs, write_report
from attendant.training.report.pictures.colors import INK
from tests.pages import read_page

HOSTILE = "<script>alert(1)</script> & <img src=x onerror=alert(2)> \" ' `a` | *b* [c](javascript:d)"
DRAWING = f'<svg xmlns="http://www.w3.org/2000/svg"><g id="g1" style="fill:{INK}"/><use href="#g1"/></svg>'


def report() -> Report:
    def picture(name: str) -> Picture:
        return Picture(name=name, svg=DRAWING, description=HOSTILE, caption=[HOSTILE])

    spans = [Span("shared", True), Span(HOSTILE, False)]
    sample = Sample(source=HOSTILE, output=spans, reference=spans, facts=[HOSTILE])
    blocks = [
        Paragraph(HOSTILE),
        Tiles([Tile(label=HOSTILE, value=HOSTILE, detail=HOSTILE)]),
        Table(headings=[HOSTILE, "n"], rows=[[HOSTILE, "1"]], folded=HOSTILE),
        Pictures(entries=[picture("one"), picture("two")], has_key=True),
        Pictures(entries=[picture("three")], kind="maps"),
        Samples(HOSTILE, [sample]),
        Listing(HOSTILE, HOSTILE + "\n```\nmore\n"),
    ]
    runs = [("A", HOSTILE), ("B", "plain")]
    return Report(title=HOSTILE, subtitle=HOSTILE, runs=runs, sections=[Section(HOSTILE, blocks)], footer=HOSTILE)


def test_the_page_has_no_script_and_loads_nothing() -> None:
    page = read_page(html_page(report()))
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & set(page.elements)
    assert all(reference.startswith("#") for reference in page.references)
    assert not page.handlers
    assert len(page.ids) == len(set(page.ids)) == 4
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    # Each text of the report is there, word by word.
    assert page.text.count(HOSTILE) >= 15
    assert page.elements.count("svg") == 3 and page.elements.count("mark") == 2


def test_the_page_is_dark_where_the_reader_is() -> None:
    text = html_page(report())
    assert "prefers-color-scheme:dark" in text
    used = set(re.findall(r"var\(--([a-z0-9-]+)", text))
    assert used <= set(re.findall(r"--([a-z0-9-]+):", text))


def test_markdown_shows_texts_as_they_are() -> None:
    text, pictures = markdown_page(report(), "my folder")
    body = text.split("```")[0]
    assert not re.search(r"<[a-z/]", body) and not re.search(r"(?<!\\)\]\(javascript", body)
    assert sorted(pictures) == ["one.svg", "three.svg", "two.svg"]
    assert re.findall(r"\]\(my%20folder/([^)]*)\)", text) == ["one.svg", "two.svg", "three.svg"]
    # The fence is longer than the one inside the listing.
    assert "````toml\n<script>" in text and text.count("````") == 2
    for row in (line for line in text.splitlines() if line.startswith("|")):
        assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b\n*c*", r"a\_b \*c\*"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("12. no list, 3.5 - 1", r"12\. no list, 3.5 - 1"),
        ("-9.60 to 4.1 (x)!", r"\-9.60 to 4.1 (x)!"),
        ("[a](b) <b> &lt; `c` | d", r"\[a\](b) &lt;b&gt; &amp;lt; \`c\` \| d"),
    ],
)
def test_what_markdown_would_act_on_is_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_files_are_written_whole(tmp_path: Path) -> None:
    html, markdown = tmp_path / "r.html", tmp_path / "r.md"
    check_outputs([html, markdown])
    for path in (html, markdown, html, markdown):
        write_report(report(), path)
    assert html.read_text() == html_page(report())
    for path in (tmp_path / "r_pictures").iterdir():
        root = ElementTree.parse(path).getroot()
        assert root[0].attrib["width"] == "100%"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md", "r_pictures"]


@pytest.mark.parametrize(("name", "message"), [("r.pdf", r"must end in \.html or \.md"), ("no/r.md", "no directory")])
def test_an_output_that_can_t_be_is_told_first(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_outputs([tmp_path / name])
