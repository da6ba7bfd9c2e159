"""The help's paragraphs: what counts as one, and what of it is text."""

from pathlib import Path

import pytest

from attendant.training.data.fetch.debdocs.libreoffice import help_pages, paragraphs

SYSTEMS = (
    '<span id="swlnsys" class="switchinline"><span hidden="true" class="MAC"><span>Command</span><br></span>'
    '<span hidden="true" id="default"><span class="keycode">Ctrl</span></span></span>+F'
)


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<p id="par_id1" class="paragraph">One  <b>two</b>\n three&nbsp;&amp; four.</p>', "One two three & four."),
        ('<h2 id="hd_id1">A <a href="x">title</a></h2>', "A title"),
        ('<p id="bm_id1">Line<br>break <img src="x" alt="no text">here</p>', "Line break here"),
        (f'<p id="par_id1">Press {SYSTEMS}.</p>', "Press Ctrl+F."),
        ('<p id="par_id1">One</p><p id="par_id1">Two</p>', "One"),
    ],
)
def test_text_of_a_paragraph(html: str, found: str) -> None:
    assert list(paragraphs(f"<body>before{html}after</body>").values()) == [found]


@pytest.mark.parametrize(
    "html",
    [
        '<p class="paragraph">without an id</p>',
        '<div id="par_id1">no paragraph</div>',
        '<p id="other1">another kind of id</p>',
        '<p id="par_id1" class="codeintable">Sub Main</p>',
        '<pre><p id="par_id1">Sub Main</p></pre>',
    ],
)
def test_what_is_no_paragraph_of_text(html: str) -> None:
    assert paragraphs(html) == {}


def test_pages_are_joined_by_file_and_id(tmp_path: Path) -> None:
    texts = {
        "en-US/text/b.html": '<p id="par_id1">Yes</p><p id="par_id2">No</p><p id="par_id3">Only here</p>',
        "fr/text/b.html": '<p id="par_id2">Non</p><p id="par_id1">Oui</p>',
        "en-US/text/a/c.html": '<p id="par_id1">Yes</p>',
        "fr/text/a/c.html": '<p id="par_id1">Si</p>',
        "en-US/text/only.html": '<p id="par_id1">Yes</p>',
    }
    for name, text in texts.items():
        path = tmp_path / "usr/share/libreoffice/help" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert list(help_pages(tmp_path, "fr")) == [
        ("lo:a/c.html", [("Yes", "Si")]),
        ("lo:b.html", [("Yes", "Oui"), ("No", "Non")]),
    ]
