"""The curves of a report, by matplotlib, as SVG. No text in them is a user's: runs are letters, explained beside."""

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from attendant.training.evaluation.lengths import LengthBin
from attendant.training.evaluation.metrics import LOWER_IS_BETTER
from attendant.training.report.findings.curves import Curve
from attendant.training.report.findings.gradients import Reach
from attendant.training.report.pictures.colors import FAINT, line_style, marker, series_color

STYLE = Path(__file__).with_suffix(".mplstyle")

LETTER_HEIGHT = 9.0
"""Points between the letters of two lines that end at one place."""

LOGARITHMIC_FROM = 20.0
"""A loss that falls by more than this factor is drawn on a logarithmic axis."""

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

Letters = Sequence[str]
"""What the curves are called, in order; with a single one nothing is written beside it."""


def course_chart(
    metric: str, validation: Sequence[Curve], letters: Letters, *, by_time: bool, train: Sequence[Curve] = ()
) -> str:
    """The loss or a metric of runs over steps or minutes: of training thin, of validation thick."""
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
    """A metric by source length, with bands of the 95 % intervals."""
    counts: dict[tuple[int, str], set[int]] = {}
    for one in (one for found in of_runs for one in found):
        counts.setdefault((one.low, one.name), set()).add(one.num_examples)
    names = [name for _, name in sorted(counts)]
    with _chart(_title(metric)) as axis:
        for number, found in enumerate(of_runs):
            places = np.array([names.index(one.name) for one in found])
            bounds = [one.interval for one in found if one.interval is not None]
            color = series_color(number)
            if len(bounds) == len(found):
                low, high = [one.low for one in bounds], [one.high for one in bounds]
                axis.fill_between(places, low, high, color=color, alpha=0.16, linewidth=0)
                axis.vlines(places, low, high, color=color, alpha=0.55, linewidth=1.0)
            values = np.array([one.value for one in found])
            _plot(axis, places, values, number, letters, has_marks=True)
        labels = [_with_count(name, counts[low, name]) for low, name in sorted(counts)]
        axis.set_xticks(range(len(names)), labels)
        axis.set_xlim(-0.4, len(names) - 0.6)
        axis.tick_params(axis="x", labelsize=8)
        axis.set_xlabel(f"source {unit} (below: examples)")
        return _svg(axis, letters)


def reach_chart(title: str, reaches: Sequence[Reach | None], letters: Letters, *, distance: str) -> str:
    """Relative gradient norms by distance: medians, with bands from quartile to quartile."""
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


def _title(metric: str) -> str:
    label = METRIC_LABELS.get(metric, metric)
    if metric == "loss":
        return label
    return f"{label}, {'lower' if metric in LOWER_IS_BETTER else 'higher'} is better"


@contextmanager
def styled_figure(size: tuple[float, float] | None = None) -> Iterator[Figure]:
    """A figure in the style of a report, which holds until the context ends.

    Args:
        size: width and height in inches; None: the style's.
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
    """A drawing from its first tag on; the same one gives the same text."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    return svg[svg.index("<svg") :].strip()


def _plot(
    axis: Axes, places: NDArray[Any], values: NDArray[Any], number: int, letters: Letters, *, has_marks: bool = False
) -> None:
    marks = marker(number) if has_marks else None
    color, style = series_color(number), line_style(number)
    axis.plot(places, values, label=letters[number], color=color, linestyle=style, marker=marks)


def _name_ends(axis: Axes, letters: Letters) -> None:
    """Writes its letter beside the end of each line that has one, above one another where they would meet."""
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
        place = max([y, *(other + LETTER_HEIGHT for beside, other in taken if abs(beside - x) < LETTER_HEIGHT)])
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
    """Ticks at 1, 2 and 5 of every decade: a range within one has labels too."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _with_count(name: str, counts: Collection[int]) -> str:
    """A bin with the number of its examples; runs may differ there where each counts its own tokens."""
    fewest, most = min(counts), max(counts)
    return f"{name}\n{fewest:,}" if fewest == most else f"{name}\n{fewest:,}-{most:,}"
