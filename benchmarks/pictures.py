"""Pictures of the measured parts, as SVG."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

from matplotlib.figure import Figure

from benchmarks.results import Picture

SIZE_INCHES = (7.5, 4.2)


def draw(picture: Picture, path: Path) -> None:
    """Writes the file; the same bytes for the same picture."""
    with matplotlib.rc_context({"svg.hashsalt": picture.file, "svg.fonttype": "none"}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for series in picture.series:
            axes.plot(series.xs, series.ys, marker="o", markersize=4, label=series.name)
        if picture.logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(title=picture.title, xlabel=picture.x_label, ylabel=picture.y_label)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
