"""A report's pictures and files: one HTML page that needs nothing else, or Markdown with a folder of pictures."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from attendant.runtime.decoding.trace import SearchEnd
from attendant.runtime.errors import UserError
from attendant.runtime.files import translate_os_errors, write_text
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, interval_text, value_text
from attendant.training.evaluation.evaluating import describe_search
from attendant.training.report import pictures as draw
from attendant.training.report.curves import NO_CURVE, LearningCurves
from attendant.training.report.judging import Span, align, nearest_reference
from attendant.training.report.measuring import Attended, MeasuredRun
from attendant.training.run.directory import versions

SUFFIXES = (".html", ".md")
ENDINGS = {
    SearchEnd.EOS: "every hypothesis had ended",
    SearchEnd.BOUND: "nothing that went on could still score higher",
    SearchEnd.PATIENCE: "as many had ended as its patience allows",
    SearchEnd.LENGTH: "the hypotheses were at their longest",
    SearchEnd.BANS: "no symbol was left to go on with",
}
CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn": "tanh"}
# Characters that Markdown, with GitHub's formulas, or the HTML in it could take for markup; some only begin a line.
ACTIVE = re.compile(r"[\\`*_\[\]|~<>&$]|^[#+=-]|^\d{1,9}[.)](?=\s|$)")
RIGHT_TO_LEFT = frozenset(("R", "AL", "AN", "RLE", "RLO", "RLI"))  # Unicode's bidirectional classes.
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing.

    Attributes:
        name: name of its file, unique within a report.
        svg: in the colors of training/report/pictures.py.
        description: a text for readers who can't see it.
        caption: the texts below it.
    """

    name: str
    svg: str
    description: str
    caption: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of templates/sections.jinja; no text is escaped.

    Attributes:
        maps: run's letter -> kind -> maps: of the "chosen" examples, the "worst", and one in the "course" of training.
        trees: run's letter -> the beams of its worst outputs.
        made_by: versions of Attendant and its libraries.
    """

    runs: Sequence[MeasuredRun]
    data_name: str
    learning_charts: Sequence[Picture]
    length_charts: Sequence[Picture]
    gradient_charts: Sequence[Picture]
    maps: Mapping[str, Mapping[str, Sequence[Picture]]]
    trees: Mapping[str, Sequence[Picture]]
    made_by: Mapping[str, str]

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the page in a frame, because it has its own styles."""
        # Without a base of its own, the page's links to its sections would load the notebook into the frame.
        page = html_page(self).replace("<head>", '<head><base href="about:srcdoc">', 1)
        return f'<iframe srcdoc="{escape(page)}" title="Report" style="width:100%;height:80vh;border:0"></iframe>'


def compose(runs: Sequence[MeasuredRun], data_name: str) -> Report:
    """Draws the report of one run, or of several that are compared with the first."""
    return Report(
        runs=runs,
        data_name=data_name,
        learning_charts=learning_charts([run.curves for run in runs], [run.letter for run in runs]),
        length_charts=_length_charts(runs),
        gradient_charts=_gradient_charts(runs),
        maps={run.letter: _maps(run) for run in runs},
        trees={run.letter: _trees(run) for run in runs},
        made_by=versions(),
    )


def learning_charts(
    curves: Sequence[LearningCurves], letters: draw.Letters, against: Sequence[str] = ("steps", "minutes")
) -> list[Picture]:
    """Draws trainings against steps and against time; nothing if no run has a journal."""
    if not any(len(each.train_loss) or each.validation for each in curves):
        return []
    names = dict.fromkeys(["loss", *(name for each in curves for name in each.validation)])
    pictures = []
    for unit in against:
        for name in names:
            validation = [each.validation.get(name, NO_CURVE) for each in curves]
            train = [each.train_loss for each in curves] if name == "loss" else []
            svg = draw.course_chart(name, validation, letters, by_time=unit == "minutes", train=train)
            shown = "Loss" if name == "loss" else f"Validation {draw.METRIC_LABELS.get(name, name)}"
            pictures.append(Picture(f"{name}-{unit}", svg, f"{shown} against {unit}"))
    return pictures


