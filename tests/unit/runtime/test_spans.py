"""Tests of texts in parts, protected spans, and joined answers of parts."""

import time

import numpy as np
import pytest

from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.spans import altered, joined, parts_of, restored


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Delete {count} of {{ user.name }} in ${HOME} or $PATH", ["{count}", "{{ user.name }}", "${HOME}", "$PATH"]),
        ("%s, %d, %1$s, %(name)s, %-5.2f and 50% of it, 5%d", ["%s", "%d", "%1$s", "%(name)s", "%-5.2f"]),
        ('<b>Save</b> <a href="x">&amp; go</a>, a < b', ["<b>", "</b>", '<a href="x">', "&amp;", "</a>"]),
        ("<!-- a --> <!DOCTYPE html> <?xml a?> <- b>", ["<!-- a -->", "<!DOCTYPE html>", "<?xml a?>"]),
        ("<0>a</0> <12/> 1 <2 and 3> 1", ["<0>", "</0>", "<12/>"]),
        ('See https://a.org/b?c=d#e. Or ("http://b.org").', ["https://a.org/b?c=d#e", "http://b.org"]),
        ("Write to jean.d@mail.example.fr, @home", ["jean.d@mail.example.fr", "@home"]),
        ("In /etc/fstab, ~/.a/b and C:\\x\\y.z. And/or 1/2 km/h", ["/etc/fstab", "~/.a/b", "C:\\x\\y.z"]),
        ("C:\\Program Files (x86)\\A b\\c to D:\\e\\", ["C:\\Program Files (x86)\\A b\\c", "D:\\e\\"]),
        ("Done 🎉🎉, thanks 👍🏽!", ["🎉🎉", "👍🏽"]),
        ("⭐⏰ ▶️ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤︎ 12", ["⭐⏰", "▶️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤︎"]),
        ("%(a)s%(b.c).2f of x%(n)03d, 100%%(x)s", ["%(a)s", "%(b.c).2f", "%(n)03d"]),
        ("&frac12; &#X1F600; R&D; ../../a/b", ["&frac12;", "&#X1F600;", "../../a/b"]),
        ("See www.a.org/b, not awww.b", ["www.a.org/b"]),
        ("HTTPS://A.org/B, ftp://a/b; (WWW.A.ORG)", ["HTTPS://A.org/B", "ftp://a/b", "WWW.A.ORG"]),
        ("a.com, b.co.uk/c?d. Not java.io.File, end.Fr or io", ["a.com", "b.co.uk/c?d"]),
        ("Edit src/a.yaml, B.TXT. Not e.g. 1.5 or a.txts", ["src/a.yaml", "B.TXT"]),
        ("Run `make all` or ``b c``, not `this' and `that'", ["`make all`", "``b c``"]),
        (
            "{n, plural, one {# file} other {{n} files}}, {a: {b: c}} {d {e}",
            ["{n, plural, one {# file} other {{n} files}}", "{a: {b: c}}", "{e}"],
        ),
        (
            "[name] of [[first name]] or <<a b>>, [a link](x) [text][1] [1]",
            ["[name]", "[[first name]]", "<<a b>>", "[", "](x)"],
        ),
        ('See ![it](a(b).png "A b") or [![c d](e)](f), [g](h i)', ["![", '](a(b).png "A b")', "[![", "](e)](f)"]),
        (
            "‘%s’ “{a}”, '%d''%s', `{b}', \"%s\" 'a_b' '%s's",
            ["‘%s’", "“{a}”", "'%d'", "'%s'", "`{b}'", "%s", "a_b", "'%s'"],
        ),
        (":%s, {a}:{b}:%d, %s: %s, <b>:{c}, '%s':{d}", ["%s", "{a}:{b}:%d", "%s", "%s", "<b>", "{c}", "'%s':{d}"]),
        ("<%= name %> $(pwd) %PATH% (:name) #tag #123", ["<%= name %>", "$(pwd)", "%PATH%", ":name", "#tag", "#123"]),
        ("Ctrl+Alt+Delete, Ctrl-C, Ctrl+Shift+Esc, Alt+F4", ["Ctrl+Alt+Delete", "Ctrl-C", "Ctrl+Shift+Esc", "Alt+F4"]),
        (
            "__name__, a_b_1 of MAX_SIZE, getName, os.f() f()",
            ["__name__", "a_b_1", "MAX_SIZE", "getName", "os.f()", "f()"],
        ),
        ("a::b a->c_d e[0] --f=g.h, X=5. i=%d", ["a::b", "a->c_d", "e[0]", "--f=g.h", "X=5", "i=%d"]),
        (
            "CTRL+ALT+DEL, ctrl+c, CTRL+SHIFT+T, Ctrl-x, Alt+Left, Ctrl+Shift+Space",
            ["CTRL+ALT+DEL", "ctrl+c", "CTRL+SHIFT+T", "Ctrl-x", "Alt+Left", "Ctrl+Shift+Space"],
        ),
        ("mailto:a@b.c?subject=d, tel:+1-555-0100. Tel: 5, hotel:a", ["mailto:a@b.c?subject=d", "tel:+1-555-0100"]),
        ("%'d, %,d, %*s, %5.*f, %.100s, %-+5d, 50%, 100%'", ["%'d", "%,d", "%*s", "%5.*f", "%.100s", "%-+5d"]),
        (
            "c:\\a\\b.c, C:/Users/a, \\\\server\\a b\\c. and/or:/ n: /",
            ["c:\\a\\b.c", "C:/Users/a", "\\\\server\\a b\\c"],
        ),
        ("v1.2, 1.2.3-rc1. 10.0.0.1:80 10.0.0.0/8", ["v1.2", "1.2.3-rc1", "10.0.0.1:80", "10.0.0.0/8"]),
        ("::1 fe80::1 00:1a:2b:3c:4d:5e 12:30:45", ["::1", "fe80::1", "00:1a:2b:3c:4d:5e", "12:30:45"]),
        (
            "root@server1:/tmp localhost:8080, text/plain image/svg+xml",
            ["root@server1:/tmp", "localhost:8080", "text/plain", "image/svg+xml"],
        ),
        ("md5:1a2b3c4 550e8400-e29b-41d4-a716-446655440000", ["md5:1a2b3c4", "550e8400-e29b-41d4-a716-446655440000"]),
        ("+33 1 23 45 67 89 or +1 (555) 123-4567.", ["+33 1 23 45 67 89", "+1 (555) 123-4567"]),
        (r"$x^2$ $$a+b$$ \textbf{it}", ["$x^2$", "$$a+b$$", r"\textbf{it}"]),
        (
            "lib.so.1 of main.c\n```sh\na. B\n```\n<pre>\n`c`</pre>",
            ["lib.so.1", "main.c", "```sh\na. B\n```", "<pre>\n`c`</pre>"],
        ),
        ("Nothing: 5 $ of it, {a, [b] (c), << and >>, $5/$6, #NAME? C#, kB", []),
        ("Shift+F10, Ctrl+Shift+P, Ctrl+Enter and Alt+Right Arrow have names", []),
        ("File->Open, NOW(), iPhone, text/graphics, audio/video", []),
        ("At 5:30 from -100% to +100 of 1,000,000 files: 1234567, 2.5; _so_, _So, U.S.A., a = b. :) end.So", []),
    ],
)
def test_protected_spans_are_found_and_restored(text: str, spans: list[str]) -> None:
    (part,) = parts_of(text, split=False, protect=True)
    assert list(part.spans) == spans
    assert restored(str(part.text), part.spans) == text
    assert [f"{{{number}}}" in part.text for number in range(1, len(spans) + 1)] == [True] * len(spans)


