"""A report's pictures and files: one HTML page that needs nothing else, or Markdown with a folder of pictures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attendant.runtime.errors import UserError
from attendant.runtime.files import translate_os_errors, write_text
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, interval_text
from attendant.training.evaluation.evaluating import describe_search
from attendant.training.report.measuring import Attended, Curve, MeasuredRun, Span, align, nearest_reference
from attendant.training.report.pictures import (
    METRIC_LABELS,
    MIN_WEIGHT,
    attention_map,
    course_chart,
    length_chart,
    on_page,
    on_paper,
    reach_chart,
    series_name,
    variables,
)
from attendant.training.run.directory import versions


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing.

    Attributes:
        name: of its file, where it gets one; within a report each has another.
        svg: in the colors of training/report/pictures.py.
        description: what it shows, for those who don't see it.
        caption: the texts below it.
    """

    name: str
    svg: str
    description: str
    caption: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What page/sections.jinja shows. All texts are as they came.

    Attributes:
        maps: by the run's letter: of the chosen examples, and of the worst.
        made_by: versions of Attendant and its libraries.
    """

    runs: Sequence[MeasuredRun]
    data_name: str
    learning_charts: Sequence[Picture]
    length_charts: Sequence[Picture]
    gradient_charts: Sequence[Picture]
    maps: Mapping[str, tuple[Sequence[Picture], Sequence[Picture]]]
    made_by: Mapping[str, str]


def compose(runs: Sequence[MeasuredRun], data_name: str) -> Report:
    """The report of one run; or of several, first against each other, then one by one."""
    return Report(
        runs=runs,
        data_name=data_name,
        learning_charts=_learning_charts(runs),
        length_charts=_length_charts(runs),
        gradient_charts=_gradient_charts(runs),
        maps={run.letter: (_maps(run, run.chosen, "chosen"), _maps(run, run.worst, "worst")) for run in runs},
        made_by=versions(),
    )


def _learning_charts(runs: Sequence[MeasuredRun]) -> list[Picture]:
    """The course of the trainings, against steps and against time; nothing where no run has a journal."""
    letters = [run.letter for run in runs]
    curves = [run.curves for run in runs]
    if not any(len(one.train_loss) or one.validation for one in curves):
        return []
    names = dict.fromkeys(["loss", *(name for one in curves for name in one.validation)])
    pictures = []
    for by_time, against in ((False, "steps"), (True, "minutes")):
        for name in names:
            validation = [one.validation.get(name, Curve.empty()) for one in curves]
            train = [one.train_loss for one in curves] if name == "loss" else []
            svg = course_chart(name, validation, letters, by_time=by_time, train=train)
            shown = "Loss" if name == "loss" else f"Validation {METRIC_LABELS.get(name, name)}"
            pictures.append(Picture(f"{name}-{against}", svg, f"{shown} against {against}"))
    return pictures


def _length_charts(runs: Sequence[MeasuredRun]) -> list[Picture]:
    """Quality against source length, metric by metric."""
    letters = [run.letter for run in runs]
    pictures = []
    for of_runs in zip(*(run.evaluation.measurements for run in runs), strict=True):
        metric, unit = of_runs[0].metric, of_runs[0].length_unit or "words"
        svg = length_chart(metric, [one.by_length for one in of_runs], letters, unit=unit)
        description = f"{METRIC_LABELS[metric]} by source length, with 95 % intervals"
        pictures.append(Picture(f"{metric}-length", svg, description))
    return pictures


def _gradient_charts(runs: Sequence[MeasuredRun]) -> list[Picture]:
    """How far back in time the loss reaches; nothing where it could not be followed."""
    letters = [run.letter for run in runs]
    found = [run.gradients for run in runs]
    if not any(found):
        return []
    states = reach_chart(
        "‖∂ℓ(T) / ∂s(T−k)‖, relative: through the decoder",
        [one.states if one else None for one in found],
        letters,
        distance="k, steps back to a decoder state",
    )
    inputs = reach_chart(
        "‖∂ℓ(T) / ∂e(j)‖, relative: to the source",
        [one.inputs if one else None for one in found],
        letters,
        distance="T + S − j, steps back to a source symbol",
    )
    described = "Gradient norm at the {} against their distance from the loss"
    return [
        Picture("gradients-states", states, described.format("decoder's states")),
        Picture("gradients-inputs", inputs, described.format("source's embeddings")),
    ]


def _maps(run: MeasuredRun, attended: Sequence[Attended], kind: str) -> list[Picture]:
    """Where the decoder looked."""
    return [
        Picture(
            name="-".join(filter(None, (run.letter, "attention", kind, str(number)))),
            svg=attention_map(one.weights, one.source_tokens, one.target_tokens),
            description=f"Attention while {one.decoded.example.source} became {one.decoded.text}",
            caption=_map_caption(one),
        )
        for number, one in enumerate(attended, 1)
    ]


def _map_caption(one: Attended) -> list[str]:
    decoded = one.decoded
    said = [f"{decoded.example.source} → {decoded.text}"]
    if decoded.example.references:
        nearest = nearest_reference(decoded.text, decoded.example.references)
        said.append("as the reference" if nearest.split() == decoded.text.split() else f"reference: {nearest}")
    return said


CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn": "tanh"}

ACTIVE = re.compile(r"[\\`*_\[\]|~<>&]|^[#+=-]|^\d{1,9}[.)](?=\s|$)")
"""What Markdown, or the HTML in it, could take for more than itself: anywhere, or where a line begins."""

ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escaped(text: str) -> str:
    """A text as Markdown that shows it and does nothing, on one line."""
    return ACTIVE.sub(lambda found: ENTITIES.get(found[0], f"{found[0][:-1]}\\{found[0][-1]}"), " ".join(text.split()))


def span_text(span: Span) -> str:
    """Returns a part of a line as Markdown, bold if only one of two texts has it. Blanks at its ends stay: outside of
    the asterisks, which Markdown does not read beside a blank.
    """
    core = escaped(span.text)
    if not core:
        return span.text if span.is_shared else "**␣**"
    before, after = (" " if end.isspace() else "" for end in (span.text[0], span.text[-1]))
    return f"{before}{core if span.is_shared else f'**{core}**'}{after}{span.space}"


def fence(text: str) -> str:
    """What a listing of the text stands between in Markdown: longer than all that is like it in the text."""
    return "`" * max([3, *(len(found) + 1 for found in re.findall("`{3,}", text))])


def differing_fields(runs: Sequence[MeasuredRun]) -> list[list[str]]:
    """The fields in which the recipes are not all equal: name, and value of each run."""
    flat = [run.loaded.recipe.fields() for run in runs]
    return [
        [name, *(_shown(fields.get(name)) for fields in flat)]
        for name in dict.fromkeys(name for fields in flat for name in fields)
        if len({repr(fields.get(name)) for fields in flat}) > 1
    ]


def model_text(run: MeasuredRun) -> str:
    """The architecture in a few words."""
    model = run.loaded.recipe.model
    layers = f"{model.encoder.num_layers}+{model.decoder.num_layers} layers"
    attention = f"{model.attention.score} attention" if model.has_attention else "no attention"
    return f"{CELLS[model.cell]} {model.hidden_size}, {layers}, {attention}"


def fixed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def count_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def short_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k" if count >= 1e4 else f"{count:,}"


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


SUFFIXES = (".html", ".md")
TEMPLATES = Path(__file__).parent / "templates"


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
        with translate_os_errors(folder):
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
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_HTML.filters |= {
    "differing_fields": differing_fields,
    "drawing": lambda picture: Markup(on_page(picture.svg, f"{picture.name}-")),  # ours, and no user's
    "duration": duration_text,
    "escaped": escaped,
    "fence": fence,
    "fixed": fixed,
    "interval": interval_text,
    "model": model_text,
    "number": count_text,
    "search": describe_search,
    "series": series_name,
    "short_count": short_count,
    "span": span_text,
}
_HTML.globals |= {
    "align": align,
    "cells": CELLS,
    "labels": METRIC_LABELS,
    "min_weight": MIN_WEIGHT,
    "nearest_reference": nearest_reference,
    "num_resamples": DEFAULT_RESAMPLES,
}
ENVIRONMENTS = {"html": _HTML, "markdown": _HTML.overlay(autoescape=False)}
"""By the form. In Markdown the forms themselves escape."""
