"""Tests of debdocs: the help's paragraphs, the manual's blocks, the choice of pairs, and the whole build."""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from attendant.training.data.config import CorpusFiles
from attendant.training.data.fetch import builders, publish
from attendant.training.data.pairs import Pair, num_words, read_pairs

debdocs = import_module("attendant.recipes.translate-debdocs-en-fr.data")

SYSTEMS = (
    '<span id="swlnsys" class="switchinline"><span hidden="true" class="MAC"><span>Command</span><br></span>'
    '<span hidden="true" id="default"><span class="keycode">Ctrl</span></span></span>+F'
)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<p id="par_id1" class="paragraph">One  <b>two</b>\n three&nbsp;&amp; four.</p>', "One two three & four."),
        ('<h2 id="hd_id1">A <a href="x">title</a></h2>', "A title"),
        ('<p id="bm_id1">Line<br>break <img src="x" alt="no text">here</p>', "Line break here"),
        (f'<p id="par_id1">Press {SYSTEMS}.</p>', "Press Ctrl+F."),
        ('<p id="par_id1">One</p><p id="par_id1">Two</p>', "One"),
        ('<p class="paragraph">without an id</p>', None),
        ('<div id="par_id1">no paragraph</div>', None),
        ('<p id="other1">another kind of id</p>', None),
        ('<p id="par_id1" class="codeintable">Sub Main</p>', None),
        ('<pre><p id="par_id1">Sub Main</p></pre>', None),
    ],
)
def test_the_text_of_a_help_paragraph_is_extracted(html: str, text: str | None) -> None:
    texts = list(debdocs.help_paragraphs(f"<body>before{html}after</body>").values())
    assert texts == ([] if text is None else [text])


def write(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())


def test_help_pages_are_joined_by_file_and_id(tmp_path: Path) -> None:
    for name, text in {
        "en-US/text/b.html": '<p id="par_id1">Yes</p><p id="par_id2">No</p><p id="par_id3">Only here</p>',
        "fr/text/b.html": '<p id="par_id2">Non</p><p id="par_id1">Oui</p>',
        "en-US/text/a/c.html": '<p id="par_id1">Yes</p>',
        "fr/text/a/c.html": '<p id="par_id1">Si</p>',
        "en-US/text/only.html": '<p id="par_id1">Yes</p>',
    }.items():
        write(tmp_path, f"usr/share/libreoffice/help/{name}", text)
    assert list(debdocs.help_pages(tmp_path)) == [
        ("lo:a/c.html", [("Yes", "Si")]),
        ("lo:b.html", [("Yes", "Oui"), ("No", "Non")]),
    ]


ENGLISH = r""".\" A comment.
.TH toy 2 2020-01-01
.SH NAME
toy \- plays with a
.BR toy (3)
.SH DESCRIPTION
It
.I plays .
.PP
It plays again,
see
.UR https://example.org/toy
.UE .
.TP
.B EINVAL
The value is
.RI "not a " number .
.IP \[bu] 3
A point.
.nf
.BI "int toy(" x );
.fi
.SS
Ways to play
.EX
not text
.EE
Done.
"""
FRENCH = r""".TH toy 2 "1 janvier 2020"
.SH NOM
toy \- jouer avec un \fBtoy\fP(3)
.SH DESCRIPTION
Il \fIjoue\fP.
.PP
Il joue encore, voir
.UR https://example.org/toy
.UE .
.TP
\fBEINVAL\fP
La valeur n'est pas un nombre\ .
.IP \[bu] 3
Un point.
.nf
\fBint toy(\fP\fIx\fP\fB);\fP
.fi
.SS "Façons de jouer"
.EX
pas de texte
.EE
Fini.
.SH TRADUCTION
Par quelqu'un.
"""


@pytest.mark.parametrize(
    ("roff", "text"),
    [
        (r"\fBtoy\fP(3), \fI\,x\/\fR and \f(CWy\f[R]", "toy(3), x and y"),
        (r"a\-b\(enc\[em]d\(hye \[aq]q\(aq", "a-b–c—d-e 'q'"),
        (r"1\ 000~2\e0 \s-1SMALL\s0 \s+2L\s[0]", "1 000~2\\0 SMALL L"),
        (r"soft\%hyphen\:\&\|\^ \h'1m'x\c", "softhyphen x"),
        (r"\*(lqso\*(rq \[u00E9]\[unknown]", "“so” é"),
        (r"text \" comment", "text "),
    ],
)
def test_escapes_of_roff_become_plain_text(roff: str, text: str) -> None:
    assert debdocs.plain(roff) == text


def test_arguments_are_separated_by_spaces_outside_of_quotes() -> None:
    assert debdocs.arguments(r'foo (2), "a b" x\ y "say ""no""" \" comment') == [
        "foo", "(2),", "a b", r"x\ y", 'say "no"',
    ]  # fmt: skip