def test_no_character_is_in_two_spans() -> None:
    """A mark that a span is protected with may begin the next one: U+FE0F makes it an emoji."""
    text = "a «<b>»\ufe0f c"
    (part,) = parts_of(text, split=False, protect=True)
    assert (part.text, part.spans) == ("a «{1}{2} c", ("<b>", "»\ufe0f"))


def test_names_are_protected_only_where_spans_are_few() -> None:
    (few,), (many,) = (parts_of(f"a_b, c.txt{' %s' * number} 1.2.3", split=False, protect=True) for number in (5, 6))
    assert few.text == "{1}, {2} {3} {4} {5} {6} {7} {8}"
    assert many.text == "a_b, c.txt {1} {2} {3} {4} {5} {6} 1.2.3"
    assert altered(str(many.text).replace("c.txt", "d.txt"), many.spans) == ["c.txt"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? (Four.) “Five.” Six…", ["One.", "Two!", "Three?", "Four.", "Five.", "Six…"]),
        (
            "See e.g. Fig. 3 by Dr. J. Smith etc. and more. Then stop.",
            ["See e.g. Fig. 3 by Dr. J. Smith etc. and more.", "Then stop."],
        ),
        (
            "See eq. 5, Ref. 2 and tab. B. Close the tab. Stop.",
            ["See eq. 5, Ref. 2 and tab. B. Close the tab.", "Stop."],
        ),
        ("One. 🎉 Two! 🎉🎉", ["One.", "Two!"]),
        ("SEE FIG. 3 BY DR. NO ETC. ABOVE. Stop.", ["SEE FIG. 3 BY DR. NO ETC. ABOVE.", "Stop."]),
        ('("One. Two!")', ["One.", "Two!"]),
        ("1. Open it. 2. Close it.", ["Open it.", "Close it."]),
        ("A line\nanother\r\n\n  last one ", ["A line", "another", "last one"]),
        ("version 2.5 is out. see below", ["version 2.5 is out. see below"]),
        ("これは本です。はい！「そう。」次", ["これは本です。", "はい！", "「そう。」", "次"]),
        ("One.  \n Two.", ["One.", "Two."]),
        ("One.\u2003Two.\u3000Three!\u202fFour.", ["One.", "Two.", "Three!", "Four."]),
        ("NOTE: It is. HTTP: no", ["NOTE:", "It is.", "HTTP:", "no"]),
        ("- **TIP:** Use it.\n> ERROR: None. See HTTP: a", ["TIP:", "Use it.", "ERROR:", "None.", "See HTTP: a"]),
        ("cp [OPTION]... SOURCE DEST", ["cp [OPTION]... SOURCE DEST"]),
        ("---\nOne.\n|--|\n\n* Two\n\u200b\n===", ["One.", "Two"]),
        ("--\n!", ["--\n!"]),
        ("<ul> <li>One</li><li>Two. Three</li></ul>", ["One", "Two.", "Three"]),
        ("one\ttwo three \tFour\n1.\tFive\n-\tsix", ["one", "two three", "Four", "Five", "six"]),
        ("| One two | three |\n|---|:--|\n| a\\|b | 5 |\n\nls | sort", ["One two", "three", "a\\|b", "5", "ls | sort"]),
        ("<p>One. <p>Two<br/>\nThree</p><hr>", ["One.", "Two", "Three"]),
        ("one\x0btwo\x0cthree\x85four\u2028five\u2029six", ["one", "two", "three", "four", "five", "six"]),
        ("", [""]),
    ],
)
def test_a_text_is_split_into_lines_and_sentences(text: str, parts: list[str]) -> None:
    actual = parts_of(text, split=True, protect=False)
    assert [part.text for part in actual] == parts
    assert "".join(part.before + str(part.text) + part.after for part in actual) == text.strip()


