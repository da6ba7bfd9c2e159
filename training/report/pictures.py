"""The pictures of a report as SVG: curves by matplotlib, attention maps, and the trees of beams.

Curves of a report contain no text of users: runs are letters, which the page explains. Attention maps and trees are
drawn by templates and not by matplotlib, because their tokens are of any script, and fonts are the reader's.
"""

import io
import itertools
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Template
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from attendant.runtime.decoding.trace import Fate, TracedSearch
from attendant.runtime.stepper import Floats
from attendant.training.evaluation.bootstrap import Interval, LengthBin
from attendant.training.evaluation.confidence import NUM_BINS, Reliability
from attendant.training.evaluation.metrics import LOWER_IS_BETTER
from attendant.training.report.curves import Curve
from attendant.training.report.gradients import Reach

PALETTE = {
    "ink": ("#1c2530", "#e6ebf0"),
    "faint": ("#5d6b7a", "#9aa7b4"),
    "rule": ("#d9dfe6", "#333d48"),
    "heat": ("#0b6bb0", "#58b4f0"),
    "paper": ("#ffffff", "#12171d"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#c94f00", "#ff9147"),
    "series-3": ("#00795c", "#2fc6a0"),
    "series-4": ("#a8458a", "#e79bcb"),
    "series-5": ("#7a6200", "#e0c04a"),
    "series-6": ("#3f4a57", "#c5ced8"),
}
"""Each color by its name: as it is drawn, and in the dark."""

NAMES = {color: name for name, (color, _) in PALETTE.items()}
INK, FAINT, RULE, HEAT, PAPER, *SERIES = NAMES
LINE_STYLES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")


def on_page(svg: str, prefix: str) -> str:
    """Returns the picture with the page's variable for every color in a style, and `prefix` before every id."""
    colors = re.compile("|".join(NAMES), re.IGNORECASE)

    def variable(color: re.Match[str]) -> str:
        return f"var(--{NAMES[color[0].lower()]},{color[0]})"

    def tag_on_page(tag: re.Match[str]) -> str:
        with_names = re.sub(r'(\sid="|url\(#|href="#)', rf"\1{prefix}", tag[0])
        return re.sub(r'style="[^"]*"', lambda style: colors.sub(variable, style[0]), with_names)

    return re.sub(r"<[^<>]+>", tag_on_page, svg)  # Texts stay as they are.


def on_paper(svg: str) -> str:
    """Returns the drawing on a white ground: a Markdown viewer may have a page of any color."""
    opened = svg.index(">") + 1
    return f'{svg[:opened]}<rect width="100%" height="100%" style="fill:{PAPER}"/>{svg[opened:]}\n'


def variables(*, dark: bool) -> str:
    """Returns the declarations of the colors, for a style sheet."""
    return "".join(f"--{name}:{shades[dark]};" for name, shades in PALETTE.items())


def series_color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def line_of(number: int) -> dict[str, Any]:
    """Returns the color and the style of a series' line, in matplotlib's notation."""
    return {"color": series_color(number), "linestyle": LINE_STYLES[number % len(LINE_STYLES)]}


def marker(number: int) -> str:
    """Returns the marker of a series, in matplotlib's notation."""
    return MARKERS[number % len(MARKERS)]


def series_name(number: int) -> str:
    """Returns the variable of a series' color."""
    return NAMES[series_color(number)]


TEMPLATES = Path(__file__).parent / "templates"
STYLE = TEMPLATES / "charts.mplstyle"

LETTER_HEIGHT = 9.0  # Points between the letters of two lines that end at one place.
LOGARITHMIC_FROM = 20.0  # A loss that falls by more than this factor is drawn on a logarithmic axis.
METRIC_LABELS = {
    "loss": "loss (nats per token)",
    "wer": "WER (%)",
    "per": "PER (%)",
    "cer": "CER (%)",
    "ter": "TER (%)",
    "exact_match": "exact match (%)",
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge_1": "ROUGE-1 (F1 in %)",
    "rouge_2": "ROUGE-2 (F1 in %)",
    "rouge_l": "ROUGE-L (F1 in %)",
    "perplexity": "perplexity",
    "word_perplexity": "perplexity per word",
}

Letters = Sequence[str]  # Names of the curves, in order; a single curve has no name in the picture.


def course_chart(
    metric: str, validation: Sequence[Curve], letters: Letters, *, by_time: bool, train: Sequence[Curve] = ()
) -> str:
    """Draws the loss or a metric over steps or minutes: of training thin, of validation thick."""
    with _chart(_title(metric)) as axis:
        for number, curve in enumerate(train):
            thinned = curve.thinned()
            axis.plot(_places(thinned, by_time), thinned.values, color=series_color(number), linewidth=0.8, alpha=0.55)
        for number, curve in enumerate(validation):
            if len(curve):
                _plot(axis, _places(curve, by_time), curve.values, number, letters, has_marks=True)
        if metric == "loss":
            values = np.concatenate([curve.values for curve in (*train, *validation)])
            positive = values[np.isfinite(values) & (values > 0)]
            if len(positive) and positive.max() >= LOGARITHMIC_FROM * positive.min():
                _make_logarithmic(axis)
        axis.set_xlabel("minutes of training" if by_time else "steps")
        axis.set_xlim(left=0)
        if not by_time:
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        return _svg(axis, letters)


def length_chart(metric: str, of_runs: Sequence[Sequence[LengthBin]], letters: Letters, *, unit: str) -> str:
    """Draws a metric by source length, with bands of the 95 % intervals."""
    counts: dict[tuple[int, str], set[int]] = {}
    for each in itertools.chain.from_iterable(of_runs):
        counts.setdefault((each.low, each.name), set()).add(each.num_examples)
    names = [name for _, name in sorted(counts)]
    with _chart(_title(metric)) as axis:
        for number, bins in enumerate(of_runs):
            places = np.array([names.index(each.name) for each in bins])
            color, values = series_color(number), np.array([each.value for each in bins])
            # The band is as narrow as the line at a bin without an interval.
            bounds = [each.interval or Interval(each.value, each.value) for each in bins]
            if any(each.interval for each in bins):
                low, high = [each.low for each in bounds], [each.high for each in bounds]
                axis.fill_between(places, low, high, color=color, alpha=0.16, linewidth=0)
                axis.vlines(places, low, high, color=color, alpha=0.55, linewidth=1.0)
            _plot(axis, places, values, number, letters, has_marks=True)
        labels = [_with_count(name, counts[low, name]) for low, name in sorted(counts)]
        axis.set_xticks(range(len(names)), labels)
        axis.set_xlim(-0.4, len(names) - 0.6)
        axis.tick_params(axis="x", labelsize=8)
        axis.set_xlabel(f"source {unit} (below: examples)")
        return _svg(axis, letters)


def reach_chart(title: str, reaches: Sequence[Reach | None], letters: Letters, *, distance: str) -> str:
    """Draws relative gradient norms by distance: medians, with bands from quartile to quartile."""
    with _chart(title) as axis:
        _make_logarithmic(axis)
        axis.axhline(1.0, color=FAINT, linewidth=0.8)
        for number, reach in enumerate(reaches):
            if reach is not None and len(reach.distances):
                color = series_color(number)
                axis.fill_between(reach.distances, reach.low, reach.high, color=color, alpha=0.16, linewidth=0)
                _plot(axis, reach.distances, reach.median, number, letters)
        axis.set_xlabel(distance)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg(axis, letters)


def reliability_chart(result: Reliability) -> str:
    """Draws the share of right answers by confidence, with 95 % intervals, and how confident answers are."""
    with styled_figure((4.5, 4.6)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1.0))
        upper.set_title("right answers, by confidence")
        upper.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
        places = [each.confidence for each in result.bins]
        for place, each in zip(places, result.bins, strict=True):
            if (interval := each.share_right.interval) is not None:
                upper.vlines(place, interval.low, interval.high, color=series_color(0), alpha=0.55, linewidth=1.0)
        shares = [each.share_right.value for each in result.bins]
        upper.plot(places, shares, color=series_color(0), linestyle="", marker=marker(0))
        upper.set_ylim(0, 1.02)
        lower.set_title("answers, by confidence")
        for number, (name, counts) in enumerate(_counts_by_confidence(result)):
            if total := sum(counts):
                heights = np.array(counts) / total
                edges = np.linspace(0, 1, NUM_BINS + 1)
                lower.stairs(heights, edges, baseline=None, label=f"{name} ({total:,})", **line_of(number))
        lower.axvline(result.warn_below, color=FAINT, linewidth=0.8, linestyle=":")
        lower.set_ylim(bottom=0)
        lower.set_xlim(0, 1)
        lower.set_xlabel("confidence (dotted: warnings below)")
        legend = lower.legend(frameon=False, fontsize=8, loc="upper center")
        for text in legend.get_texts():
            text.set_parse_math(False)  # A file's name may contain "$".
        return svg_of(figure)


