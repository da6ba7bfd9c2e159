"""The sections that all runs of a report share: each shows one run, or several against each other."""

from collections.abc import Sequence

from attendant.training.evaluation import DEFAULT_RESAMPLES, Difference, Interval, describe_search
from attendant.training.report.findings.curves import Curve
from attendant.training.report.findings.measuring import MeasuredRun
from attendant.training.report.page.blocks import Block, Paragraph, Picture, Pictures, Section, Table, Tile, Tiles
from attendant.training.report.pictures.charts import METRIC_LABELS, length_chart, loss_chart, metric_chart, reach_chart

CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn": "tanh"}


def results(runs: Sequence[MeasuredRun]) -> Section:
    """The values, and with several runs how sure their differences are."""
    blocks: list[Block] = [_tiles(runs[0])]
    if len(runs) > 1:
        text = (
            f"Differences are to {runs[0].title}. One whose interval leaves 0 out is hardly the luck of this test set; "
            "p is how often resampling alone would give one as large."
        )
        blocks = [_results_table(runs), Paragraph(text, is_note=True), _runs_table(runs)]
    rules = "; ".join(f"{METRIC_LABELS[one.metric]}: {one.rule}" for one in runs[0].evaluation.statistics)
    paired = " (Koehn 2004), the same resamples for all runs" if len(runs) > 1 else " (Koehn 2004)"
    blocks.append(
        Paragraph(f"{rules}. Intervals are 95 %, from {DEFAULT_RESAMPLES:,} bootstrap resamples{paired}.", is_note=True)
    )
    return Section("Results", blocks)


def learning(runs: Sequence[MeasuredRun]) -> Section:
    """The course of the trainings, against steps and against time."""
    letters = _letters(runs)
    curves = [run.curves for run in runs]
    if not any(len(one.train_loss) or one.validation for one in curves):
        text = "No journal: these weights were made of others, e.g. by averaging; see the run they come from."
        return Section("Learning", [Paragraph(text)])
    nothing = Curve.empty()
    metrics = dict.fromkeys(name for one in curves for name in one.validation if name != "loss")
    pictures = []
    for by_time, against in ((False, "steps"), (True, "minutes")):
        validation = [one.validation.get("loss", nothing) for one in curves]
        svg = loss_chart([one.train_loss for one in curves], validation, letters, by_time=by_time)
        pictures.append(Picture(name=f"loss-{against}", svg=svg, description=f"Loss against {against}"))
        for metric in metrics:
            svg = metric_chart(
                metric, [one.validation.get(metric, nothing) for one in curves], letters, by_time=by_time
            )
            description = f"Validation {METRIC_LABELS.get(metric, metric)} against {against}"
            pictures.append(Picture(name=f"{metric}-{against}", svg=svg, description=description))
    note = (
        "Thick, with marks: validation. Thin: the loss of the training batches, which has dropout and smoothed labels "
        "in it where the recipe asks for them. Time is that of training and validation together."
    )
    return Section("Learning", [Pictures(entries=pictures, has_key=len(runs) > 1), Paragraph(note, is_note=True)])


def lengths(runs: Sequence[MeasuredRun]) -> Section:
    """Quality against source length, metric by metric."""
    measurements = [run.evaluation.measurements for run in runs]
    unit = measurements[0][0].length_unit or "words"
    pictures = []
    headings = ["run", f"source {unit}", "examples"]
    for place, first in enumerate(measurements[0]):
        bins = [of_run[place].by_length for of_run in measurements]
        label = METRIC_LABELS[first.metric]
        svg = length_chart(first.metric, bins, _letters(runs), unit=unit)
        description = f"{label} by source length, with 95 % intervals"
        pictures.append(Picture(name=f"{first.metric}-length", svg=svg, description=description))
        headings += [label, "95 % interval"]
    rows = []
    for run, of_run in zip(runs, measurements, strict=True):
        for same in zip(*(one.by_length for one in of_run), strict=True):
            cells = [cell for one in same for cell in (f"{one.value:.2f}", interval_text(one.interval))]
            rows.append([run.letter, same[0].name, f"{same[0].num_examples:,}", *cells])
    counted = "words and punctuation marks" if unit == "words" else "tokens of the run's tokenizer, without EOS"
    note = f"Length is in {counted}. Bands: the 95 % bootstrap interval of each bin."
    return Section(
        "Quality by source length",
        [
            Pictures(entries=pictures, has_key=len(runs) > 1),
            Paragraph(note, is_note=True),
            Table(headings=headings, rows=rows, num_texts=2, folded="The numbers"),
        ],
    )