LONG = "A line that is about as long as lines that programs wrap"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{LONG}\nends here. Next\n  ends too.\n\nThen", [f"{LONG} ends here.", "Next", "ends too.", "Then"]),
        (f"- {LONG},\r\n  éditeur.\r\n- Two", [f"{LONG}, éditeur.", "Two"]),
        *((text, text.split("\n")) for text in ("open it\nclose it", f"{LONG}:\nclose it", f"{LONG}\nClose it")),
        (f"{LONG}\n\nclose it", [LONG, "close it"]),
        (f"{LONG}\n- close it", [LONG, "close it"]),
    ],
)
def test_a_sentence_wrapped_after_a_long_line_is_one_part(text: str, parts: list[str]) -> None:
    assert [part.text for part in parts_of(text, split=True, protect=True)] == parts


UNMARKED = [
    '"A" or "B"', "(a) or (b)", "'It isn't.'", "**A** and **B**", "-5 files", "(1)", '"', "''", "*a", "- -",
    "(see (a))", "#NAME it", "_Open_ it_", "1.5 files", "_Any_ of it", "_Bool is it.", "&c", "AT&T", "[a] [b]",
    "« A » or B", "A or « B »", "a*", "A. Smith is.", "i. e. it is", "1.2 is.",
]  # fmt: skip
"""Sentences whose marks belong to them."""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"Are you sure?"', "Are you sure?"),
        ("(Are you sure?)", "Are you sure?"),
        ("- **Note**:", "Note"),
        ("> * 'A file.',", "A file."),
        ("1. **_It_** ", "It"),
        ("<p>Open <b>it</b>.</p>", "Open {1}it{2}."),
        ("«It.»", "It."),
        ("« <b> It. </b>\u00a0»", "It."),
        ("[ OK ]", "OK"),
        ("_Open the file_", "Open the file"),
        ("+ [x] It.", "It."),
        ("▪ a) It.", "It."),
        *((f"{number} It is.", "It is.") for number in ("a.", "(b)", "(C)", "iv.", "(ii)", "1.2.", "- 10)")),
        ("[^1]: It.", "It."),
        ("_Open File…", "Open File…"),
        ("• &Open %s", "Open {1}"),
        ("&Open...", "Open..."),
        ("- [Open it](a/b.md).", "{1}Open it{2}."),
        ("[Open it](a/b.md)", "Open it"),
        ("![An image](a.png)", "An image"),
        ("[a b](c) [d e](f)", "{1}a b{2} {3}d e{4}"),
        ("<p>Use <span>it</span>.</p>", "Use {1}it{2}."),
        ("<0>Use it.</0>", "Use it."),
        ("<b>A</b> or <b>B</b>", "{1}A{2} or {3}B{4}"),
        *((text, text) for text in UNMARKED),
        ("<b>Open</b> it.", "{1}Open{2} it."),
        ("😀 It works", "It works"),
        ("- ✅ It works 🎉🎉", "It works"),
        ("1️⃣It works☑", "It works"),
        ("« Back ←", "Back"),
        ("Next » 🎉", "Next"),
        ("Name *", "Name"),
        ('<i class="a"></i> Name&nbsp;<img src="b">', "Name"),
        ("&nbsp;&nbsp;&bull; Name &rarr;", "Name"),
        ("&laquo; Back", "Back"),
        ("&lt;A&gt;", "{1}A{2}"),
        ("Next&nbsp;&raquo;", "Next"),
        ("[note]: It works", "It works"),
        ("It 🎉 works!", "It {1} works!"),
    ],
)
def test_marks_around_a_sentence_are_taken_off(text: str, sentence: str) -> None:
    (part,) = parts_of(text, split=True, protect=True)
    assert part.text == sentence
    assert part.before + restored(sentence, part.spans) + part.after == text.strip()