def _counts_by_confidence(result: Reliability) -> Iterator[tuple[str, Sequence[int]]]:
    """Yields kinds of answers with their numbers in the bins of confidence."""
    right, wrong = [0] * NUM_BINS, [0] * NUM_BINS
    for each in result.bins:
        place = round(each.low * NUM_BINS)
        right[place] = each.num_right
        wrong[place] = each.num_answers - each.num_right
    yield "right", right
    yield "wrong", wrong
    for inputs in result.foreign:
        # matplotlib hides labels that begin with an underscore.
        yield Path(inputs.name).stem.lstrip("_"), inputs.num_in_bins


def _title(metric: str) -> str:
    label = METRIC_LABELS.get(metric, metric)
    if metric == "loss":
        return label
    return f"{label}, {'lower' if metric in LOWER_IS_BETTER else 'higher'} is better"


@contextmanager
def styled_figure(size: tuple[float, float] | None = None) -> Iterator[Figure]:
    """Yields a figure in the style of a report, which applies until the context ends.

    Args:
        size: width and height in inches. If None, the style's.
    """
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        yield figure


@contextmanager
def _chart(title: str) -> Iterator[Axes]:
    with styled_figure() as figure:
        axis = figure.add_subplot()
        axis.set_title(title)
        yield axis