def _length_charts(runs: Sequence[MeasuredRun]) -> list[Picture]:
    """Draws quality against source length, metric by metric."""
    pictures = []
    for of_runs in zip(*(run.evaluation.measurements for run in runs), strict=True):
        metric, unit = of_runs[0].metric, of_runs[0].length_unit or "words"
        bins = [measurement.by_length for measurement in of_runs]
        svg = draw.length_chart(metric, bins, [run.letter for run in runs], unit=unit)
        description = f"{draw.METRIC_LABELS[metric]} by source length, with 95 % intervals"
        pictures.append(Picture(f"{metric}-length", svg, description))
    return pictures


def _gradient_charts(runs: Sequence[MeasuredRun]) -> list[Picture]:
    """Draws the relative gradient norms by distance; nothing if no run's gradients could be followed."""
    letters, gradients = [run.letter for run in runs], [run.gradients for run in runs]
    if not any(gradients):
        return []
    kinds = {
        "states": ("∂s(T−k)‖, relative: through the decoder", "k, steps back to a decoder state", "decoder's states"),
        "inputs": ("∂e(j)‖, relative: to the source", "T + S − j, steps back to a source symbol", "source embeddings"),
    }
    pictures = []
    for kind, (title, distance, place) in kinds.items():
        reaches = [getattr(each, kind) if each else None for each in gradients]
        svg = draw.reach_chart(f"‖∂ℓ(T) / {title}", reaches, letters, distance=distance)
        described = f"Gradient norm at the {place} against their distance from the loss"
        pictures.append(Picture(f"gradients-{kind}", svg, described))
    return pictures


def _maps(run: MeasuredRun) -> dict[str, list[Picture]]:
    """Draws the attention of the outputs that a report shows."""
    return {
        "chosen": [_map(run, each, f"chosen-{number}") for number, each in enumerate(run.chosen, 1)],
        "worst": [_map(run, each, f"worst-{number}") for number, each in enumerate(run.worst, 1)],
        "course": [_map(run, each, f"course-{number}", step) for number, (step, each) in enumerate(run.course, 1)],
    }


def _map(run: MeasuredRun, attended: Attended, name: str, step: int | None = None) -> Picture:
    """Draws the attention of an output.

    Args:
        step: step of the training. If None, the weights are the run's best.
    """
    example, output = attended.decoded.example, attended.decoded.text
    source, text = isolated(example.source), isolated(output)
    caption = [f"{source} → {text}"] if step is None else [f"step {step:,}: {text}"]
    if example.references:
        nearest = nearest_reference(output, example.references)
        is_equal = nearest.split() == output.split()
        caption.append("as the reference" if is_equal else f"reference: {isolated(nearest)}")
    svg = draw.attention_map(attended.weights, attended.source_tokens, attended.target_tokens)
    description = f"Attention while {source} became {text}"
    return Picture("-".join(filter(None, (run.letter, "attention", name))), svg, description, caption)


def _trees(run: MeasuredRun) -> list[Picture]:
    """Draws the beams of the worst outputs."""
    return [
        Picture(
            "-".join(filter(None, (run.letter, "beam", str(number)))),
            draw.beam_tree(each.search, each.tokens_of),
            f"The beam while {isolated(each.example.source)} became {isolated(each.text)}",
            [
                f"{isolated(each.example.source)} → {isolated(each.text)}",
                f"reference: {isolated(nearest_reference(each.text, each.example.references))}",
                f"{len(each.search.num_live):,} steps: {ENDINGS[SearchEnd(each.search.reason)]}",
            ],
        )
        for number, each in enumerate(run.searches, 1)
    ]


def check_form(path: Path) -> None:
    """Raises UserError, before anything is measured: a file's name has no form of a report."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path}: must end in {' or '.join(SUFFIXES)}")


def write_report(report: Report, path: Path) -> None:
    """Writes the report in the form of the name's suffix, over an existing file. Raises CantWrite."""
    if path.suffix == ".html":
        write_text(path, html_page(report))
        return
    folder = path.with_name(f"{path.stem}_pictures")
    with translate_os_errors(folder):
        folder.mkdir(exist_ok=True)
    text, pictures = markdown_page(report, folder.name)
    for name, svg in pictures.items():
        write_text(folder / name, svg)
    write_text(path, text)


def html_page(report: Report) -> str:
    """Returns the report as one page; users' texts are escaped."""
    return _render("html", report, light=draw.variables(dark=False), dark=draw.variables(dark=True))


