"""Results as Markdown pages with pictures (SVG)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

from matplotlib.figure import Figure

from benchmarks.harness.results import Cell, Measured, Picture

SIZE_INCHES = (7.5, 4.2)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The first column is text and stands left, the others right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(cell: Cell) -> str:
    """A number with three significant digits, or all of its whole part."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if cell == 0 or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:#.3g}".rstrip(".")


def write_page(path: Path, title: str, about: str, parts: Mapping[str, Measured]) -> None:
    """One section per part: what was measured, where, by which command, the table and the pictures, which are drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = [f"# {title}\n\n{about}"]
    for one in parts.values():
        part, machine = one.part, one.machine
        facts = (
            f"`{one.command}`, {machine.date}: {machine.cpu}, {machine.num_cores} cores, load {machine.load:.1f} "
            f"when it began; Python {machine.python}."
        )
        for picture in part.pictures:
            draw(picture, path.parent / picture.file)
        pictures = [f"![{picture.title}]({picture.file})" for picture in part.pictures]
        paragraphs = [f"## {one.title}", one.about, part.note, facts, markdown_table(part.columns, part.rows)]
        sections.append("\n\n".join(paragraph for paragraph in [*paragraphs, *pictures] if paragraph))
    path.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def draw(picture: Picture, path: Path) -> None:
    """Writes the file; the same bytes for the same picture."""
    with matplotlib.rc_context({"svg.hashsalt": picture.file, "svg.fonttype": "none"}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for name, points in picture.series.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
        if picture.logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(title=picture.title, xlabel=picture.x_label, ylabel=picture.y_label)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