def test_manual_pages_correspond_block_by_block() -> None:
    assert list(debdocs.aligned_blocks(ENGLISH, FRENCH)) == [
        ("NAME", "NOM"),
        ("toy - plays with a toy(3)", "toy - jouer avec un toy(3)"),
        ("DESCRIPTION", "DESCRIPTION"),
        ("It plays .", "Il joue."),
        ("It plays again, see https://example.org/toy.", "Il joue encore, voir https://example.org/toy."),
        ("EINVAL The value is not a number.", "EINVAL La valeur n'est pas un nombre ."),
        ("A point.", "Un point."),
        ("Ways to play", "Façons de jouer"),
        ("Done.", "Fini."),
    ]


def test_a_section_with_other_macros_or_blocks_is_left_out() -> None:
    changed = FRENCH.replace(".TP\n", ".IP x\n")
    assert [english for english, _ in debdocs.aligned_blocks(ENGLISH, changed)] == [
        "NAME", "toy - plays with a toy(3)", "Ways to play", "Done.",
    ]  # fmt: skip
    assert len(list(debdocs.aligned_blocks(ENGLISH, FRENCH.replace(".PP\n", "")))) == 4


def test_the_text_of_a_link_replaces_its_address() -> None:
    (section,) = debdocs.sections(".SH SEE\nSee\n.UR https://example.org\nthe\npage\n.UE ,\nor not.\n")
    assert section.blocks == ["SEE", "See the page, or not."]


def test_manual_pages_with_two_names_come_once(tmp_path: Path) -> None:
    manual = tmp_path / "usr/share/man"
    for name, text in {"man2/toy.2": ENGLISH, "fr/man2/toy.2": FRENCH, "man2/other.2": ENGLISH}.items():
        write(manual, f"{name}.gz", text)
    for name in ("man2/alias.2.gz", "fr/man2/alias.2.gz", "man2/second.2.gz", "fr/man2/other.2.gz"):
        (manual / name).symlink_to("toy.2.gz")
    write(manual, "fr/man2/second.2.gz", FRENCH)
    assert [(key, len(blocks)) for key, blocks in debdocs.manual_pages(tmp_path)] == [("man:man2/toy.2.gz", 9)]


MALLARD = """<page xmlns="http://projectmallard.org/1.0/" xmlns:its="http://www.w3.org/2005/11/its" id="a">
<info><desc>{0}</desc><credit><name>X</name></credit><license><p>Y</p></license></info><title>{1}</title>
<p>Press <keyseq><key>Ctrl</key><key>S</key></keyseq>, or {2} <guiseq><gui>A</gui> <gui>B</gui></guiseq>.</p>
<p>See <link xref="other"/>.</p><code>x = 1</code><note><p>{3}</p></note><p/></page>"""


def test_help_of_the_desktop_corresponds_by_elements(tmp_path: Path) -> None:
    folder = tmp_path / "usr/share/help"
    pages = {"a.page": MALLARD, "b.page": MALLARD, "c.docbook": "<a>&nbsp;</a>", "d.png": "", "e.page": MALLARD}
    for name, text in pages.items():
        for language, words in {"C": ("Store", "Stores", "use", "Note"), "fr": ("E", "F", "ou", "N")}.items():
            (folder / language / "app").mkdir(parents=True, exist_ok=True)
            (folder / language / "app" / name).write_text(text.format(*words))
    (folder / "fr/app/b.page").write_text("<page><p>X</p></page>")
    (folder / "fr/app/e.page").unlink()
    assert list(debdocs.desktop_pages(tmp_path)) == [
        ("help:app/a.page", [
            ("Store", "E"), ("Stores", "F"), ("Press Ctrl+S, or use A > B.", "Press Ctrl+S, or ou A > B."),
            ("Note", "N"),
        ])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("don't stop", 2), ("x.y = 3;", 6), ("l’été (2)", 4), ("", 0), ("a_b-c", 3)),
        *(("हिन्दी में", 2), ("می‌خواهم, ते", 3), ("e\u0301te\u0301", 1)),
    ],
)
def test_words_and_marks_are_counted(text: str, count: int) -> None:
    assert num_words(text) == count


@pytest.mark.parametrize(
    ("unit", "source", "is_kept"),
    [
        ("PARAGRAPHS", "Two words", False),
        ("PARAGRAPHS", "Load/Save options", True),
        ("PARAGRAPHS", "word " * 120, True),
        ("PARAGRAPHS", "word " * 121, False),
        ("PARAGRAPHS", "=SUM(A1;B2) is 3", False),
        ("PARAGRAPHS", "The same text", False),
        ("PROSE", "Saves the open document.", True),
        ("PROSE", "Saves the open document", False),
        ("PROSE", "Saves the:", False),
        ("PROSE", "This one saves the:", True),
        ("SENTENCES", "word " * 81, False),
    ],
)
def test_pairs_of_prose_and_of_suitable_lengths_are_kept(unit: str, source: str, is_kept: bool) -> None:
    pairs = list(getattr(debdocs, unit).pairs([(source.strip(), "The same text"), ("An empty one", "")]))
    assert pairs == ([Pair(source.strip(), "The same text")] if is_kept else [])


