"""A report's files: one page that needs nothing else, or Markdown with its pictures in a folder beside it."""

from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.report.page.blocks import Report
from attendant.training.report.page.html_page import html_page
from attendant.training.report.page.markdown_page import markdown_page
from attendant.training.run.directory import write_text


def check_outputs(paths: Sequence[Path]) -> None:
    """Raises UserError where a report could not be written; said before anything is measured."""
    for path in paths:
        if path.suffix not in WRITERS:
            raise UserError(f"--output {path}: must end in {' or '.join(WRITERS)}")
        if not path.parent.is_dir():
            raise UserError(f"--output {path}: there is no directory {path.parent}: make it first")


def write_report(report: Report, path: Path) -> None:
    """Writes the report in the form that the name's ending says; what stood there is replaced."""
    WRITERS[path.suffix](report, path)


def _write_html(report: Report, path: Path) -> None:
    write_text(path, html_page(report))


def _write_markdown(report: Report, path: Path) -> None:
    folder = path.with_name(f"{path.stem}_pictures")
    folder.mkdir(exist_ok=True)
    text, pictures = markdown_page(report, folder.name)
    for name, svg in pictures.items():
        write_text(folder / name, svg)
    write_text(path, text)


WRITERS = {".html": _write_html, ".md": _write_markdown}
