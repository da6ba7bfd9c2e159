"""What a report is made of: plain values that say nothing of HTML or Markdown. All texts are as they came."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attendant.training.report.findings.examples import Span


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Prose. A note is smaller: how something was taken."""

    text: str
    is_note: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A headline number."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    entries: Sequence[Tile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts under headings.

    Attributes:
        num_texts: so many columns, the first ones, are texts; the others are numbers and stand to the right.
        folded: the table is folded away under this title, where that can be.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_texts: int = 1
    folded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing.

    Attributes:
        name: of its file, where it gets one; within a report each has another.
        svg: in the colors of training/report/pictures/colors.py.
        description: what it shows, for those who don't see it.
        caption: the texts below it.
    """

    name: str
    svg: str
    description: str
    caption: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Drawings side by side.

    Attributes:
        kind: charts shrink with the page; maps keep their size and scroll.
        has_key: the key of the runs' letters stands below.
    """

    entries: Sequence[Picture]
    kind: Literal["charts", "maps"] = "charts"
    has_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An output beside its source and the nearest of its references.

    Attributes:
        output, reference: in spans, those marked that the other has not.
        facts: short texts: metric, probability.
    """

    source: str
    output: Sequence[Span]
    reference: Sequence[Span]
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Samples:
    title: str
    entries: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Listing:
    """A file's text, folded away where that can be."""

    title: str
    text: str


Block = Paragraph | Tiles | Table | Pictures | Samples | Listing


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole.

    Attributes:
        subtitle: what was measured on what.
        runs: (letter, name) of each run, in order.
        footer: what made it.
    """

    title: str
    subtitle: str
    runs: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    footer: str
