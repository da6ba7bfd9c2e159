"""The measured parts as a Markdown page, and on the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.results import Cell, Measured, Part


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
    digits = 2
    size = abs(cell)
    while size < 1 and digits < 6:
        size, digits = size * 10, digits + 1
    while size >= 10 and digits > 0:
        size, digits = size / 10, digits - 1
    return f"{cell:.{digits}f}"


def page(title: str, about: str, parts: Mapping[str, Measured]) -> str:
    """One section per part: what was measured, where, by which command, the table and the pictures."""
    sections = [f"# {title}\n\n{about}"]
    for measured in parts.values():
        part, machine = measured.part, measured.machine
        facts = (
            f"`{measured.command}`, {machine.date}: {machine.cpu}, {machine.num_cores} cores, load {machine.load:.1f} "
            f"when it began; Python {machine.python}."
        )
        pictures = [f"![{picture.title}]({picture.file})" for picture in part.pictures]
        table = markdown_table(part.columns, part.rows)
        sections.append("\n\n".join([f"## {part.title}", part.about, facts, table, *pictures]))
    return "\n\n".join(sections) + "\n"


def print_part(part: Part, console: Console) -> None:
    print_table(part.title, part.columns, part.rows, console)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    console.print(table)
