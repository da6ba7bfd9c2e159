"""Manual pages: roff's escapes, sections and blocks, and which of them correspond."""

import gzip
from pathlib import Path

import pytest

from attendant.training.data.fetch.debdocs.manpages import aligned_blocks, arguments, manual_pages, plain, sections

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
def test_escapes(roff: str, text: str) -> None:
    assert plain(roff) == text


def test_arguments_are_separated_by_spaces_outside_of_quotes() -> None:
    assert arguments(r'foo (2), "a b" x\ y "say ""no""" \" comment') == [
        "foo", "(2),", "a b", r"x\ y", 'say "no"',
    ]  # fmt: skip


def test_the_languages_correspond_block_by_block() -> None:
    assert list(aligned_blocks(ENGLISH, FRENCH)) == [
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


def test_a_section_that_was_changed_is_left_out() -> None:
    changed = FRENCH.replace(".TP\n", ".IP x\n")
    assert [english for english, _ in aligned_blocks(ENGLISH, changed)] == [
        "NAME", "toy - plays with a toy(3)", "Ways to play", "Done.",
    ]  # fmt: skip
    shorter = FRENCH.replace(".PP\n", "")
    assert len(list(aligned_blocks(ENGLISH, shorter))) == 4


def test_a_text_of_a_link_stands_for_it() -> None:
    (section,) = sections(".SH SEE\nSee\n.UR https://example.org\nthe\npage\n.UE ,\nor not.\n")
    assert section.blocks == ["SEE", "See the page, or not."]


def test_pages_with_two_names_come_once(tmp_path: Path) -> None:
    for name, text in {"man2/toy.2": ENGLISH, "fr/man2/toy.2": FRENCH, "man2/other.2": ENGLISH}.items():
        path = tmp_path / "usr/share/man" / f"{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    for folder in ("man2", "fr/man2"):
        (tmp_path / "usr/share/man" / folder / "alias.2.gz").symlink_to("toy.2.gz")
    assert [(key, len(blocks)) for key, blocks in manual_pages(tmp_path, "fr")] == [("man:man2/toy.2.gz", 9)]