def test_sentences_correspond_if_both_sides_have_the_same_number() -> None:
    english = "It works (mostly.) See e.g. the manual. Does it work? “Yes, it always does.”"
    french = "Ça marche (en gros.) Voir p. ex. le manuel. Est-ce que ça marche ? « Oui, ça marche. »"
    pairs = list(debdocs.SENTENCES.pairs([(english, french)]))
    assert [pair.source for pair in pairs] == [
        "It works (mostly.)", "See e.g. the manual.", "Does it work?", "“Yes, it always does.”",
    ]  # fmt: skip
    assert [pair.target for pair in pairs][2:] == ["Est-ce que ça marche ?", "« Oui, ça marche. »"]
    joined = french.replace("marche ? «", "marche, «")
    assert list(debdocs.SENTENCES.pairs([(english, joined)])) == [Pair(english, joined)]


class FakeApt:
    """A fake that writes a few small files of the packages."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self._versions: dict[str, str] = {}

    def available(self, packages: Sequence[str]) -> list[str]:
        return list(packages)

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        for package in packages:
            write(self.root, f"usr/share/doc/{package}/copyright", f"of {package}")
        if "tar" in packages:
            page = ".SH NAME\n{}\n.PP\nSave the document before you close the window.\n.SH X\n"
            write(self.root, "usr/share/man/man1/b.1.gz", page.format("reads an archive"))
            write(self.root, "usr/share/man/fr/man1/b.1.gz", page.format("lit une archive"))
        for language, texts in {
            "en-US": ("Saves the file. Closes it.", "Prints the open file."),
            "fr": ("Enregistre le fichier. Le ferme.", "Imprime le fichier ouvert."),
        }.items():
            page = "".join(f'<p id="par_id{number}">{text}</p>' for number, text in enumerate(texts))
            write(self.root, f"usr/share/libreoffice/help/{language}/text/shared/a.html", page)
        write(self.root, "usr/share/man/man1/a.1.gz", ".SH NAME\nsaves the open file\n")
        write(
            self.root, "usr/share/man/fr/man1/a.1.gz", ".SH NOM\nenregistre le fichier ouvert\n.SH TRADUCTION\nDe X.\n"
        )
        self._versions |= dict.fromkeys(packages, "1")
        return self._versions


@pytest.mark.parametrize(("unit", "num_pairs"), [("PARAGRAPHS", 3), ("SENTENCES", 4), ("PROSE", 2)])
def test_builds_from_both_kinds_of_documentation(
    unit: str, num_pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debdocs, "Apt", FakeApt)
    monkeypatch.setattr(debdocs, "VERSIONS", dict.fromkeys(debdocs.VERSIONS, "1"))
    lines: list[str] = []
    counted = replace(getattr(debdocs, unit), counts={"train": num_pairs, "validation": 0, "test": 0})
    debdocs.build(tmp_path, lines.append, unit=counted)
    pairs = list(read_pairs(CorpusFiles(pairs=(str(tmp_path / "train.tsv"),))))
    assert len(pairs) == num_pairs and pairs[-1] == (
        Pair("Prints the open file.", "Imprime le fichier ouvert.")
        if unit == "PROSE"
        else Pair("saves the open file", "enregistre le fichier ouvert")
    )
    assert (tmp_path / "test.tsv").read_text() == ""
    assert (tmp_path / "copyright.manpages-fr.txt").read_text() == "of manpages-fr"
    assert lines == []


def test_more_documentation_and_variants_are_added_to_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debdocs, "Apt", FakeApt)
    for versions in ("VERSIONS", "MORE_VERSIONS"):
        monkeypatch.setattr(debdocs, versions, dict.fromkeys(getattr(debdocs, versions), "1"))
    monkeypatch.setattr(debdocs, "variants", lambda sentences, num_pairs: [*sentences, Pair(str(num_pairs), "")])
    counts = {"train": 10, "validation": 0, "test": 0}
    debdocs.build(tmp_path, print, unit=replace(debdocs.VARIED, counts=counts))
    lines = (tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        "Saves the file. Closes it.", "Prints the open file.", "saves the open file", "reads an archive",
        "Saves the file.", "Closes it.", "Prints the open file.", "saves the open file", "reads an archive", "3",
    ]  # fmt: skip
    assert (tmp_path / "copyright.tar.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*debdocs.DATA_SETS, "debian-synopses", "messages-en-fr"])
def test_data_sets_are_built_from_the_archive(name: str, tmp_path: Path) -> None:
    """The builders check their counts. This test checks that they find all their files."""
    publish(tmp_path / name, name, builders()[name], announce=print)
    for part in ("train", "validation", "test"):
        assert sum(1 for _ in read_pairs(CorpusFiles(pairs=(str(tmp_path / name / f"{part}.tsv"),)))) > 1000
