"""What the templates of a report call: facts and numbers in words."""

import re
from collections.abc import Sequence

from attendant.training.report.findings.examples import Span
from attendant.training.report.findings.measuring import MeasuredRun

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
