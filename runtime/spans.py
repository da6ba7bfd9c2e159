"""Texts before and after the engine: parts that are decoded separately, and spans that return unchanged.

A text may be cut into its lines and sentences: each is a request of its own, and the answers are joined. The marks
around a sentence, such as a bullet or quotation marks, return unchanged. A span that means something to a program (a
placeholder, a tag, an address) is replaced by a stand-in, `{1}`, `{2}`, ..., which the model copies, and is put back
into the answer.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from heapq import nlargest
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.stepper import Floats

EMOJI: Final = (
    r"(?:(?:[\U0001f000-\U0001faff\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55]|\S[\ufe0f\u20e3])"
    r"[\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*+)++"
)
"""Emoji, also those that only U+FE0F makes one."""

SPANS: Final = re.compile(
    r"""
      (?<!`)```(?:[^`]++|`(?!``))*+```                              # blocks of code
    | <(?i:(pre|script|style))(?![\w-])[^<>]*>(?:[^<]++|<(?!/?\1))*+</\1>
    | (?:(?<![A-Za-z0-9+.-])(?:[A-Za-z][A-Za-z0-9+.-]{1,15}://|(?i:doi|mailto|sms|tel|urn):)|(?<![\w.@/-])(?i:www)\.)
      [^\s<>"]*[^\s<>"'”’».,;:!?)\]}]                               # addresses of pages
    | (?<![\w.@/-])(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}(?:com|dev|edu|eu|de|fr|gov|io|net|org|uk)(?:\.[a-z]{2})?
      (?![\w-]|\.\w)(?:[:/][^\s<>"]*[^\s<>"'”’».,;:!?)\]}])?          # domains, and addresses in them
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*(?::[~/]?\w[\w./~+-]*)?  # e-mail addresses, user@host:path
    | (?<![\w.-])localhost(?::\d{1,5})?(?![\w-])
    | <(?:/?[A-Za-z]|!--|[!?][A-Za-z])[^<>\n]*>|</?\d{1,2}/?>       # tags, comments, <0>
    | <%[^%\n]{1,64}%>                                              # <%= name %>
    | <<[^<>\s](?:[^<>\n]{0,62}[^<>\s])?>>
    | &(?:\#[Xx]?[0-9A-Fa-f]{1,7}|[A-Za-z][0-9A-Za-z]{1,31});       # entities
    | \$?\{\{[^{}\n]{0,64}\}\}                                      # {{name}}
    | \{(?:[^{}\n]{0,64}\{(?:[^{}\n]{0,64}\{[^{}\n]{0,64}\}){0,4}[^{}\n]{0,64}\}){1,8}[^{}\n]{0,64}\}  # messages of ICU
    | [$\#%]?\{[^{}\n]{0,64}\}                                      # {name}, ${NAME}, #{name}
    | (?:\[?!)?\[(?=[^][\n]{1,100}\]\([^()\s]{1,300}(?:\([^()\s]{0,100}\)[^()\s]{0,100})?(?:[ ]"[^"\n]{0,100}")?\))
    | (?:\]\([^()\s]{1,300}(?:\([^()\s]{0,100}\)[^()\s]{0,100})?(?:[ ]"[^"\n]{0,100}")?\)){1,2}  # links of Markdown
    | \[\[[^][\n]{1,64}\]\]                                         # [[name]]
    | (?<![\w\])])\[[A-Za-z_][\w.-]{1,63}\](?![\w([])               # [name], but no link
    | (?<!\w)[A-Za-z_]\w*\[\d{1,9}\]                                # name[0]
    | \$\([^()\n]{1,64}\)                                           # $(command)
    | (?<![\w$])\${1,2}[^\s$]{1,64}\${1,2}(?![\w${(])               # formulas of LaTeX
    | \$[A-Za-z_]\w{0,63}                                           # $NAME
    | \\[A-Za-z]{2,32}(?:\{[^{}\n]{0,64}\}){1,4}                    # commands of LaTeX
    | (?<![\w%])%[A-Za-z_]\w{1,63}%(?![\w%])                        # %NAME%
    | (?<![\d%])%(?:\d{1,2}\$)?[-+\#0',]{0,3}(?:\*|\d{0,3})(?:\.(?:\*|\d{1,3}))?                     # printf's
      (?:hh?|ll?|[Lzjt])?[diouxXeEfFgGaAcspn@]
    | (?<!%)%\([\w.-]{1,64}\)[-+\#0]?\d{0,3}(?:\.\d{1,2})?[diouxXeEfFgGcrsa]                         # Python's
    | (?<![^\s("'[]):[A-Za-z_]\w{1,63}:?(?!\w)                      # :name
    | (?<![\w.@])@{1,2}[A-Za-z_]\w{0,63}(?:@{1,2}|/[\w.-]*\w)?      # @name
    | (?<![\w\#&])\#(?=[A-Z_]{0,63}[0-9a-z])\w{1,64}                # #tag, #12
    | (?<![\w+-])(?i:(?:(?:alt|altgr|cmd|command|control|ctrl|fn|meta|option|super|win|(?-i:SHIFT))[+-]){1,3}
      (?:f?\d{1,2}|[a-z]|tab))(?![\w+-])                            # keys; Enter and Shift have names
    | (?<![\w+-])(?i:(?:(?:alt|altgr|cmd|command|control|ctrl|fn|meta|option|shift|super|win)[+-]){1,3}
      (?:backspace|del(?:ete)?|down|end|esc(?:ape)?|home|ins(?:ert)?|left|minus|p(?:age|g)(?:dn|down|up)|plus|print|right|
      space|up))(?![\w+-]|[ ](?i:arrow|button|click|mouse))
    | (?<![\w:.-])(?:(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2})(?![\w:-])
    | (?<![\w-])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}
      |(?:(?:md5|sha\d{1,3}):)?(?=[a-f]{0,64}\d)(?=\d{0,64}[a-f])[0-9a-f]{7,128})(?![\w-])          # UUIDs, hashes
    | (?<![\w.+-])\+(?=(?:[ ().-]{0,2}\d){8})\d[\d ().-]{6,24}\d(?!\w)      # phone numbers
    | (?<![\w./-])(?:application|audio|font|image|multipart|text|video)/(?:(?:x-|vnd\.)[\w.+-]*\w|[\w-]+\+\w+|bmp|
      css|csv|form-data|gif|html|javascript|jpe?g|json|markdown|mixed|mp[34]|mpeg|octet-stream|ogg|pdf|plain|png|tiff|wav|web[mp]|
      xml|zip)(?![\w-])                                             # types of content
    | (?<![\w<>=!-])-{0,2}[A-Za-z_][\w.-]{0,63}=(?:"[^"\n]{0,64}"|[^\s=<>"',;()[\]{}]{1,64}(?<![.:!?]))
    | (?<!\w)[A-Za-z_]\w*(?:::\w+)+(?:\(\))?                        # a::b
    | (?<!\w)[a-z_]\w*->\w+(?:\(\))?                                # a->b
    | (?<![\w/.~])(?:~|\.{1,2}(?:/\.\.)*|[A-Za-z]:)?(?:/[\w.+@%-]*[\w+@%-])+/?          # paths
    | (?:(?<!\w)[A-Za-z]:|(?<![\w\\])\\\\[\w.-]{1,64})\\            # Windows's
      (?:[\w.+@%-]{1,64}(?:[ ][\w.+@%()-]{1,64}){1,3}\\){0,4}[\w\\.+@%-]*[\w\\+@%-]
    | (?P<name>
      (?<![\w./~+@-])[\w./+-]*\w\.(?:(?i:7z|avi|bat|bmp|cfg|conf|cpp|css|csv|deb|dll|docx?|epub|exe|flac|gif|gz|heic|
      hpp|html?|ini|ipynb|iso|jar|java|jpe?g|js|jsx|json|log|md|mkv|mov|mp[34]|od[fgpst]|ogg|parquet|pdf|php|png|pptx?|py|rar|
      rpm|rst|rtf|scss|sh|sql|svg|tar|tex|tgz|tiff?|toml|tsv?|tsx|txt|wav|webm|webp|xlsx?|xml|ya?ml|zip)
      |bak|c|db|env|go|h|key|lock|lua|pl|rb|rs|so(?:\.\d+)*|vue|xz)(?![\w-])                          # files
    | (?<![\w.])(?=[A-Z]*[a-z_])[A-Za-z_]\w*(?:\.\w+)*\(\)          # name()
    | (?<![\w.])[a-z]{2,64}[A-Z][a-z]\w*                            # camelCase
    | (?<![\w.])(?=[A-Za-z0-9]{0,64}_+[^\W_])(?!_(?:[^\W_]+_|[A-Z][a-z]+)(?!\w))[A-Za-z_]\w*[^\W_]_*(?!\w)  # a_b, __a__
    | (?<![\w.])v?\d{1,5}\.\d{1,5}\.\d[\w.+~-]*(?<![.+~-])(?:[:/]\d{1,5})?(?!\w|\.\d)   # versions, IPv4
    | (?<![\w.])v\d{1,5}(?:\.\d{1,5})?(?!\w))
    | (?<![\w`])(`{1,2})[^`\s](?:[^`\n]{0,62}[^`\s])?\3(?![\w`])     # code
    | """
    + EMOJI,
    re.VERBOSE,
)
"""The spans of a text that are protected. Each alternative takes time linear in the text."""

STAND_IN: Final = re.compile(r"\{([1-9][0-9]{0,2})\}( ?)")
OPEN_STAND_IN: Final = re.compile(r"\{[0-9]{0,3}\Z")
ALL_DIGITS: Final = "{1} {23} {456} {7890}"
QUOTED: Final = frozenset(("''", "`'", "‘’", "“”", "„“", "«»"))
"""Marks around a span that are protected with it. Models lose one of them; plain quotation marks they keep."""
MAX_SPANS: Final = 999  # Spans of one part that are protected; later ones are left as they are.
MAX_SPANS_WITH_NAMES: Final = 8
"""A part with more spans has no stand-ins for files, identifiers and versions: models copy such names better than they
keep a long list of stand-ins apart."""

SENTENCE_END: Final = re.compile(
    r"""(?<=[.!?…])(?<!\]\.\.\.)["'”’»)\]]*(?P<blank>[ \t\u00a0\u2000-\u200a\u202f\u3000]+)"""
    r"""(?=["'“‘«(\[{¿¡]*[ \u00a0]?(?:[\w{$%<]|""" + EMOJI + r"""))"""
    r"""|(?<=[。！？])["'”’」』）]*(?P<nothing>)(?=[^\s"'”’」』）])"""
    r"""|(?<=[A-Z]{2}:)(?:\*\*)?(?P<label>[ \t\u00a0]+)(?=\S)"""
)
"""The end of a sentence: blanks between two sentences, or, in scripts without blanks, the place between them. Also the
blanks after a label such as `NOTE:`."""
LABEL: Final = re.compile(r"(?:[-*•·–—>#(0-9.)]{1,6}[ \t\u00a0]+){0,4}(?:[A-Z]{2,12}:|\*\*[A-Z]{2,12}:\*\*)")
"""The beginning of a line or sentence that is only a label. It is a part: in French, a blank precedes its colon."""
MAX_LABEL: Final = 32  # Characters of a label and the marks before it.
ABBREVIATION: Final = re.compile(
    r"\b(?:[a-z]|e\.g|i\.e|p\.ex|etc|vs|cf|ca|approx|nos?|vol|fig|sec|ch|chap|pp?|eds?|mr|mrs|ms|dr|prof|st|jr|sr|inc|ltd|co"
    r"|corp|mt|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
    r"|(?:app|art|eqs?|refs?|sect|tab)(?=\.\s+(?:\d|[A-Z](?![\w\s]))))\.(?=\s+.{1,2}\Z)",
    re.IGNORECASE,
)
"""An abbreviation or an initial before blanks and two characters: no sentence ends there. Some are abbreviations only
if a number or letter follows: `see tab. 3`"""
ABBREVIATION_CHARACTERS: Final = 8
ITEM_NUMBER: Final = re.compile(r"\(?(?:[0-9]{1,3}|[A-Za-z]|[ivx]{1,4})[.)]")
"""The beginning of a sentence that is only the number of a list's item."""
BLOCK_TAG: Final = r"</?(?:[bh]r|p|div|[duo]l|li|d[dt]|h[1-6]|t[dhr]|tbody|thead|blockquote)(?![\w-])[^<>\n]*>"
LINE_END: Final = re.compile(
    rf"(?<![ \t\u00a0])[ \t\u00a0]*(?:\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]|{BLOCK_TAG})(?:\s|{BLOCK_TAG})*"
    r"|(?<![ \t\u00a0.)])[ \u00a0]*\t[ \t\u00a0]*"
)
"""The end of a line, a tab between cells, or the tags between two paragraphs, items or cells of HTML."""
TABLE_ROW: Final = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)  # A row of a table in Markdown: `| one | two |`
CELL_END: Final = re.compile(r"(?<![ \t\\])[ \t]*\|[ \t]*")
NAMED_TAG: Final = re.compile(rf"(?<=[\w,])[ \u00a0](?!</?[bh]r){BLOCK_TAG}[ \u00a0](?=\w)")
"""A tag between words: a sentence names it if the next word begins with a small letter: `Use the <p> element.`"""
WRAPPED: Final = re.compile(r"(?=\s)(?<=[^\n\r]{50})(?<![\s.!?:;…|])[ \t\u00a0]*\r?\n[ \t\u00a0]*(?=\w)")
"""The end of a long line that may have been wrapped: it was if the next one begins with a small letter."""
WRAPS: Final = re.compile(r"[ \t\u00a0]*\r?\n[ \t\u00a0]*")  # The ends of wrapped lines in a part, which has no others.
EDGE: Final = (
    rf"(?:{EMOJI}|&(?:nbsp|ensp|emsp|bull|middot|copy|times|check|[lrud]arr);|<(?:hr|img|input|wbr)(?![\w-])[^<>\n]*>"
    r"|<([A-Za-z][\w-]*)(?:[ ][^<>\n]*)?></\1>)"
)
"""Emoji, symbols of HTML, and elements without a text."""
OPENED: Final = "(?:[«‹]|&ls?aquo;)"
CLOSED: Final = "(?:[»›]|&rs?aquo;)"
ITEM: Final = re.compile(
    rf"(?:(?:{EDGE}|{OPENED}(?![^\n]{{0,200}}{CLOSED}))[ \t\u00a0]*"
    r"|(?:[-*+•·‣⁃■-◿←-⇿»›–—>#]{1,6}"
    r"|\(?(?:(?:[0-9]{1,3}(?:\.[0-9]{1,3}){0,3}|[a-z]|[ivx]{2,4})[.)]|[A-Z]\))"
    r"(?![ \t\u00a0]+[a-z]\.|[^\n]{0,200}\([A-Za-z]{1,2}\))"  # not i. e., and not (a) or (b)
    r"|\[[ xX]\]|\[\^?[\w.-]{1,32}\]:)[ \t\u00a0]+){0,4}"
    r"(?:[&~_](?=[A-Z][a-z])(?![^_\n]{0,100}(?:_|[^.]\.\Z)))?"
)
"""The marks at the beginning of a list's item, a heading, a quoted line, a footnote, or a label with a mnemonic."""
END_MARKS: Final = re.compile(
    rf"(?:[ \t\u00a0]*(?:{EDGE}|&rs?aquo;)|(?<![ \t\u00a0])[ \t\u00a0]+[*†‡»›■-◿←-⇿]{{1,6}}){{1,4}}\Z"
)
"""Emoji, arrows and similar marks at the end of a sentence."""
MAX_END_MARKS: Final = 64  # Characters in which they are looked for.
CLOSING: Final = dict(zip("\"'“‘«„([*_`", "\"'”’»“)]*_`", strict=True))  # Marks that may enclose a sentence.
TAG: Final = re.compile(r"</?(\w[\w:-]*)")
OPENING: Final = re.compile(r"(?:<(?!/)[^<>]*(?<!/)>|(?:\[?!)?\[)(?=[^\s.,;:!?])")
"""A tag that opens, or the marks before the text of a link, and then neither a blank nor punctuation."""
MAX_ENCLOSING: Final = 4  # Pairs of marks around one sentence that are recognized.

Place = tuple[int, int]


class Part(NamedTuple):
    """A part of a text.

    Attributes:
        text: with a stand-in for each of its spans; or tokens, which are never cut or changed.
        spans: the protected spans, in the order of their stand-ins, and then names that are left in the text.
        openings: numbers of the spans that are an OPENING.
        before, after: the text around it, which the answer gets unchanged. `after` includes the blanks or the line end
            before the next part.
    """

    text: str | Sequence[str]
    spans: tuple[str, ...] = ()
    openings: frozenset[int] = frozenset()
    before: str = ""
    after: str = ""


def parts_of(text: str, *, split: bool, protect: bool) -> list[Part]:
    """Cuts a text into the parts that are decoded; at least one.

    Args:
        split: cut it into lines and sentences, and take off the marks around these. A protected span is never cut. A
            piece without letters or digits, such as a line of dashes, is around its neighbour, unless there is nothing
            else. A sentence that was wrapped at the end of a long line is one part, with a space instead of its end.
        protect: replace its spans by stand-ins.
    """
    text = text.strip()
    matches = list(SPANS.finditer(text)) if protect else []
    spans = _places(text, matches)
    names = {match.span() for match in matches if match.lastgroup == "name"}
    begin, end, cuts = 0, len(text), list[Place]()
    if split:
        begin, end, spans = _inner(text, begin, end, spans)
        cuts = _cuts(text, begin, end, spans)
    begins, ends = [begin, *(end for _, end in cuts)], [*(begin for begin, _ in cuts), end]
    parts, place, done = list[Part](), 0, 0
    for begin, end, next_begin in zip(begins, ends, [*begins[1:], len(text)], strict=True):
        inside = []
        while place < len(spans) and spans[place][1] <= end:
            if spans[place][0] >= begin:
                inside.append(spans[place])
            place += 1
        first, last, inside = _inner(text, begin, end, inside) if split else (begin, end, inside)
        left = sorted(names.intersection(inside)) if len(inside) > MAX_SPANS_WITH_NAMES else []
        part = _part(text, first, last, sorted({*inside}.difference(left))[:MAX_SPANS], left)
        if split:
            part = part._replace(text=WRAPS.sub(" ", str(part.text)))
        if not split or any(map(str.isalnum, STAND_IN.sub("", str(part.text)))):
            parts.append(part._replace(before=text[done:first], after=text[last:next_begin]))
            done = next_begin
    if not parts:
        return parts_of(text, split=False, protect=protect)
    parts[-1] = parts[-1]._replace(after=parts[-1].after + text[done:])
    return parts


def _places(text: str, matches: Sequence[re.Match[str]]) -> list[Place]:
    """Returns the places of protected spans, with the quotation marks around each that is not a name.

    Spans with only a colon between them, such as `{host}:{port}`, are one: models write blanks around it.
    """
    places: list[Place] = []
    for match in matches:
        begin, end = match.span()
        last_begin, last_end = places[-1] if places else (0, 0)
        if begin < last_end:
            # The mark after the last span begins this one.
            last_begin, last_end = places[-1] = last_begin + 1, last_end - 1
        if places and text[last_end:begin] == ":" and not {text[last_begin], text[begin]} & {*"<[]"}:
            places[-1] = (last_begin, end)
            continue
        is_free = begin > last_end and match.lastgroup != "name"
        width = is_free and text[begin - 1] + text[end : end + 1] in QUOTED
        places.append((begin - width, end + width))
    return places


def _part(text: str, begin: int, end: int, spans: Sequence[Place], left: Sequence[Place]) -> Part:
    """Returns a part with stand-ins for `spans`, whose names in `left` stay in its text."""
    pieces, openings = list[str](), set[int]()
    for number, (first, last) in enumerate(spans, 1):
        pieces += [text[begin:first], f"{{{number}}}"]
        begin = last
        if (opening := OPENING.match(text, first)) and opening.end() == last:
            openings.add(number)
    names = dict.fromkeys(text[first:last] for first, last in left)
    protected = (*(text[first:last] for first, last in spans), *names)
    return Part("".join([*pieces, text[begin:end]]), protected, frozenset(openings))


def _inner(text: str, begin: int, end: int, spans: list[Place]) -> tuple[int, int, list[Place]]:
    """Returns the place of a sentence without the marks around it, and its spans: `- "It ends."`, `**It ends**:`

    An item's beginning, emoji and similar marks at both ends, marks that enclose the sentence, and a pair of tags
    around it are taken off. Marks that occur inside as well are left, and so is everything around a text without
    letters.
    """
    item = ITEM.match(text, begin, end)
    first, last = item.end() if item else begin, end
    marks = END_MARKS.search(text, max(first, end - MAX_END_MARKS), end)
    if marks and not re.search(OPENED, text[first:end]):
        last = marks.start()
    inside = [span for span in spans if span[1] > first and span[0] < last]
    for _ in range(MAX_ENCLOSING):
        if len(inside) > 1 and (inside[0][0], inside[-1][1]) == (first, last) and _is_pair(text, inside):
            first, last, inside = inside[0][1], inside[-1][0], inside[1:-1]
        elif (width := _enclosing(text, first, last)) is not None:
            first, last = first + width[0], last - width[1]
        else:
            break
        while first < last and text[first].isspace():
            first += 1
        while first < last and text[last - 1].isspace():
            last -= 1
    is_cut = any(span_first < first or span_last > last for span_first, span_last in inside)
    if is_cut or not any(map(str.isalpha, text[first:last])):
        return begin, end, spans
    return first, last, inside


def _is_pair(text: str, spans: Sequence[Place]) -> bool:
    """Returns True if the first and last of these spans are a tag or link and its end, and it is opened only once."""
    pieces = [text[first:last] for first, last in spans]
    if pieces[0].endswith("["):
        return [piece.startswith("](") for piece in pieces[1:]] == [False] * (len(pieces) - 2) + [True]
    opened, *inner = [tag[1] if (tag := TAG.match(piece)) else "" for piece in pieces[:-1]]
    return bool(opened) and not pieces[0].startswith("</") and pieces[-1] == f"</{opened}>" and opened not in inner


def _enclosing(text: str, first: int, last: int) -> tuple[int, int] | None:
    """Returns the lengths of the marks that begin and end a text which they enclose; None if there are none.

    A mark of punctuation may follow the closing one.
    """
    opening = text[first : first + 1]
    if first == last or opening not in CLOSING:
        return None
    closing = CLOSING[opening]
    until = last - (text[last - 1] in ".,;:!?")
    most = 3 if opening in "*_`" else 1
    width = next(width for width in (3, 2, 1) if width <= most and text.startswith(opening * width, first, last))
    content = text[first + width : until - width]
    if text[max(first + width, until - width) : until] != closing * width or opening in content or closing in content:
        return None
    return width, last - until + width


def _cuts(text: str, first: int, last: int, spans: Sequence[Place]) -> list[Place]:
    """Returns the place of each separator: ends of lines, tags between paragraphs, and blanks after sentences."""
    matches = [*WRAPPED.finditer(text, first, last), *NAMED_TAG.finditer(text, first, last)]
    within = {match.span() for match in matches if text[match.end()].islower()}
    line_ends = {match.span() for match in LINE_END.finditer(text, first, last)} - within
    for row in TABLE_ROW.finditer(text, first, last):
        line_ends.update(match.span() for match in CELL_END.finditer(text, *row.span()))
    sentence_ends = {match.span(match.lastgroup or 0) for match in SENTENCE_END.finditer(text, first, last)}
    cuts: list[Place] = []
    begun, place = first, 0
    # The longer one of two at the same place first: blanks before a tag are part of its separator.
    for begin, end in sorted(line_ends | sentence_ends, key=lambda cut: (cut[0], -cut[1])):
        while place < len(spans) and spans[place][1] <= begin:
            place += 1
        is_in_span = place < len(spans) and spans[place][0] < begin
        if begin >= begun and not is_in_span and ((begin, end) in line_ends or _is_sentence(text, begun, begin, end)):
            cuts.append((begin, end))
            begun = end
    return cuts


def _is_sentence(text: str, begin: int, end: int, next_begin: int) -> bool:
    """Returns True if a sentence ends at `end`, which a mark and a blank suggest."""
    if text[end - 1] == ":" or text.endswith(":**", begin, end):
        return end - begin <= MAX_LABEL and LABEL.fullmatch(text, begin, end) is not None
    last_word = text[max(begin, end - ABBREVIATION_CHARACTERS) : next_begin + 2]
    return not (text[next_begin].islower() or ABBREVIATION.search(last_word) or ITEM_NUMBER.fullmatch(text, begin, end))


def spell_stand_ins(*tokenizers: Tokenizer) -> bool:
    """Returns True if these tokenizers keep stand-ins unchanged."""
    return all(
        tokenizer.takes_texts and tokenizer.decode(tokenizer.encode(ALL_DIGITS)) == ALL_DIGITS
        for tokenizer in tokenizers
    )


def restored(text: str, spans: Sequence[str], openings: Collection[int] = ()) -> str:
    """Returns a text with stand-ins replaced by their spans. A number without a span stays as it is.

    A blank after one of the openings is left out: models write some.
    """

    def span(match: re.Match[str]) -> str:
        number = int(match[1])
        if number > len(spans):
            return match[0]
        return spans[number - 1] + ("" if number in openings else match[2])

    return STAND_IN.sub(span, text) if spans else text


def altered(text: str, spans: Sequence[str]) -> list[str]:
    """Returns the spans whose stand-ins a text does not have exactly once, and that it does not have themselves."""
    counts = Counter(int(match[1]) for match in STAND_IN.finditer(text))
    rest = STAND_IN.sub("", text)
    return [span for number, span in enumerate(spans, 1) if counts[number] != 1 and span not in rest]


def joined(
    parts: Sequence[Sequence[Hypothesis]], num_hypotheses: int, *, draws: bool, attention: bool
) -> tuple[Hypothesis, ...]:
    """Returns the best hypotheses of a whole text, best first, of those of its parts.

    The parts are independent, so a score of a whole is the sum of theirs.

    Args:
        parts: the hypotheses of each part, best first; at least one of each.
        num_hypotheses: the number of hypotheses, if there are enough combinations.
        draws: the hypotheses were drawn: the first draws are joined, then the second ones, and so on.
        attention: the wholes have attention, not only their parts.
    """
    if draws:
        return tuple(_joined(whole, attention=attention) for whole in zip(*parts, strict=False))
    wholes: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for hypotheses in parts:
        longer = ((score + added.score, (*whole, added)) for score, whole in wholes for added in hypotheses)
        wholes = nlargest(num_hypotheses, longer, key=lambda whole: whole[0])
    return tuple(_joined(whole, attention=attention) for _, whole in wholes)


def _joined(parts: Sequence[Hypothesis], *, attention: bool) -> Hypothesis:
    """Returns the hypothesis that the parts' hypotheses make together.

    Its summands are those of its tokens, and of its own end: the log-probability of a part's end is added to that of
    the token before it, and the end's row of attention is left out.
    """
    log_probs: list[float] = []
    end = 0.0  # of parts without tokens
    for part in parts:
        summands = list(part.token_log_probs)
        if summands:
            summands[0] += end
            end = 0.0
        if part is not parts[-1] and len(summands) > len(part.token_ids):
            end = summands.pop()
            if summands:
                summands[-1] += end
                end = 0.0
        log_probs += summands
    is_cut = any(part.finish_reason is FinishReason.LENGTH for part in parts)
    return Hypothesis(
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        token_log_probs=tuple(log_probs),
        log_prob=sum(part.log_prob for part in parts),
        score=sum(part.score for part in parts),
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.EOS,
        attention=_blocks(parts, len(log_probs)) if attention else None,
        parts=tuple(parts),
    )


def _blocks(parts: Sequence[Hypothesis], num_rows: int) -> Floats:
    """Returns the parts' attention as blocks on the diagonal of a matrix [num_rows, source length]."""
    weights = [part.attention for part in parts if part.attention is not None]
    columns = [0, *accumulate(block.shape[1] for block in weights)]
    whole = np.zeros((num_rows, columns[-1]), np.float32)
    row = 0
    for part, block, first, last in zip(parts, weights, columns[:-1], columns[1:], strict=True):
        num_kept = len(block) if part is parts[-1] else len(part.token_ids)
        whole[row : row + num_kept, first:last] = block[:num_kept]
        row += num_kept
    return whole
