"""From measured runs to a report: all its pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attendant.training.report.findings.curves import Curve
from attendant.training.report.findings.examples import nearest_reference
from attendant.training.report.findings.measuring import Attended, MeasuredRun
from attendant.training.report.pictures.attention_map import attention_map
from attendant.training.report.pictures.charts import METRIC_LABELS, course_chart, length_chart, reach_chart
from attendant.training.run.directory import versions


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing.

    Attributes:
        name: of its file, where it gets one; within a report each has another.
        svg: in the colors of training/report/pictures/colors.py.
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