def _figure(axis: Axes) -> Figure:
    figure = axis.get_figure(root=True)
    assert figure is not None
    return figure


def _svg(axis: Axes, letters: Letters) -> str:
    _name_ends(axis, letters)
    return svg_of(_figure(axis))


def svg_of(figure: Figure) -> str:
    """Returns a figure as text from its first tag on; equal figures give equal texts."""
    written = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # The page's reader has the fonts: text stays text.
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    return svg[svg.index("<svg") :].strip()


def _plot(
    axis: Axes, places: NDArray[Any], values: NDArray[Any], number: int, letters: Letters, *, has_marks: bool = False
) -> None:
    marks = marker(number) if has_marks else None
    axis.plot(places, values, label=letters[number], marker=marks, **line_of(number))


def _name_ends(axis: Axes, letters: Letters) -> None:
    """Writes each line's letter next to its end, one above another if they would overlap."""
    if len(letters) < 2:
        return
    figure = _figure(axis)
    figure.draw_without_rendering()  # settles where things are
    lines = {str(line.get_label()): line for line in axis.lines if line.get_label() in letters}
    ends = {letter: np.asarray(line.get_xydata())[-1] for letter, line in lines.items()}
    shown = {letter: axis.transData.transform(end) * 72 / figure.dpi for letter, end in ends.items()}
    taken: list[tuple[float, float]] = []
    for letter in sorted(shown, key=lambda letter: float(shown[letter][1])):
        x, y = shown[letter]
        place = max([y, *(other + LETTER_HEIGHT for other_x, other in taken if abs(other_x - x) < LETTER_HEIGHT)])
        taken.append((x, place))
        axis.annotate(
            letter,
            (ends[letter][0], ends[letter][1]),
            xytext=(6, place - y),
            textcoords="offset points",
            color=lines[letter].get_color(),
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )


def _places(curve: Curve, by_time: bool) -> NDArray[np.float64]:
    return curve.seconds / 60 if by_time else curve.steps


def _make_logarithmic(axis: Axes) -> None:
    """Sets ticks at 1, 2 and 5 of every decade, so that a range within a decade has labels too."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _with_count(name: str, counts: Collection[int]) -> str:
    """Returns a bin's name and number of examples, which differs between runs that count their own tokens."""
    fewest, most = min(counts), max(counts)
    return f"{name}\n{fewest:,}" if fewest == most else f"{name}\n{fewest:,}-{most:,}"


MAP_TEMPLATE, TREE_TEMPLATE = (
    Template((TEMPLATES / f"{name}.svg.jinja").read_text(encoding="utf-8"), autoescape=True)
    for name in ("attention_map", "beam_tree")
)

MIN_WEIGHT = 0.02  # Smaller weights can't be seen; so no row draws more than fifty cells, however long the source.
MAX_LABEL = 16
SPACES = " ▁"  # The space, and a BPE tokenizer's symbol for it (training/data/tokenization.py).
LARGE_CELL, SMALL_CELL = 24.0, 13.0
FEW_TOKENS, MANY_TOKENS = 10, 40  # Up to FEW_TOKENS cells are large, from MANY_TOKENS on they are small.
LABEL_SIZE = 0.5  # Size of a label's letters, in cells; never below MIN_LABEL_SIZE.
MIN_LABEL_SIZE = 9.5
LETTER_WIDTH = 0.62
SLANT = 0.87  # Labels of columns rise at sixty degrees, this being its sine.