def gradients(runs: Sequence[MeasuredRun]) -> Section:
    """How far back in time the loss reaches."""
    measured = [(run, run.gradients) for run in runs if run.gradients is not None]
    if not measured:
        return Section(GRADIENTS_TITLE, [Paragraph("No example is within the recipes' lengths: nothing was followed.")])
    letters = [run.letter for run in runs]
    found_or_none = [run.gradients for run in runs]
    pictures = [
        Picture(
            name="gradients-states",
            svg=reach_chart(
                "‖∂ℓ(T) / ∂s(T−k)‖, relative: through the decoder",
                [None if one is None else one.states for one in found_or_none],
                letters,
                distance="k, steps back to a decoder state",
            ),
            description="Gradient norm at the decoder's states against their distance from the loss",
        ),
        Picture(
            name="gradients-inputs",
            svg=reach_chart(
                "‖∂ℓ(T) / ∂e(j)‖, relative: to the source",
                [None if one is None else one.inputs for one in found_or_none],
                letters,
                distance="T + S − j, steps back to a source symbol",
            ),
            description="Gradient norm at the source's embeddings against their distance from the loss",
        ),
    ]
    headings = ["run", "cell", "attention", "factor per step: states", "source", "nearest gradient", "losses", "pairs"]
    rows = [
        [
            run.title,
            CELLS[run.loaded.recipe.model.cell],
            run.loaded.recipe.model.attention.score,
            _factor(found.states.factor_per_step),
            _factor(found.inputs.factor_per_step),
            f"{found.nearest:#.3g}",
            f"{found.num_positions:,}",
            f"{found.num_pairs:,}",
        ]
        for run, found in measured
    ]
    return Section(
        GRADIENTS_TITLE,
        [
            Paragraph(GRADIENTS_TEXT),
            Pictures(entries=pictures, has_key=len(runs) > 1),
            Table(headings=headings, rows=rows, num_texts=3),
            Paragraph(GRADIENTS_NOTE, is_note=True),
        ],
    )


GRADIENTS_TITLE = "How far back the loss reaches"
GRADIENTS_TEXT = (
    "A recurrent network learns what happens k steps back only through the gradient that is left there. Where it "
    "shrinks by a factor with every step it vanishes, and what is far is not learned; where it grows, it explodes "
    "(Bengio et al. 1994; Pascanu et al. 2013). A level curve is a memory that lasts; a falling one is no fault where "
    "nothing far back is needed, as in a decoder whose attention finds it in the source."
)
GRADIENTS_NOTE = (
    "ℓ(T): cross-entropy of target position T under teacher forcing, without dropout, in float64. s(t): all that "
    "decoder step t hands to the next: hidden states of all layers, an LSTM's cells, with input feeding the "
    "attentional vector. e(j): embedding of source position j of S. Derivatives are total, and relative to "
    "‖∂ℓ(T) / ∂s(T−1)‖, that of the state which the step itself is fed; its median is the nearest gradient of the "
    "table. The source's distance counts the steps of the one-directional path, back through the decoder and on "
    "through the encoder from the end of its reading: attention and a second direction make shorter ones, and a level "
    "curve shows that they are used. Lines: medians over all losses followed. Bands: from quartile to quartile. Factor "
    "per step: e to the slope of the log median, by least squares; below 1 the gradient vanishes, above 1 it explodes."
)


def interval_text(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"


def _tiles(run: MeasuredRun) -> Tiles:
    measured = [
        Tile(
            label=METRIC_LABELS[one.metric],
            value=f"{one.value:.2f}",
            detail=interval_text(one.interval) and f"95 %: {interval_text(one.interval)}",
        )
        for one in run.evaluation.measurements
    ]
    state = run.loaded.state
    facts = [
        Tile(
            label="examples", value=f"{run.evaluation.num_examples:,}", detail=describe_search(run.evaluation.options)
        ),
        Tile(label="parameters", value=short_count(run.num_parameters), detail=model_text(run)),
        Tile(label="weights of step", value=f"{state.step:,}", detail=f"after {duration_text(state.seconds)}"),
    ]
    return Tiles([*measured, *facts])


def _results_table(runs: Sequence[MeasuredRun]) -> Table:
    rows = []
    for run in runs:
        differences: Sequence[Difference | None] = run.differences or [None] * len(run.evaluation.measurements)
        for one, difference in zip(run.evaluation.measurements, differences, strict=True):
            cells = ("", "", "") if difference is None else _difference(difference)
            rows.append([run.title, METRIC_LABELS[one.metric], f"{one.value:.2f}", interval_text(one.interval), *cells])
    headings = ["run", "metric", "value", "95 % interval", f"to {runs[0].letter}", "95 % interval", "p"]
    return Table(headings=headings, rows=rows, num_texts=2)


def _difference(one: Difference) -> tuple[str, str, str]:
    p_value = "" if one.p_value is None else f"{one.p_value:.3f}"
    return f"{one.value:+.2f}", interval_text(one.interval), p_value


def _runs_table(runs: Sequence[MeasuredRun]) -> Table:
    headings = ["run", "model", "search", "parameters", "weights of step", "trained for"]
    rows = []
    for run in runs:
        state = run.loaded.state
        facts = (short_count(run.num_parameters), f"{state.step:,}", duration_text(state.seconds))
        rows.append([run.title, model_text(run), describe_search(run.evaluation.options), *facts])
    return Table(headings=headings, rows=rows, num_texts=3)


def _letters(runs: Sequence[MeasuredRun]) -> list[str]:
    return [run.letter for run in runs]


def _factor(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.3f}"


def model_text(run: MeasuredRun) -> str:
    """The architecture in a few words."""
    model = run.loaded.recipe.model
    layers = f"{model.encoder.num_layers}+{model.decoder.num_layers} layers"
    attention = f"{model.attention.score} attention" if model.has_attention else "no attention"
    return f"{CELLS[model.cell]} {model.hidden_size}, {layers}, {attention}"


def short_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k" if count >= 1e4 else f"{count:,}"


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
