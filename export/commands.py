"""The commands that make a bundle, once their command line is read."""

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from attendant.export.bundle_writer import write_bundle
from attendant.export.inspection import REFERENCES
from attendant.export.origins.exportable import Exportable
from attendant.export.origins.from_bundle import exportable_bundle
from attendant.export.origins.from_checkpoint import exportable_checkpoint
from attendant.export.origins.from_model import bundle_name, exportable_run
from attendant.export.publication import published
from attendant.export.status import status
from attendant.export.verification.quality import (
    QualityMeasurement,
    doubt,
    losses,
    measurement_of_bundle,
    measurement_of_run,
    too_costly,
)
from attendant.export.verification.reference import MIN_REFERENCE, NUM_REFERENCE, references_of, with_references
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


def export(options: argparse.Namespace) -> None:
    """Publishes a bundle and prints what it is, a line per precision."""
    options.precision = options.precision or ("fp32",)
    if options.web_libraries is not None:
        raise UserError("--web-libraries is for --web")
    is_bundle = (options.origin / MANIFEST_NAME).is_file()
    advice: list[str] = []
    with status() as say:
        exportable, measurement = (_of_bundle if is_bundle else _of_run)(options)
        bundle = write_bundle(
            exportable,
            options.output,
            precisions=options.precision,
            force=options.force,
            measure=None if measurement is None else partial(measurement.take, say=say, advise=advice.append),
            say=say,
        )
    print("\n".join([_first_line_of(options.output, bundle), *_summaries(bundle.manifest), *advice]))


def _first_line_of(path: Path, bundle: Bundle) -> str:
    return f"{path}: {bundle.manifest.name} {bundle.manifest.version}, {len(bundle.golden)} golden examples"


def import_checkpoint(options: argparse.Namespace) -> None:
    """Publishes a bundle of another toolkit's checkpoint and prints what it is."""
    exportable = exportable_checkpoint(
        options.toolkit,
        options.checkpoint,
        options.output,
        options.name,
        segmented=options.segmented,
        texts=[] if options.data is None else _some_sources(options.data),
        data=options.data or "",
    )
    with status() as say:
        exportable = replace(exportable, decoding=_decoding(exportable, options))
        bundle = write_bundle(exportable, options.output, force=options.force, say=say)
    print("\n".join([_first_line_of(options.output, bundle), *_summaries(bundle.manifest)]))


def _some_sources(data: str) -> list[str]:
    """From all over the files, which may be sorted: as many as a reference is made of, up to twice as many."""
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
    """int8 can cost quality, and so can beams."""
    return not options.skip_evaluation and ("int8" in options.precision or decoding.beam_size > 1)


def _summaries(manifest: Manifest) -> Iterator[str]:
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
    for one in manifest.evaluation:
        if one.precision == "int8":
            difference = "" if one.difference is None else f", {one.difference:+g} to fp32"
            yield f"int8: {one.metric} {one.value:g}{difference}, on {one.num_examples} examples"
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


def reference(options: argparse.Namespace) -> None:
    """Publishes the bundle with reference distributions: the same files, another manifest.

    Raises:
        UserError: too few texts, or `options.output` is occupied.
    """
    bundle = open_bundle(options.bundle)
    sources = bundle.source_tokenizer.encode_batch(_some_sources(options.data))
    with status() as say, published(options.output, force=options.force) as folder:
        served = [one for one in bundle.manifest.graphs if one != "fp16"]
        steppers = (open_stepper(bundle, one) for one in served)
        references = references_of(bundle, steppers, sources, options.data, say)
        if not references:
            raise UserError(f"--data {options.data}: fewer than {MIN_REFERENCE} sources that a request could give")
        for name in bundle.manifest.files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / name)
        manifest = with_references(bundle.manifest, references).signed()
        (folder / MANIFEST_NAME).write_text(manifest.to_text(), encoding="utf-8")
        open_bundle(folder)
    num_texts = next(iter(references.values())).num_examples
    print(
        f"{options.output}: {manifest.name} {manifest.version}, with references of {num_texts} texts in "
        f"{' and '.join(references)}"
    )


COMMANDS: Final = {
    "export": export,
    "import": import_checkpoint,
    "reference": reference,
}
