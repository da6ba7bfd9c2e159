"""A report as one HTML page, by the template beside this file; it escapes every text of a user's."""

import re
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attendant.training.report.page.blocks import Block, Picture, Report
from attendant.training.report.pictures.colors import series_name, variables, with_variables


def html_page(report: Report) -> str:
    """The whole page."""
    template = ENVIRONMENT.get_template("page.html.jinja")
    return template.render(report=report, light=variables(dark=False), dark=variables(dark=True))


def _kind(block: Block) -> str:
    return type(block).__name__


def _drawing(picture: Picture) -> Markup:
    """The drawing, which is ours and no user's, in the page's colors, with ids that no other of the page has."""
    prefix = f"{picture.name}-"
    with_ids = re.sub(r'(<[^<>]*?\s)id="', rf'\1id="{prefix}', picture.svg)
    return Markup(with_variables(re.sub(r'(url\(#|href="#)', rf"\1{prefix}", with_ids)))


ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {"kind": _kind, "drawing": _drawing, "series": series_name}