def test_tags_between_paragraphs_belong_to_no_part() -> None:
    actual = parts_of("<p>Use <b>it</b>.</p><br> <p>See `<p>`</p>", split=True, protect=True)
    assert [(part.text, part.spans) for part in actual] == [("Use {1}it{2}.", ("<b>", "</b>")), ("See {1}", ("`<p>`",))]
    assert [(part.before, part.after) for part in actual] == [("<p>", "</p><br> <p>"), ("", "</p>")]
    cells = parts_of("<td>one</td> <td>two <br> three</td> Next <p> It ends", split=True, protect=True)
    assert [part.text for part in cells] == ["one", "two", "three", "Next", "It ends"]
    (part,) = parts_of("Use the <p> or the <td> element", split=True, protect=True)
    assert (part.text, part.spans) == ("Use the {1} or the {2} element", ("<p>", "<td>"))
    (part,) = parts_of("<ul><li>One</li></ul>", split=True, protect=True)
    assert (part.before, part.text, part.after) == ("<ul><li>", "One", "</li></ul>")


def test_a_span_is_never_cut_and_numbered_in_its_part() -> None:
    actual = parts_of('<a title="One. Two">Go</a>. Use {a} there.', split=True, protect=True)
    assert [(part.text, part.spans) for part in actual] == [
        ("{1}Go{2}.", ('<a title="One. Two">', "</a>")),
        ("Use {1} there.", ("{a}",)),
    ]