def attention_map(weights: Floats, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> str:
    """Draws weights [T, S] of T target and S source tokens."""
    num_rows, num_columns = weights.shape
    cell = float(np.interp(max(num_rows, num_columns), (FEW_TOKENS, MANY_TOKENS), (LARGE_CELL, SMALL_CELL)))
    size = max(MIN_LABEL_SIZE, LABEL_SIZE * cell)
    columns, rows = [_label(token) for token in source_tokens], [_label(token) for token in target_tokens]
    left = max((_width(label) for label in rows), default=0.0) * size + 8
    # If most labels are letters, they are upright and only the others are turned; else all are turned.
    are_letters = sum(len(label) == 1 for label in columns) * 2 > num_columns
    lengths = [0.0 if are_letters and len(label) == 1 else _width(label) * size for label in columns]
    top = max(lengths, default=0.0) * SLANT + size * 1.4
    # A turned label ends half its length to the right of its place.
    right = max((place + 0.5) * cell + length / 2 + size for place, length in enumerate(lengths))
    shown = weights.astype(np.float64)
    drawn: str = MAP_TEMPLATE.render(
        width=round(left + max(num_columns * cell + 4, right)),
        height=round(top + num_rows * cell + 4),
        left=left,
        top=top,
        cell=cell,
        size=size,
        rows=rows,
        columns=columns,
        lengths=lengths,
        cells=[(row, column, shown[row, column]) for row, column in np.argwhere(shown >= MIN_WEIGHT).tolist()],
        rule=RULE,
        ink=INK,
        heat=HEAT,
    )
    return drawn


def _label(token: str) -> str:
    """Returns a token to show: with visible spaces, without control characters, at most MAX_LABEL long."""
    shown = "".join("␣" if c in SPACES else c if c.isprintable() else "�" for c in token)
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


def _width(label: str) -> float:
    """Returns the approximate width in font sizes: combining characters have none, wide ones 1."""
    return sum(
        0.0 if unicodedata.combining(c) else 1.0 if unicodedata.east_asian_width(c) in "WF" else LETTER_WIDTH
        for c in label
    )


NUM_CUT = 3  # Number of cut candidates that are drawn at each step of a beam: those that came nearest.
MAX_COLUMNS = 40
COLUMN, ROW, BOX_WIDTH, BOX_HEIGHT = 92, 26, 66, 20
THIN, THICK = 1.0, 8.0  # Branches of the least and the most probable symbols.
MAX_BOX_LABEL = 9
FATES = {
    Fate.LIVES: "goes on",
    Fate.ENDED: "ended",
    Fate.RANK: "cut: the beam was full of better ones",
    Fate.LENGTH: "cut at the longest",
    Fate.SEARCH_ENDED: "cut: the search ended",
}


@dataclass(slots=True)
class Node:
    """A hypothesis of a beam's tree, named by its last symbol.

    Attributes:
        column, row: place in the picture.
        log_prob: log-probability of the symbol.
        total: log-probability of the hypothesis.
        is_chosen: it leads to the output.
    """

    column: int
    label: str
    log_prob: float
    total: float
    fate: Fate
    parent: "Node | None"
    row: int = 0
    is_chosen: bool = False

    @property
    def is_cut(self) -> bool:
        return self.fate not in (Fate.LIVES, Fate.ENDED)


def beam_tree(search: TracedSearch, tokens_of: Callable[[Iterable[int]], list[str]]) -> str:
    """Draws a search as a tree: a column per step, up to MAX_COLUMNS, with the best of the candidates that were cut."""
    columns = _columns(search, tokens_of)
    nodes = [node for column in columns for node in column]
    drawn: str = TREE_TEMPLATE.render(
        width=len(columns) * COLUMN,
        height=max(map(len, columns)) * ROW,
        # Branches of the output are above all others.
        nodes=sorted(nodes[1:], key=lambda node: node.is_chosen),
        fates=FATES,
        column=COLUMN,
        row=ROW,
        box=(BOX_WIDTH, BOX_HEIGHT),
        most=MAX_BOX_LABEL,
        width_of=lambda node: THIN + (THICK - THIN) * math.exp(node.log_prob),
        percent=lambda node: f"{math.exp(node.log_prob):.1%}",
        ink=INK,
        faint=FAINT,
        rule=RULE,
        heat=HEAT,
        paper=PAPER,
    )
    return drawn


def _columns(search: TracedSearch, tokens_of: Callable[[Iterable[int]], list[str]]) -> list[list[Node]]:
    """Returns the nodes of the start and of up to MAX_COLUMNS steps.

    Those of a step are in order: those that live, those that ended, the best of those cut.
    """
    live = [Node(0, "", 0.0, 0.0, Fate.LIVES, None)]
    columns = [live]
    labels = [_label(token) for token in tokens_of(search.candidate_ids.tolist())]
    first, begin = 0, 0
    best = next((end for end in search.ended if end.hypothesis == 0), None)
    counts = [*search.num_live.tolist(), 0]  # None live after the last step.
    for step, (num_live, num_following) in enumerate(itertools.pairwise(counts)):
        made: dict[tuple[int, int], Node] = {}
        for place in range(num_live):
            end = begin + int(search.num_candidates[first + place])
            for number in range(begin, end):
                made[place, int(search.candidate_ids[number])] = Node(
                    step + 1,
                    labels[number],
                    float(search.candidate_log_probs[number]),
                    float(search.candidate_totals[number]),
                    Fate(int(search.fates[number])),
                    live[place],
                )
            begin = end
        first += num_live
        if best is not None and best.step == step:
            chosen: Node | None = live[best.live]
            while chosen is not None:
                chosen.is_chosen, chosen = True, chosen.parent
            for (place, _), node in made.items():
                node.is_chosen = place == best.live and node.fate is Fate.ENDED
        following = slice(first, first + num_following)
        parents, token_ids = search.parents[following].tolist(), search.token_ids[following].tolist()
        live = [made[key] for key in zip(parents, token_ids, strict=True)]
        ended = [node for node in made.values() if node.fate is Fate.ENDED]
        cut = [node for node in made.values() if node.is_cut]
        column = [*live, *ended, *sorted(cut, key=lambda node: -node.total)[:NUM_CUT]]
        for row, node in enumerate(column):
            node.row = row
        columns.append(column)
    return columns[: MAX_COLUMNS + 1]  # All steps were read, because the way to the output is traced from its end.
