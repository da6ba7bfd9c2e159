"""`attendant.export_run`: a bundle of a trained run, or of another bundle with other precisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import Exportable, bundle_name, exportable_bundle, exportable_run
from attendant.export.published import REFERENCES, refuse_occupied
from attendant.export.verification.probes import FULL_PLAN, VerificationPlan
from attendant.export.verification.quality import (
    QualityMeasurement,
    doubt,
    losses,
    measurement_of_bundle,
    measurement_of_run,
    too_costly,
)
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, DecodingDefaults, Manifest, Precision
from attendant.runtime.errors import UserError
from attendant.training.evaluation.session import Data, PathName
from attendant.training.run.loading import load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedBundle(Bundle):
    """A bundle that was just published. It is accepted as a path; `print` shows the same lines as the command.

    Attributes:
        advice: lines about the measured quality, e.g. that beams are worse than greedy search.
    """

    advice: tuple[str, ...]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return "\n".join([*summaries(self.path, self), *self.advice])


def export_run(
    origin: PathName,
    output: PathName,
    *,
    precisions: Precision | Sequence[Precision] = ("fp32",),
    data: Data | None = None,
    measure: bool = True,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    length_penalty_offset: float | None = None,
    patience: float | None = None,
    protect_spans: bool | None = None,
    split_sentences: bool | None = None,
    name: str | None = None,
    checkpoint: Literal["best", "last"] | None = None,
    force: bool = False,
    plan: VerificationPlan = FULL_PLAN,
) -> ExportedBundle:
    """Publishes a bundle, verified against PyTorch by the loader and the search that serve, or nothing.

    The logger "attendant.export" reports each stage.

    Args:
        origin: a run, or a bundle, whose own graphs are exported again.
        precisions: of weights and arithmetic; all are made of fp32, whether it is published too or left out.
        data: what int8 is measured against fp32 on, and beams against greedy search: files or pairs, as in
            `attendant.evaluate`. If None, a run's test split; a bundle has none.
        measure: if False, nothing is measured; servers then take int8 only when it is named.
        beam_size, length_penalty, length_penalty_offset, patience: values of a request's unset options. If None, those
            of the run's [evaluation], or the bundle's.
        protect_spans, split_sentences: likewise; a run has none.
        name: the model's in requests; if None, that of the run's folder, or the bundle's.
        checkpoint: of a run; if None, the best.
        force: replaces an existing bundle.
        plan: what is compared with PyTorch.

    Raises:
        UserError: `output` exists, `origin` is neither, an option is invalid, or data are bad or missing.
        VerificationFailed: the graphs compute something else than PyTorch.
    """
    origin, output = Path(origin), Path(output)
    refuse_occupied(output, force=force)
    wanted: tuple[Precision, ...] = (precisions,) if isinstance(precisions, str) else tuple(precisions)
    for each in wanted:
        if each not in get_args(Precision):
            raise UserError(f"--precision {each}: must be of {', '.join(get_args(Precision))}")
    defaults = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_penalty_offset": length_penalty_offset,
        "patience": patience,
        "protect_spans": protect_spans,
        "split_sentences": split_sentences,
    }
    is_bundle = (origin / MANIFEST_NAME).is_file()
    if is_bundle and checkpoint is not None:
        raise UserError(f"--checkpoint is for runs: the bundle {origin} has one set of weights")
    measurement: QualityMeasurement | None = None
    exportable: Exportable
    if is_bundle:
        former = exportable_bundle(open_bundle(origin), None if name is None else bundle_name(name, ""))
        exportable = with_defaults(former, **defaults)
        if data is not None and _measures(measure, wanted, exportable.decoding):
            measurement = measurement_of_bundle(
                former.bundle, data, exportable.decoding, former.base, halves=former.halves
            )
    else:
        run = load_run(origin, checkpoint or "best")
        exportable = with_defaults(exportable_run(run, name), **defaults)
        if _measures(measure, wanted, exportable.decoding):
            measurement = measurement_of_run(run, data, exportable.decoding, required="int8" in wanted)
    bundle = write_bundle(
        exportable,
        output,
        precisions=wanted,
        force=force,
        plan=plan,
        measure=None if measurement is None else measurement.take,
    )
    published = {field.name: getattr(bundle, field.name) for field in fields(bundle)}
    return ExportedBundle(**published, advice=() if measurement is None else tuple(measurement.advice))


def with_defaults(exportable: Exportable, **defaults: float | None) -> Exportable:
    """Returns the exportable with other decoding defaults; those that are None stay.

    Raises:
        UserError: a value out of its range, or a beam beyond the bundle's limits.
    """
    chosen = {name: value for name, value in defaults.items() if value is not None}
    try:
        decoding = DecodingDefaults.model_validate(exportable.decoding.model_dump() | chosen)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {problem['msg'].replace('Input should', 'must')}") from None
    if not exportable.decoding.num_hypotheses <= decoding.beam_size <= exportable.limits.max_beam_size:
        least, most = exportable.decoding.num_hypotheses, exportable.limits.max_beam_size
        raise UserError(f"--beam-size {decoding.beam_size}: this model's beams have {least} to {most} hypotheses")
    return replace(exportable, decoding=decoding)


def _measures(measure: bool, precisions: Sequence[Precision], decoding: DecodingDefaults) -> bool:
    """Returns True if the quality, which int8 and beams can reduce, is to be measured."""
    return measure and ("int8" in precisions or decoding.beam_size > 1)


def summaries(path: Path, bundle: Bundle) -> Iterator[str]:
    """Yields what the commands print about a published bundle."""
    manifest = bundle.manifest
    yield f"{path}: {manifest.name} {manifest.version}, {len(bundle.golden)} golden examples"
    for certificate in manifest.certificates:
        tokens = certificate.tokens
        whose = REFERENCES[certificate.reference]
        largest = f"{max(certificate.errors.values()):.1e}"
        yield (
            f"{certificate.precision}: {tokens.num_identical} of {tokens.num_compared} decodings identical to {whose}, "
            + (
                f"largest error of a tensor {largest}"
                if certificate.reference == "pytorch"
                else f"a tensor's value up to {largest} from theirs by rounding: what that costs shows in the quality"
            )
        )
        if (certificate.precision, certificate.provider) == ("fp16", "cpu"):
            yield "fp16: certified on the CPU, through conversions; CUDA's kernels have not run"
    for entry in manifest.evaluation:
        if entry.precision == "int8":
            difference = "" if entry.difference is None else f", {entry.difference:+g} to fp32"
            yield f"int8: {entry.metric} {entry.value:g}{difference}, on {entry.num_examples} examples"
    if {"fp32", "int8"} <= manifest.graphs.keys():
        yield f"served on CPUs by default: {manifest.default_precision['cpu']}{_why(manifest)}"
    default = manifest.default_precision.get("cpu")
    if default is not None and (manifest.reference or manifest.references) and not manifest.reference_of(default):
        yield f"no reference distributions in {default}: attendant reference BUNDLE --data FILE --output NEW adds them"


def _why(manifest: Manifest) -> str:
    """Returns why int8 is not served by default; empty if it is."""
    evaluation = manifest.evaluation
    if not losses(evaluation):
        return "; int8 was not measured"
    if reason := doubt(evaluation, manifest.certificates, manifest.target.vocabulary_size):
        return f"; what int8 costs can't be told: {reason}"
    limits = [f"{limit:g} {metric}" for metric, limit in too_costly(evaluation).items()]
    return f"; int8 may lose at most {' and '.join(limits)}" if limits else ""
