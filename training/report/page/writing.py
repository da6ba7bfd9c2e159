"""A report's files: one page that needs nothing else, or Markdown with its pictures in a folder beside it."""

from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attendant.runtime.errors import UserError
from attendant.runtime.files import told_of, write_text
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, interval_text
from attendant.training.evaluation.evaluating import describe_search
from attendant.training.report.composing import Picture, Report
from attendant.training.report.findings.examples import align, nearest_reference
from attendant.training.report.page import wording
from attendant.training.report.pictures.attention_map import MIN_WEIGHT
from attendant.training.report.pictures.charts import METRIC_LABELS
from attendant.training.report.pictures.colors import on_page, on_paper, series_name, variables

SUFFIXES = (".html", ".md")


def check_form(path: Path) -> None:
    """Raises UserError where a file's name says no form of a report; said before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path}: must end in {' or '.join(SUFFIXES)}")


def write_report(report: Report, path: Path) -> None:
    """Writes the report in the form that the name's ending says; what stood there is replaced. Raises CantWrite."""
    if path.suffix == ".html":
        write_text(path, html_page(report))
    else:
        folder = path.with_name(f"{path.stem}_pictures")
        with told_of(folder):
            folder.mkdir(exist_ok=True)
        text, pictures = markdown_page(report, folder.name)
        for name, svg in pictures.items():
            write_text(folder / name, svg)
        write_text(path, text)


def html_page(report: Report) -> str:
    """The report as one page; every text of a user's is escaped."""
    return _render("html", report, light=variables(dark=False), dark=variables(dark=True))


def markdown_page(report: Report, folder: str) -> tuple[str, dict[str, str]]:
    """The report as Markdown, every text of a user's escaped; and its pictures by their file's name.

    Args:
        folder: of the pictures, as the text refers to it.
    """
    pictures: dict[str, str] = {}

    def place(picture: Picture) -> str:
        pictures[f"{picture.name}.svg"] = on_paper(picture.svg)
        return f"{quote(folder)}/{picture.name}.svg"

    return _render("markdown", report, place=place), pictures


def _render(form: str, report: Report, **more: Any) -> str:
    shown = {field.name: getattr(report, field.name) for field in fields(report)}
    return ENVIRONMENTS[form].get_template(f"{form}.jinja").render(shown, forms=f"{form}_forms.jinja", **more)


_HTML = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_HTML.filters |= {
    "differing_fields": wording.differing_fields,
    "drawing": lambda picture: Markup(on_page(picture.svg, f"{picture.name}-")),  # ours, and no user's
    "duration": wording.duration_text,
    "escaped": wording.escaped,
    "fence": wording.fence,
    "fixed": wording.fixed,
    "interval": interval_text,
    "model": wording.model_text,
    "number": wording.count_text,
    "search": describe_search,
    "series": series_name,
    "short_count": wording.short_count,
    "span": wording.span_text,
}
_HTML.globals |= {
    "align": align,
    "cells": wording.CELLS,
    "labels": METRIC_LABELS,
    "min_weight": MIN_WEIGHT,
    "nearest_reference": nearest_reference,
    "num_resamples": DEFAULT_RESAMPLES,
}
ENVIRONMENTS = {"html": _HTML, "markdown": _HTML.overlay(autoescape=False)}
"""By the form. In Markdown the forms themselves escape."""
