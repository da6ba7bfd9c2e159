"""The tables and the picture of docs/experiments/long-sources.md."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from attendant.training.report.pictures.colors import LINE_STYLES, MARKERS, series_color
from experiments.long_sources.measuring import BIN, LENGTHS, NUM_BINS, measured_models, read_results
from experiments.pages import picture, spread, write_table

PAGE = "long-sources"
PANELS = (("per", "PER (%)"), ("on_word", "attention on the word that is said (%)"))


def show_long_sources() -> None:
    """Of what `measure_long_sources` has measured."""
    results = read_results()
    models = {name: [results[str(path)] for path in paths] for name, paths in measured_models().items()}
    for measure, _ in PANELS:
        rows = [
            [name, str(len(runs)), *map(spread, zip(*(one[measure] for one in runs), strict=True))]
            for name, runs in models.items()
        ]
        write_table(PAGE, measure, ["model", "runs", *(f"{length} letters" for length in LENGTHS)], rows)
    rows = [
        [
            name,
            *map(spread, zip(*(one["right"] + one["on_word_by_place"] for one in runs), strict=True)),
        ]
        for name, runs in models.items()
    ]
    which = [f"{place * BIN + 1} to {(place + 1) * BIN}" for place in range(NUM_BINS)]
    headings = [f"{what}, {sounds}" for what in ("right", "attention on the word") for sounds in which]
    write_table(PAGE, "place", ["model", *headings], rows)
    with picture(PAGE, 7.5, 3.2, columns=2) as axes:
        for axis, (measure, title) in zip(axes, PANELS, strict=True):
            for number, (name, runs) in enumerate(models.items()):
                _draw(axis, number, name, [one[measure] for one in runs])
            axis.set_title(title)
            axis.set_xscale("log")
            axis.set_xticks(LENGTHS, list(map(str, LENGTHS)))
            axis.minorticks_off()
            axis.set_xlabel("letters of the source")
            axis.set_ylim(0, 100)
        axes[0].legend(frameon=False, fontsize=7)


def _draw(axis: Axes, number: int, name: str, values: Sequence[Sequence[float]]) -> None:
    """A line of means, and a band from the lowest run to the highest."""
    color, style = series_color(number), LINE_STYLES[number % len(LINE_STYLES)]
    axis.fill_between(LENGTHS, np.min(values, 0), np.max(values, 0), color=color, alpha=0.16, linewidth=0)
    axis.plot(LENGTHS, np.mean(values, 0), color=color, linestyle=style, marker=MARKERS[number], label=name)
