"""The commands that make a bundle: export, import and reference. Their parsers are in __main__.py."""

import argparse
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from attendant.export.bundle_writer import write_bundle
from attendant.export.model import ENCODER, export_model, load_user_model
from attendant.export.origins import Exportable, bundle_name, exportable_bundle, exportable_checkpoint, exportable_run
from attendant.export.published import REFERENCES, publish
from attendant.export.verification.quality import (
    MIN_REFERENCE,
    NUM_REFERENCE,
    QualityMeasurement,
    doubt,
    losses,
    measurement_of_bundle,
    measurement_of_run,
    references_of,
    too_costly,
    with_references,
)
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import (
    MANIFEST_NAME,
    DecodingDefaults,
    Manifest,
    search_of,
)
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.session import read_data
from attendant.training.run.loading import load_run


def export(options: argparse.Namespace) -> str:
    """Publishes a bundle of a run or of another bundle. Returns a summary, a line per precision."""
    options.precision = options.precision or ("fp32",)
    if options.web_libraries is not None:
        raise UserError("--web-libraries is for --web")
    if re.fullmatch(r".+\.py:\w+", str(options.origin)):
        return _export_user_model(options)
    if options.weights is not None:
        raise UserError("--weights is for a model of your own, FILE.py:FUNCTION")
    is_bundle = (options.origin / MANIFEST_NAME).is_file()
    exportable, measurement = (_of_bundle if is_bundle else _of_run)(options)
    bundle = write_bundle(
        exportable,
        options.output,
        precisions=options.precision,
        force=options.force,
        measure=None if measurement is None else measurement.take,
    )
    return "\n".join([*_summaries(options.output, bundle), *(() if measurement is None else measurement.advice)])


def _export_user_model(options: argparse.Namespace) -> str:
    if options.checkpoint is not None:
        raise UserError("--checkpoint is for runs: a model of your own takes --weights")
    model = load_user_model(str(options.origin), options.weights)
    model = replace(model, **search_of(options))
    bundle = export_model(
        model,
        options.output,
        sources=[] if options.sources is None else _lines(options.sources),
        data=None if options.skip_evaluation else options.data,
        name=options.name,
        precisions=options.precision,
        force=options.force,
    )
    alone = any(pair.encode_alone for pair in bundle.manifest.graphs.values())
    advice = [f"sources are encoded one by one, since padding changes the encoder: {ENCODER}"] if alone else []
    return "\n".join([*_summaries(options.output, bundle), *advice])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--sources {path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--sources {path}: it is not UTF-8") from None


def import_checkpoint(options: argparse.Namespace) -> str:
    """Publishes a bundle of another toolkit's checkpoint. Returns a summary."""
    exportable = exportable_checkpoint(
        options.toolkit,
        options.checkpoint,
        options.output,
        options.name,
        segmented=options.segmented,
        texts=[] if options.data is None else _some_sources(options.data),
        data=options.data or "",
    )
    exportable = replace(exportable, decoding=_decoding(exportable, options))
    return "\n".join(_summaries(options.output, write_bundle(exportable, options.output, force=options.force)))


def _some_sources(data: str) -> list[str]:
    """Returns sources from all parts of the files, which may be sorted: NUM_REFERENCE or up to twice as many."""
    examples = read_data(CorpusFiles.named(data)).examples
    return [example.source for example in examples[:: max(1, len(examples) // NUM_REFERENCE)]]


def _of_run(options: argparse.Namespace) -> tuple[Exportable, QualityMeasurement | None]:
    run = load_run(options.origin, options.checkpoint or "best")
    exportable = exportable_run(run, options.name)
    exportable = replace(exportable, decoding=_decoding(exportable, options))
    if not _measures(options, exportable.decoding):
        return exportable, None
    required = "int8" in options.precision
    return exportable, measurement_of_run(run, options.data, exportable.decoding, required=required)


def _of_bundle(options: argparse.Namespace) -> tuple[Exportable, QualityMeasurement | None]:
    if options.checkpoint is not None:
        raise UserError(f"--checkpoint is for runs: the bundle {options.origin} has one set of weights")
    name = None if options.name is None else bundle_name(options.name, "")
    origin = exportable_bundle(open_bundle(options.origin), name)
    exportable = replace(origin, decoding=_decoding(origin, options))
    if options.data is None or not _measures(options, exportable.decoding):
        return exportable, None
    measurement = measurement_of_bundle(
        origin.bundle, options.data, exportable.decoding, origin.base, halves=origin.halves
    )
    return exportable, measurement


def _decoding(exportable: Exportable, options: argparse.Namespace) -> DecodingDefaults:
    """Returns the origin's decoding defaults, except those that the command line gives.

    Raises:
        UserError: a beam beyond the bundle's limits.
    """
    decoding = exportable.decoding.model_copy(update=search_of(options))
    if not exportable.decoding.num_hypotheses <= decoding.beam_size <= exportable.limits.max_beam_size:
        least, most = exportable.decoding.num_hypotheses, exportable.limits.max_beam_size
        raise UserError(f"--beam-size {decoding.beam_size}: this model's beams have {least} to {most} hypotheses")
    return decoding


def _measures(options: argparse.Namespace, decoding: DecodingDefaults) -> bool:
    """Returns whether to measure the quality, which int8 and beams can reduce."""
    return not options.skip_evaluation and ("int8" in options.precision or decoding.beam_size > 1)


def _summaries(path: Path, bundle: Bundle) -> Iterator[str]:
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


def reference(options: argparse.Namespace) -> str:
    """Publishes the bundle with reference distributions: the same files, another manifest.

    Raises:
        UserError: too few texts, or `options.output` is occupied.
    """
    bundle = open_bundle(options.bundle)
    sources = bundle.source_tokenizer.encode_batch(_some_sources(options.data))
    with publish(options.output, force=options.force) as folder:
        steppers = (open_stepper(bundle, precision) for precision in bundle.manifest.graphs if precision != "fp16")
        references = references_of(bundle, steppers, sources, options.data)
        if not references:
            raise UserError(f"--data {options.data}: fewer than {MIN_REFERENCE} sources that a request could give")
        for name in bundle.manifest.files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / name)
        manifest = with_references(bundle.manifest, references).signed()
        (folder / MANIFEST_NAME).write_text(manifest.to_text(), encoding="utf-8")
        open_bundle(folder)
    num_texts = next(iter(references.values())).num_examples
    return (
        f"{options.output}: {manifest.name} {manifest.version}, with references of {num_texts} texts in "
        f"{' and '.join(references)}"
    )


COMMANDS: Final = {"export": export, "import": import_checkpoint, "reference": reference}
