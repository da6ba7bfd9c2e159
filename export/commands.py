"""The commands that make a bundle: export, `attendant.export_run` in Python, import and reference.

Their parsers are in __main__.py.
"""

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

from attendant.export import origins
from attendant.export.bundle_writer import precisions_of, write_bundle
from attendant.export.calibration import MIN_CALIBRATED, HeldOut, calibrate
from attendant.export.model import ENCODER, UserModel, export_model, load_user_model
from attendant.export.published import REFERENCES, publish, refuse_occupied, refuse_options, write_manifest
from attendant.export.user_graphs.importing import draft_spec, import_graphs
from attendant.export.user_graphs.spec import read_spec
from attendant.export.verification import quality
from attendant.export.verification.probes import FULL_PLAN, VerificationPlan, checked_plan
from attendant.runtime.bundle.bundle import BIGRAMS_NAME, Bundle, open_bundle
from attendant.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SEARCH_OPTIONS,
    TEXT_OPTIONS,
    DecodingDefaults,
    Manifest,
    Precision,
    RightRule,
    defaults_of,
)
from attendant.runtime.bundle_stepper import BundleStepper, default_precision, open_stepper
from attendant.runtime.errors import UserError
from attendant.runtime.files import path_of, read_text, write_text
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.confidence import RIGHT_METRICS, right_rule
from attendant.training.evaluation.metrics import refuse_missing
from attendant.training.evaluation.session import Data, EvaluationData, PathName, read_data
from attendant.training.run.loading import load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedBundle(Bundle):
    """A bundle that was just published. It is accepted as a path; `print` shows the same lines as the command.

    Attributes:
        advice: lines for the user, e.g. that beams are worse than greedy search, or that answers have no confidence.
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
        data: pairs on which int8 is compared with fp32, and beams with greedy search: files or pairs, as in
            `attendant.evaluate`. If None, a run's test split; a bundle has none.
        measure: if False, nothing is measured; servers then use int8 only if it is named.
        beam_size, length_penalty, length_penalty_offset, patience: values of a request's unset options. If None, those
            of the run's [evaluation], or the bundle's.
        protect_spans, split_sentences: the same; a run has none.
        name: the model's in requests; if None, that of the run's folder, or the bundle's.
        checkpoint: of a run; if None, the best.
        force: replaces an existing bundle.
        plan: the grid of the comparison with PyTorch.

    Raises:
        UserError: `output` exists, `origin` is neither, an option is invalid, or data are bad or missing.
        VerificationFailed: the graphs' results differ from PyTorch's.
    """
    origin, output = path_of("origin", origin), path_of("output", output)
    refuse_occupied(output, force=force)
    wanted, plan = precisions_of(precisions), checked_plan(plan)
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
    measurement: quality.QualityMeasurement | None = None
    advice: list[str] = []
    exportable: origins.Exportable
    if is_bundle:
        former = origins.exportable_bundle(open_bundle(origin), None if name is None else origins.bundle_name(name, ""))
        exportable = origins.with_defaults(former, **defaults)
        measures = _measures(measure, wanted, exportable.decoding, data)
        if data is not None and measures:
            measurement = quality.measurement_of_bundle(former.bundle, data, exportable.decoding, former.base)
    else:
        run = load_run(origin, checkpoint or "best")
        exportable = origins.with_defaults(origins.exportable_run(run, name), **defaults)
        if _measures(measure, wanted, exportable.decoding, data):
            measurement = quality.measurement_of_run(run, data, exportable.decoding, required="int8" in wanted)
        if exportable.held_out is None:
            advice.append(
                f"no confidence, and no reference for drift: the validation split {exportable.validation_name} is "
                f"missing; export where it is, or add both by `attendant reference {output} --data FILE --output NEW`"
            )
    bundle = write_bundle(exportable, output, precisions=wanted, force=force, plan=plan, measurement=measurement)
    published = {field.name: getattr(bundle, field.name) for field in fields(bundle)}
    return ExportedBundle(**published, advice=(*advice, *(measurement.advice if measurement else ())))


def _measures(measure: bool, precisions: Sequence[Precision], decoding: DecodingDefaults, data: Data | None) -> bool:
    """Returns True if the quality, which int8 and beams can reduce, is to be measured.

    Raises:
        UserError: it is not, and there are data for it.
    """
    can_lose = "int8" in precisions or decoding.beam_size > 1
    if data is not None and not (measure and can_lose):
        reason = (
            "it is of int8 and of beams: add --precision fp32,int8" if measure else "--skip-evaluation leaves it out"
        )
        raise UserError(f"--data {data if isinstance(data, str) else 'pairs'}: nothing is measured on it; {reason}")
    return measure and can_lose


