"""A strict reader of HTML: it requires that every element is closed, and lists all that could run or load."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"base", "meta", "br", "hr", "img", "link", "input"}
LOADING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}


@dataclass
class Page:
    """The elements, references and text of a page.

    Attributes:
        elements: names, in order.
        ids: in order.
        references: the values of all attributes that load or link.
        handlers: names of attributes that run something.
        text: the text of all elements except style.
    """

    elements: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    text: str = ""


def read_page(text: str) -> Page:
    """Reads a page. Raises AssertionError if an element is not closed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, f"not closed: {reader.open}"
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.page.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append(tag)
        for name, value in attrs:
            if name == "id":
                self.page.ids.append(value or "")
            elif name in LOADING:
                self.page.references.append(value or "")
            elif name.startswith("on"):
                self.page.handlers.append(name)
