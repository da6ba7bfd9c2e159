"""The commands that make a bundle: export, import and reference. Their parsers are in __main__.py."""

import argparse
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from attendant.export.bundle_writer import write_bundle
from attendant.export.calibration import MIN_CALIBRATED, HeldOut, calibrate
from attendant.export.model import ENCODER, UserModel, export_model, load_user_model
from attendant.export.origins import exportable_checkpoint
from attendant.export.published import publish
from attendant.export.run import export_run, summaries, with_defaults
from attendant.export.user_graphs.importing import draft_spec, import_graphs
from attendant.export.user_graphs.spec import read_spec
from attendant.export.verification.quality import MIN_REFERENCE, NUM_REFERENCE, references_of, with_references
from attendant.runtime.bundle.bundle import BIGRAMS_NAME, open_bundle
from attendant.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SEARCH_OPTIONS,
    TEXT_OPTIONS,
    Manifest,
    Precision,
    RightRule,
    defaults_of,
)
from attendant.runtime.bundle_stepper import BundleStepper, default_precision, open_stepper
from attendant.runtime.errors import UserError
from attendant.runtime.files import read_text, write_text
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.confidence import RIGHT_METRICS, right_rule
from attendant.training.evaluation.metrics import refuse_missing
from attendant.training.evaluation.session import EvaluationData, read_data


def export(options: argparse.Namespace) -> str:
    """Publishes a bundle of a run or of another bundle. Returns a summary, a line per precision."""
    options.precision = options.precision or ("fp32",)
    if options.web_libraries is not None:
        raise UserError("--web-libraries is for --web")
    if re.fullmatch(r".+\.py:\w+", str(options.origin)):
        return _export_user_model(options)
    if options.weights is not None:
        raise UserError("--weights is for a model of your own, FILE.py:FUNCTION")
    published = export_run(
        options.origin,
        options.output,
        precisions=options.precision,
        data=options.data,
        measure=not options.skip_evaluation,
        **{name: getattr(options, name) for name in (*SEARCH_OPTIONS, *TEXT_OPTIONS)},
        name=options.name,
        checkpoint=options.checkpoint,
        force=options.force,
    )
    return str(published)


def _export_user_model(options: argparse.Namespace) -> str:
    if options.checkpoint is not None:
        raise UserError("--checkpoint is for runs: a model of your own takes --weights")
    sources: Sequence[str] = ()
    if options.sources is not None:
        sources = read_text(options.sources, f"--sources {options.sources}").splitlines()
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
    for name in ("spec", "write_spec"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for onnx")
    if len(options.checkpoint) > 1:
        raise UserError(f"{options.toolkit} takes one checkpoint, got {' '.join(map(str, options.checkpoint))}")
    exportable = exportable_checkpoint(
        options.toolkit,
        options.checkpoint[0],
        options.output,
        options.name,
        segmented=options.segmented,
        texts=[] if options.data is None else _some_sources(read_data(options.data)),
        data=options.data or "",
    )
    chosen = with_defaults(exportable, **{name: getattr(options, name) for name in (*SEARCH_OPTIONS, *TEXT_OPTIONS)})
    bundle = write_bundle(chosen, options.output, precisions=options.precision, force=options.force)
    return "\n".join(summaries(options.output, bundle))


def _import_graphs(options: argparse.Namespace) -> str:
    if len(options.checkpoint) != 2:
        raise UserError("onnx takes two graphs: attendant import onnx ENCODER.onnx STEP.onnx ...")
    if options.segmented:
        raise UserError("--segmented is for checkpoints: the description of ONNX graphs names their tokenizers")
    encoder, step = options.checkpoint
    if options.write_spec is not None:
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
    """Returns sources from all parts of the data, which may be sorted: NUM_REFERENCE or up to twice as many."""
    examples = data.examples
    return [example.source for example in examples[:: max(1, len(examples) // NUM_REFERENCE)]]


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
    )
    refuse_missing([held_out.right.metric])
    sources = bundle.source_tokenizer.encode_batch(_some_sources(held_out.data))
    with publish(options.output, force=options.force) as folder:
        steppers: dict[Precision, BundleStepper] = {
            name: open_stepper(bundle, name) for name in manifest.graphs if name != "fp16"
        }
        references = references_of(bundle, steppers.values(), sources, options.data)
        if not references:
            raise UserError(f"--data {options.data}: fewer than {MIN_REFERENCE} sources that a request could give")
        calibrated = calibrate(bundle, steppers[default_precision(bundle, "cpu")], held_out)
        files = {name: entry for name, entry in manifest.files.items() if name != BIGRAMS_NAME}
        for name in files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / name)
        files |= calibrated.write(folder)
        manifest = with_references(manifest, references).model_copy(
            update={"files": files, "confidence": calibrated.calibration}
        )
        (folder / MANIFEST_NAME).write_text(manifest.signed().to_text(), encoding="utf-8")
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
        evaluation = manifest.provenance.recipe.get("evaluation", {})
        metrics = evaluation.get("metrics") or [entry.metric for entry in manifest.evaluation]
        return right_rule(metrics, evaluation.get("right_from"))
    metric, _, value = text.partition(":")
    try:
        if metric not in RIGHT_METRICS.keys() - {"wer", "per", "cer", "ter", "bleu"}:
            raise ValueError(metric)
        return right_rule([metric], float(value) if value else None)
    except ValueError:
        choices = "exact_match, chrf, rouge_1, rouge_2 or rouge_l, with a percentage: chrf:60"
        raise UserError(f"--right {text}: must be {choices}") from None


COMMANDS: Final = {"export": export, "import": import_model, "reference": reference}