def summaries(path: Path, bundle: Bundle) -> Iterator[str]:
    """Yields the lines that the commands print about a published bundle."""
    manifest = bundle.manifest
    yield f"{path}: {manifest.name} {manifest.version}, {len(bundle.golden)} golden examples"
    for certificate in manifest.certificates:
        tokens = certificate.tokens
        whose = REFERENCES[certificate.reference]
        largest = f"{max(certificate.errors.values(), default=0.0):.1e}"
        yield (
            f"{certificate.precision}: {tokens.num_identical} of {tokens.num_compared} decodings identical to {whose}, "
            + (
                f"largest error of a tensor {largest}"
                if certificate.reference == "pytorch"
                else f"a tensor's value up to {largest} from theirs by rounding: the quality shows its cost"
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
    """Returns the reason why int8 is not served by default; empty if it is."""
    evaluation = manifest.evaluation
    if not quality.losses(evaluation):
        return "; int8 was not measured"
    if reason := quality.doubt(evaluation, manifest.certificates, manifest.target.vocabulary_size):
        return f"; the cost of int8 is unknown: {reason}"
    limits = [f"{limit:g} {metric}" for metric, limit in quality.too_costly(evaluation).items()]
    return f"; int8 may lose at most {' and '.join(limits)}" if limits else ""


def export(options: argparse.Namespace) -> str:
    """Publishes a bundle of a run or of another bundle. Returns a summary, a line per precision."""
    options.precision = options.precision or ("fp32",)
    refuse_options(options, ["web_libraries"], "is for --web")
    if re.match(r".+\.py:", str(options.origin)):
        return _export_user_model(options)
    if options.origin.suffix == ".py":
        raise UserError(f"{options.origin}: name a model of your own as FILE.py:FUNCTION, the function that returns it")
    refuse_options(options, ("weights", "sources"), "is for a model of your own, FILE.py:FUNCTION")
    bundle = export_run(
        options.origin,
        options.output,
        precisions=options.precision,
        data=options.data,
        measure=not options.skip_evaluation,
        **defaults_of(options),
        name=options.name,
        checkpoint=options.checkpoint,
        force=options.force,
    )
    return str(bundle)


def _export_user_model(options: argparse.Namespace) -> str:
    refuse_options(options, ["checkpoint"], "is for runs: a model of your own takes --weights")
    sources: Sequence[str] = ()
    if options.sources is not None:
        sources = read_text(options.sources, f"--sources {options.sources}").removesuffix("\n").split("\n")
    return _publish_user_model(
        load_user_model(str(options.origin), options.weights),
        options,
        sources=sources,
        data=None if options.skip_evaluation else options.data,
    )


def _publish_user_model(
    model: UserModel, options: argparse.Namespace, *, sources: Sequence[str] = (), data: str | None
) -> str:
    """Publishes a user's model with the command's options; returns a summary."""
    bundle = export_model(
        replace(model, **defaults_of(options)),
        options.output,
        sources=sources,
        data=data,
        name=options.name,
        precisions=options.precision,
        force=options.force,
    )
    lines = list(summaries(options.output, bundle))
    if any(pair.encode_alone for pair in bundle.manifest.graphs.values()):
        lines.append(f"sources are encoded one by one, since padding changes the encoder: {ENCODER}")
    return "\n".join(lines)


def import_model(options: argparse.Namespace) -> str:
    """Publishes a bundle of another toolkit's checkpoint, or of two ONNX graphs. Returns a summary."""
    if options.toolkit == "onnx":
        return _import_graphs(options)
    refuse_options(options, ("spec", "write_spec"), "is for onnx")
    if len(options.checkpoint) > 1:
        raise UserError(f"{options.toolkit} takes one checkpoint, got {' '.join(map(str, options.checkpoint))}")
    exportable = origins.exportable_checkpoint(
        options.toolkit,
        options.checkpoint[0],
        options.output,
        options.name,
        segmented=options.segmented,
        texts=[] if options.data is None else _some_sources(read_data(options.data)),
        data=options.data or "",
    )
    exportable = origins.with_defaults(exportable, **defaults_of(options))
    bundle = write_bundle(exportable, options.output, precisions=options.precision, force=options.force)
    return "\n".join(summaries(options.output, bundle))


def _import_graphs(options: argparse.Namespace) -> str:
    if len(options.checkpoint) != 2:
        raise UserError("onnx takes two graphs: attendant import onnx ENCODER.onnx STEP.onnx ...")
    if options.segmented:
        raise UserError("--segmented is for checkpoints: the description of ONNX graphs names their tokenizers")
    encoder, step = options.checkpoint
    if options.write_spec is not None:
        of_bundle = ("spec", "data", "name", *SEARCH_OPTIONS, *TEXT_OPTIONS)
        refuse_options(options, of_bundle, "is for --output: --write-spec only drafts a description")
        if options.write_spec.exists() and not options.force:
            raise UserError(f"{options.write_spec} exists already: add --force to replace it")
        write_text(options.write_spec, draft_spec(encoder, step))
        return f"{options.write_spec}: complete it, and give it as --spec"
    if options.spec is None:
        raise UserError(
            "onnx needs --spec FILE, a description of the graphs: attendant import onnx "
            f"{encoder} {step} --write-spec FILE drafts it"
        )
    spec = read_spec(options.spec)
    return _publish_user_model(import_graphs(encoder, step, spec), options, data=options.data or spec.data)


def _some_sources(data: EvaluationData) -> list[str]:
    """Returns sources from all parts of the data, which may be sorted: one to two times quality.NUM_REFERENCE."""
    examples = data.examples
    return [example.source for example in examples[:: max(1, len(examples) // quality.NUM_REFERENCE)]]


def reference(options: argparse.Namespace) -> str:
    """Publishes the bundle with reference distributions and a calibration: the same graphs, another manifest.

    Raises:
        UserError: too few texts, a bad rule, or `options.output` is occupied.
    """
    bundle = open_bundle(options.bundle)
    manifest = bundle.manifest
    held_out = HeldOut(
        data=read_data(options.data),
        right=_right_rule(options.right, manifest),
        training=None if options.training is None else CorpusFiles.named(options.training),
        warn_below=options.warn_below,
    )
    refuse_missing([held_out.right.metric])
    sources = bundle.source_tokenizer.encode_batch(_some_sources(held_out.data))
    with publish(options.output, force=options.force) as folder:
        served = default_precision(bundle, "cpu")
        # If the bundle has fp16 alone, `open_stepper` raises the reason why no CPU serves it.
        steppers: dict[Precision, BundleStepper] = {
            name: open_stepper(bundle, name) for name in manifest.graphs if name in ("fp32", "int8", served)
        }
        references = quality.references_of(bundle, steppers.values(), sources, options.data)
        if not references:
            raise UserError(
                f"--data {options.data}: fewer than {quality.MIN_REFERENCE} sources that a request could give"
            )
        calibrated = calibrate(bundle, steppers[served], held_out)
        for name in manifest.files.keys() - {BIGRAMS_NAME}:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / name)
        calibrated.write(folder)
        described = quality.with_references(manifest, references)
        write_manifest(folder, described.model_copy(update={"confidence": calibrated.calibration}))
        manifest = open_bundle(folder).manifest
    num_texts = next(iter(references.values())).num_examples
    calibration = manifest.confidence
    return (
        f"{options.output}: {manifest.name} {manifest.version}, with references of {num_texts} texts in "
        f"{' and '.join(references)}; "
        + (
            f"no confidence: fewer than {MIN_CALIBRATED} texts"
            if calibration is None
            else f"confidence calibrated on {calibration.num_examples}, right: {calibration.right}"
        )
    )


def _right_rule(text: str | None, manifest: Manifest) -> RightRule:
    """Returns the rule of --right; without one, that of the bundle's calibration, its recipe or its metrics."""
    if text is None:
        if manifest.confidence is not None:
            return manifest.confidence.right
        # The origin that a user describes is no recipe.
        evaluation = manifest.provenance.recipe.get("evaluation", {}) if manifest.has_our_layers else {}
        metrics = evaluation.get("metrics") or [entry.metric for entry in manifest.evaluation]
        return right_rule(metrics, evaluation.get("right_from"))
    metric, _, value = text.partition(":")
    try:
        is_exact = metric == "exact_match"
        if metric not in {name for name, _ in RIGHT_METRICS.values()} or (is_exact and value not in ("", "100")):
            raise ValueError(metric)
        if value and float(value) <= 0:  # any answer would be right
            raise ValueError(value)
        return right_rule([metric], float(value) if value else None)
    except ValueError:
        choices = "exact_match, chrf, rouge_1, rouge_2 or rouge_l, the last four with a percentage: chrf:60"
        raise UserError(f"--right {text}: must be {choices}") from None


COMMANDS: Final = {"export": export, "import": import_model, "reference": reference}