HOSTILE = [
    "A. ", "1. ", "a.  ", "\n ", "<a", "{", "{a", "https://", "/.", "%", "%(a", "a@", "a.", "`a", '."', "~", "../",
    "\ufe0f", f"{'x' * 50}\n", "x \n", " ab+", " ab.", "```", "``` ", "<pre>", "<pre", "[[", "[ab", "<<a", "<%a", "a_",
    "aB", "$x", "$(", "1:", "a:", "ab1", "1.1.", "+1 ", "a::", "a->", "a=", "@a", "Ctrl+", "\\ab{", "AB: ", "1. AB: ",
    "\n| a |", "| ", "a \t", "{{a}", "{a{", "[a](", "](a", "![a](b", "_A", "C:\\a b ", "'%s", "[a]: ",
    "🎉", " 🎉", "🎉 ", ". 🎉", "« ", " »", " *", "→ ", " →", "alt+", "%'", "<i></i>", "<i ", "&nbsp;", "\\\\a", "a:/",
]  # fmt: skip
"""Texts that are repeated."""


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_hostile_text_takes_linear_time(unit: str) -> None:
    begun = time.process_time()
    parts_of("x" + unit * (2**16 // len(unit)) + "y", split=True, protect=True)
    assert time.process_time() - begun < 3.0


def test_no_blank_follows_an_opening_tag_that_had_none() -> None:
    text = "See <b>the manual</b>, [a %s](b), <0>it</0>, <br/>it, <name>: and <p> it"
    (part,) = parts_of(text, split=False, protect=True)
    assert part.text == "See {1}the manual{2}, {3}a {4}{5}, {6}it{7}, {8}it, {9}: and {10} it"
    assert part.openings == {1, 3, 6}
    answer = "Voir {1} le manuel{2}, {3} un {4} {5}, {6}ça{7}, {8} ça, {9} : et {10} ça"
    french = "Voir <b>le manuel</b>, [un %s ](b), <0>ça</0>, <br/> ça, <name> : et <p> ça"
    assert restored(answer, part.spans, part.openings) == french


def test_altered_spans_of_an_answer_are_reported() -> None:
    spans = ("%s", "<b>", "</b>")
    assert restored("{2}Ouvre{3} {1} {4} {12}", spans) == "<b>Ouvre</b> %s {4} {12}"
    assert altered("{2}Ouvre{3} {1}", spans) == []
    assert altered("{2}Ouvre {1} {1}", spans) == ["%s", "</b>"]
    assert altered("{1}", ("{2}", "{1}")) == ["{1}"]
    assert restored("{1}", ()) == "{1}" and altered("{1}", ()) == []


def hypothesis(
    tokens: tuple[int, ...],
    log_probs: tuple[float, ...],
    *,
    num_sources: int = 2,
    ended: bool = True,
    bonus: float = 0.0,
) -> Hypothesis:
    attention = np.arange(len(log_probs) * num_sources, dtype=np.float32).reshape(len(log_probs), num_sources) + 1
    reason = FinishReason.EOS if ended else FinishReason.LENGTH
    return Hypothesis(tokens, log_probs, sum(log_probs), sum(log_probs) + bonus, reason, attention)


def test_a_joined_answer_has_the_attention_of_its_parts_in_blocks() -> None:
    first = hypothesis((4, 5), (-1.0, -2.0, -4.0))
    cut = hypothesis((6,), (-8.0,), num_sources=1, ended=False)
    empty = hypothesis((), (-16.0,))
    last = hypothesis((7,), (-32.0, -64.0), num_sources=3)
    (whole,) = joined([[first], [cut], [empty], [last]], 1, draws=False, attention=True)
    assert whole.token_ids == (4, 5, 6, 7)
    assert whole.token_log_probs == (-1.0, -6.0, -8.0, -48.0, -64.0), "ends belong to the token before them, or after"
    assert whole.log_prob == sum(whole.token_log_probs) and whole.score == -127.0
    assert whole.finish_reason is FinishReason.LENGTH, "a part was cut"
    assert whole.parts == (first, cut, empty, last)
    assert whole.attention is not None and whole.attention.tolist() == [
        [1, 2, 0, 0, 0, 0, 0, 0],
        [3, 4, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 2, 3],
        [0, 0, 0, 0, 0, 4, 5, 6],
    ]
    (whole,) = joined([[first], [last]], 1, draws=False, attention=False)
    assert whole.attention is None and whole.parts == (first, last) and whole.finish_reason is FinishReason.EOS


def test_the_best_joined_answers_are_the_best_combinations_of_parts() -> None:
    parts = [[hypothesis((token,), (score,)) for token, score in each] for each in (
        [(4, -1.0), (5, -2.0), (6, -9.0)], [(7, -1.0), (8, -1.5)], [(9, -1.0)],
    )]  # fmt: skip
    best = joined(parts, 3, draws=False, attention=False)
    assert [whole.token_ids for whole in best] == [(4, 7, 9), (4, 8, 9), (5, 7, 9)]
    assert [whole.score for whole in best] == [-3.0, -3.5, -4.0]
    assert len(joined(parts, 99, draws=False, attention=False)) == 6
    assert [whole.token_ids for whole in joined(parts[:2], 2, draws=True, attention=False)] == [(4, 7), (5, 8)]