def pictures_html(pictures: Sequence[Picture]) -> str:
    """Returns a report's pictures alone, each on paper, for pages of any color and without its styles."""
    forms: Any = ENVIRONMENTS["html"].get_template("html_forms.jinja").module
    return str(forms.pictures([replace(picture, svg=draw.on_paper(picture.svg)) for picture in pictures], "charts"))


def markdown_page(report: Report, folder: str) -> tuple[str, dict[str, str]]:
    """Returns the report as Markdown, users' texts escaped, and its pictures by file name.

    Args:
        folder: folder of the pictures, as the text refers to it.
    """
    pictures: dict[str, str] = {}

    def place(picture: Picture) -> str:
        pictures[f"{picture.name}.svg"] = draw.on_paper(picture.svg)
        return f"{quote(folder)}/{picture.name}.svg"

    return _render("markdown", report, place=place), pictures


def _render(form: str, report: Report, **more: Any) -> str:
    shown = {field.name: getattr(report, field.name) for field in fields(report)}
    return ENVIRONMENTS[form].get_template(f"{form}.jinja").render(shown, forms=f"{form}_forms.jinja", **more)


def isolated(text: str) -> str:
    """Returns a text for the middle of a line. A text with right-to-left letters or marks leaves the line's order."""
    is_turning = any(unicodedata.bidirectional(character) in RIGHT_TO_LEFT for character in text)
    return f"\u2068{text}\u2069" if is_turning else text


def escaped(text: str) -> str:
    """Returns Markdown that shows a text literally, on one line."""
    return ACTIVE.sub(lambda match: ENTITIES.get(match[0], f"{match[0][:-1]}\\{match[0][-1]}"), " ".join(text.split()))


def _span_text(span: Span) -> str:
    """Returns a part of a line as Markdown, bold if only one of two texts has it.

    Blanks at its ends stay outside of the asterisks, which Markdown does not recognize next to a blank.
    """
    core = escaped(span.text)
    if not core:
        return span.text if span.is_shared else "**␣**"
    before, after = (" " if end.isspace() else "" for end in (span.text[0], span.text[-1]))
    return f"{before}{core if span.is_shared else f'**{core}**'}{after}{span.space}"


def _fence(text: str) -> str:
    """Returns a fence for a Markdown listing of the text: longer than every run of backquotes in it."""
    return "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])


def _differing_fields(runs: Sequence[MeasuredRun]) -> list[list[str]]:
    """Returns the fields in which the recipes are not all equal: name, and value of each run."""
    recipes = [run.loaded.recipe.fields() for run in runs]

    def shown(value: object) -> str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    return [
        [name, *(shown(fields.get(name)) for fields in recipes)]
        for name in dict.fromkeys(name for fields in recipes for name in fields)
        if len({repr(fields.get(name)) for fields in recipes}) > 1
    ]


def _model_text(run: MeasuredRun) -> str:
    """Returns the architecture in a few words."""
    model = run.loaded.recipe.model
    layers = f"{model.encoder.num_layers}+{model.decoder.num_layers} layers"
    attention = f"{model.attention.score} attention" if model.has_attention else "no attention"
    return f"{CELLS[model.cell]} {model.hidden_size}, {layers}, {attention}"


def _short_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k" if count >= 1e4 else f"{count:,}"


def _duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


_HTML = Environment(
    loader=FileSystemLoader(draw.TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_HTML.filters |= {
    "differing_fields": _differing_fields,
    "drawing": lambda picture: Markup(draw.on_page(picture.svg, f"{picture.name}-")),  # labels are escaped
    "duration": _duration_text,
    "escaped": escaped,
    "fence": _fence,
    "fixed": lambda value, digits=2, sign="": "" if value is None else value_text(value, digits, sign),
    "interval": interval_text,
    "isolated": isolated,
    "model": _model_text,
    "number": lambda count: "" if count is None else f"{count:,}",
    "search": describe_search,
    "series": draw.series_name,
    "short_count": _short_count,
    "span": _span_text,
}
_HTML.globals |= {
    "align": align,
    "cells": CELLS,
    "labels": draw.METRIC_LABELS,
    "min_weight": draw.MIN_WEIGHT,
    "nearest_reference": nearest_reference,
    "num_resamples": DEFAULT_RESAMPLES,
}
ENVIRONMENTS = {"html": _HTML, "markdown": _HTML.overlay(autoescape=False)}  # In Markdown the forms themselves escape.
