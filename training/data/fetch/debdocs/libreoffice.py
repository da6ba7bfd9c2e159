"""LibreOffice's help: the same paragraphs, under the same ids, in every language."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

TEXT_TAGS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
ID_PREFIXES = ("par_id", "hd_id", "bm_id")
OTHER_SYSTEMS = {"MAC", "UNIX", "WIN"}
"""Classes of what is said for one operating system; beside it stands what is said for the others."""
VOID_TAGS = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
HELP = Path("usr/share/libreoffice/help")


def help_pages(root: Path, language: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The help's pages, sorted: key (`lo:swriter/main.html`) -> their pairs of paragraphs.

    Args:
        root: where the packages are unpacked.
        language: as the help's directories are named: `fr`, `pt-BR`.
    """
    english = root / HELP / "en-US/text"
    for path in sorted(english.rglob("*.html")):
        translation = root / HELP / language / "text" / path.relative_to(english)
        if translation.exists():
            sources, targets = (paragraphs(file.read_text(encoding="utf-8")) for file in (path, translation))
            pairs = [(text, targets[key]) for key, text in sources.items() if key in targets]
            yield f"lo:{path.relative_to(english).as_posix()}", pairs


def paragraphs(page: str) -> dict[str, str]:
    """A page's paragraphs and headings by their ids, code left out. Where an id comes twice, the first counts."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return parser.found


class _Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._id: str | None = None
        self._text: list[str] = []
        self._open: list[bool] = []  # of the elements within the paragraph: is it, or what it is in, left out?
        self._num_pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "pre":
            self._num_pre += 1
        if self._id is not None:
            if tag not in VOID_TAGS:
                self._open.append(self._left_out or attributes.get("class", "") in OTHER_SYSTEMS)
            elif tag == "br":
                self._text.append(" ")
        elif (
            tag in TEXT_TAGS
            and attributes.get("id", "").startswith(ID_PREFIXES)
            and "code" not in attributes.get("class", "")
            and not self._num_pre
        ):
            self._id = attributes["id"]
            self._text.clear()

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._num_pre -= 1
        if self._id is None or tag in VOID_TAGS:
            return
        if self._open:
            self._open.pop()
        else:
            self.found.setdefault(self._id, " ".join("".join(self._text).split()))
            self._id = None

    def handle_data(self, data: str) -> None:
        if self._id is not None and not self._left_out:
            self._text.append(data)

    @property
    def _left_out(self) -> bool:
        return bool(self._open) and self._open[-1]
