"""The sections that each run of a report has for itself: attention, outputs, recipe, data."""

from collections.abc import Mapping, Sequence
from typing import Any

from attendant.training.report.findings.examples import Judged, align, nearest_reference
from attendant.training.report.findings.measuring import Attended, MeasuredRun
from attendant.training.report.page.blocks import (
    Block,
    Listing,
    Paragraph,
    Picture,
    Pictures,
    Sample,
    Samples,
    Section,
    Table,
)
from attendant.training.report.pictures.attention_map import MIN_WEIGHT, attention_map
from attendant.training.report.pictures.charts import METRIC_LABELS


def attention(run: MeasuredRun) -> Section:
    """Where the decoder looked: for chosen examples, and for those that it got most wrong."""
    title = _title(run, "attention")
    if not run.loaded.recipe.model.has_attention:
        return Section(title, [Paragraph("This model has no attention: the decoder knows the source by one vector.")])
    blocks: list[Block] = [
        Paragraph(
            "A row per target symbol, a column per source symbol; the darker, the more of the row's attention. Cells "
            f"of less than {MIN_WEIGHT:.0%} are left empty."
        )
    ]
    blocks.append(_maps(run, run.chosen, "chosen"))
    if run.worst:
        blocks += [Paragraph("The worst outputs, by the metric:"), _maps(run, run.worst, "worst")]
    return Section(title, blocks)


def outputs(run: MeasuredRun) -> Section:
    """The best and the worst outputs, by the metric and by the model itself."""
    title = _title(run, "best and worst outputs")
    if not run.rankings:
        return Section(title, [Paragraph("No example of the data could be decoded.")])
    metric, graded = run.evaluation.measurements[0].metric, run.rankings[0].entries[0].metric
    instead = "" if graded == metric else f", in the place of {METRIC_LABELS[metric]}, which can't rank single outputs"
    note = (
        f"Metric of a single output: {METRIC_LABELS[graded]}{instead}. Model score: the mean natural-log probability "
        "of the output's symbols, EOS included. Marked: words that output and reference don't share."
    )
    lists = [Samples(ranking.title, [_sample(one) for one in ranking.entries]) for ranking in run.rankings]
    return Section(title, [Paragraph(note, is_note=True), *lists])


def origin(run: MeasuredRun) -> Section:
    """The recipe, data and versions from which the run can be repeated."""
    versions = run.loaded.versions
    blocks: list[Block] = [
        Table(headings=["data", "training", "validation", "test"], rows=_part_rows(run.loaded.data)),
        Table(headings=["data", "source", "target"], rows=_side_rows(run.loaded.data)),
        Table(headings=["versions", ""], rows=[[name, versions[name]] for name in sorted(versions)], num_texts=2),
        Table(headings=["file", "sha256"], rows=_file_rows(run.loaded.data), num_texts=2, folded="Files of the data"),
        Listing("The recipe as resolved", run.loaded.recipe.to_text()),
    ]
    return Section(_title(run, "recipe, data, versions"), blocks)


def recipe_differences(runs: Sequence[MeasuredRun]) -> Section:
    """The fields in which the recipes are not all equal."""
    flat = [run.loaded.recipe.fields() for run in runs]
    names = dict.fromkeys(name for fields in flat for name in fields)
    rows = [
        [name, *(_shown(fields.get(name)) for fields in flat)]
        for name in names
        if len({repr(fields.get(name)) for fields in flat}) > 1
    ]
    if not rows:
        return Section("What differs", [Paragraph("Nothing: the recipes are equal, field by field.")])
    headings = ["field", *(run.title for run in runs)]
    return Section("What differs", [Table(headings=headings, rows=rows, num_texts=len(headings))])


def _title(run: MeasuredRun, what: str) -> str:
    """The title, with the run's name where there are several runs."""
    return f"{run.title}: {what}" if run.letter else what[0].upper() + what[1:]


def _maps(run: MeasuredRun, attended: Sequence[Attended], kind: str) -> Pictures:
    return Pictures(
        entries=[
            Picture(
                name="-".join(filter(None, (run.letter, "attention", kind, str(number)))),
                svg=attention_map(one.weights, one.source_tokens, one.target_tokens),
                description=f"Attention while {one.decoded.example.source} became {one.decoded.text}",
                caption=_map_caption(one),
            )
            for number, one in enumerate(attended, 1)
        ],
        kind="maps",
    )


def _map_caption(one: Attended) -> list[str]:
    decoded = one.decoded
    said = [f"{decoded.example.source} → {decoded.text}"]
    if decoded.example.references:
        nearest = nearest_reference(decoded.text, decoded.example.references)
        said.append("as the reference" if nearest.split() == decoded.text.split() else f"reference: {nearest}")
    return said


def _sample(judged: Judged) -> Sample:
    decoded = judged.decoded
    reference = nearest_reference(decoded.text, decoded.example.references)
    others = len(decoded.example.references) - 1
    facts = [f"{METRIC_LABELS[judged.metric]} {judged.value:.1f}", f"score {judged.confidence:.3f}"]
    if others:
        facts.append(f"{others} more reference{'s' if others > 1 else ''}")
    return Sample(
        source=decoded.example.source,
        output=align(decoded.text, reference),
        reference=align(reference, decoded.text),
        facts=facts,
    )


def _part_rows(data: Mapping[str, Any]) -> list[list[str]]:
    shared = data.get("num_sources_shared_with_training", {})
    pairs = data.get("num_pairs", {})
    too_long, unequal = data.get("num_too_long", {}), data.get("num_unequal", {})
    rows = [
        ["pairs", pairs.get("train"), pairs.get("validation"), pairs.get("test")],
        ["kept for training", data.get("num_trained_pairs"), None, None],
        ["left out: too long", too_long.get("train"), too_long.get("validation"), None],
        ["left out: lengths too unequal", unequal.get("train"), unequal.get("validation"), None],
        ["left out: duplicates, shared sources", data.get("num_left_out"), None, None],
        ["duplicates", data.get("num_duplicates"), None, None],
        ["sources that training has too", None, shared.get("validation"), shared.get("test")],
    ]
    return [[str(name), *(_count(cell) for cell in cells)] for name, *cells in rows]


def _side_rows(data: Mapping[str, Any]) -> list[list[str]]:
    unknown = data.get("unknown_share_in_validation", {})
    tokens, vocabulary = data.get("num_tokens", {}), data.get("vocabulary_size", {})
    sides = ("source", "target")
    return [
        ["tokens of the training split", *(_count(tokens.get(side)) for side in sides)],
        ["vocabulary", *(_count(vocabulary.get(side)) for side in sides)],
        ["unknown tokens in validation", *(f"{unknown[side]:.2%}" if side in unknown else "" for side in sides)],
    ]


def _file_rows(data: Mapping[str, Any]) -> list[list[str]]:
    files = data.get("files", {})
    return [[path, digest] for part in files.values() for path, digest in part.items()]


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
