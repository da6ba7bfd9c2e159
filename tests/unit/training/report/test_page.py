"""Tests of a report as HTML and as Markdown: users' texts are shown and never act as markup or script."""

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from jinja2 import ChoiceLoader, DictLoader

from attendant.runtime.errors import UserError
from attendant.training.report.judging import Span
from attendant.training.report.page import (
    ENVIRONMENTS,
    Picture,
    Report,
    check_form,
    escaped,
    html_page,
    isolated,
    markdown_page,
    write_report,
)
from attendant.training.report.pictures import INK
from tests.pages import read_page

HOSTILE = "<script>alert(1)</script> & <img src=x onerror=alert(2)> \" ' `a` | *b* [c](javascript:d)"
DRAWING = f'<svg xmlns="http://www.w3.org/2000/svg"><g id="g1" style="fill:{INK}"/><use href="#g1"/></svg>'

EVERY_FORM = """
{% import forms as show with context %}
{% macro forms_of_all() %}
{% call show.paragraph() %}{{ text }}{% endcall %}
{% call show.note() %}{{ text }}{% endcall %}
{% call show.tiles() %}{{ show.tile(text, text, text) }}{% endcall %}
{% call show.table([text], ["n"], folded=text) %}{{ show.row([text], ["1"]) }}{% endcall %}
{{ show.charts(learning_charts) }}
{{ show.maps(length_charts) }}
{% call show.samples(text) %}
{% call show.sample(text, [("output", spans), (text, spans)]) %}{{ text }}{% endcall %}
{% endcall %}
{{ show.listing(text, text + "\n```\nmore\n") }}
{% endmacro %}
{% macro title(name, run) %}{{ name }}{% endmacro %}
{% set of_all, of_each = [(text, forms_of_all)], [] %}
"""
"""A replacement for sections.jinja that uses each form once, with a hostile `text`."""


@pytest.fixture(autouse=True)
def sections_of_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [Span("shared", True), Span(HOSTILE, False)]
    for environment in ENVIRONMENTS.values():
        assert environment.loader is not None
        loader = ChoiceLoader([DictLoader({"sections.jinja": EVERY_FORM}), environment.loader])
        monkeypatch.setattr(environment, "loader", loader)
        monkeypatch.setattr(environment, "globals", environment.globals | {"text": HOSTILE, "spans": spans})


def report() -> Report:
    def picture(name: str) -> Picture:
        return Picture(name, DRAWING, description=HOSTILE, caption=[HOSTILE])

    runs: Any = [
        SimpleNamespace(letter=letter, name=name, evaluation=SimpleNamespace(num_examples=1000))
        for letter, name in (("A", HOSTILE), ("B", "plain"))
    ]
    return Report(
        runs=runs,
        data_name=HOSTILE,
        learning_charts=[picture("one"), picture("two")],
        length_charts=[picture("three")],
        gradient_charts=[],
        maps={},
        trees={},
        made_by={"attendant": HOSTILE, "commit": HOSTILE},
    )


def test_the_page_has_no_script_and_loads_nothing() -> None:
    page = read_page(html_page(report()))
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & set(page.elements)
    assert all(reference.startswith("#") for reference in page.references)
    assert not page.handlers
    assert len(page.ids) == len(set(page.ids)) == 4
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    # Each text of the report is shown unchanged.
    assert page.text.count(HOSTILE) >= 15
    assert page.elements.count("svg") == 3 and page.elements.count("mark") == 2


def test_links_in_a_notebook_stay_in_its_frame() -> None:
    frame = report()._repr_html_()
    page = unescape(re.fullmatch(r'<iframe srcdoc="([^"]*)".*', frame, re.DOTALL)[1])  # type: ignore[index]
    assert "base" in read_page(page).elements
    assert page.replace('<base href="about:srcdoc">', "") == html_page(report())


def test_the_page_is_dark_if_the_browser_prefers_dark() -> None:
    text = html_page(report())
    assert re.search(r"@media screen and \(prefers-color-scheme:dark\)", text)  # paper is light
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
        ("$5, $x$", r"\$5, \$x\$"),
        ("a_b\n*c*", r"a\_b \*c\*"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("12. no list, 3.5 - 1", r"12\. no list, 3.5 - 1"),
        ("-9.60 to 4.1 (x)!", r"\-9.60 to 4.1 (x)!"),
        ("[a](b) <b> &lt; `c` | d", r"\[a\](b) &lt;b&gt; &amp;lt; \`c\` \| d"),
    ],
)
def test_active_characters_of_markdown_are_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected


@pytest.mark.parametrize("text", ["שלום.", "مرحبا", "evil \u202e override"])
def test_right_to_left_texts_leave_the_order_of_a_line(text: str) -> None:
    assert isolated(text) == f"\u2068{text}\u2069"
    assert isolated("left to right, é, 日本") == "left to right, é, 日本"


def test_files_are_written_whole(tmp_path: Path) -> None:
    html, markdown = tmp_path / "r.html", tmp_path / "r.md"
    for path in (html, markdown, html, markdown):
        check_form(path)
        write_report(report(), path)
    assert html.read_text() == html_page(report())
    for path in (tmp_path / "r_pictures").iterdir():
        root = ElementTree.parse(path).getroot()
        assert root[0].attrib["width"] == "100%"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md", "r_pictures"]


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UserError, match=r"must end in \.html or \.md"):
        check_form(Path("r.pdf"))
