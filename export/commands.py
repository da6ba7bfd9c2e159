"""The three commands of `python -m export`, once their command line is read."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from attendant.export.bundle_writer import write_bundle
from attendant.export.inspection import describe
from attendant.export.origins.exportable import Exportable
from attendant.export.origins.from_bundle import exportable_bundle
from attendant.export.origins.from_model import bundle_name, exportable_run
from attendant.export.recheck import recheck
from attendant.export.status import status
from attendant.export.verification.quality import (
    Measurement,
    losses,
    measurement_of_bundle,
    measurement_of_run,
    too_costly,
)
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, DecodingDefaults, Evaluation, Manifest
from attendant.runtime.errors import UserError
from attendant.training.run.loading import load_run


def export(options: argparse.Namespace) -> None:
    """Publishes a bundle and prints what it is, a line per precision."""
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
    print(f"{options.output}: {bundle.manifest.name} {bundle.manifest.version}, {len(bundle.golden)} golden examples")
    print("\n".join([*_summaries(bundle.manifest), *advice]))


def _of_run(options: argparse.Namespace) -> tuple[Exportable, Measurement | None]:
    run = load_run(options.origin, options.checkpoint or "best")
    exportable = _with_decoding(exportable_run(run, options.name), options)
    if not _measures(options, exportable.decoding):
        return exportable, None
    required = "int8" in options.precision
    return exportable, measurement_of_run(run, options.data, exportable.decoding, required=required)


def _of_bundle(options: argparse.Namespace) -> tuple[Exportable, Measurement | None]:
    if options.checkpoint is not None:
        raise UserError(f"--checkpoint is for runs: the bundle {options.origin} has one set of weights")
    name = None if options.name is None else bundle_name(options.name, "")
    exportable = _with_decoding(exportable_bundle(open_bundle(options.origin), name), options)
    if options.data is None or not _measures(options, exportable.decoding):
        return exportable, None
    return exportable, measurement_of_bundle(options.origin, options.data, exportable.decoding)


def _with_decoding(exportable: Exportable, options: argparse.Namespace) -> Exportable:
    """With the decoding defaults that the command line gives, instead of the origin's.

    Raises:
        UserError: a beam beyond the bundle's limits.
    """
    given = {name: getattr(options, name) for name in ("beam_size", "length_penalty", "patience")}
    decoding = exportable.decoding.model_copy(update={name: one for name, one in given.items() if one is not None})
    if not exportable.decoding.num_hypotheses <= decoding.beam_size <= exportable.limits.max_beam_size:
        least, most = exportable.decoding.num_hypotheses, exportable.limits.max_beam_size
        raise UserError(f"--beam-size {decoding.beam_size}: this model's beams have {least} to {most} hypotheses")
    return replace(exportable, decoding=decoding)


def _measures(options: argparse.Namespace, decoding: DecodingDefaults) -> bool:
    """int8 can cost quality, and so can beams."""
    return not options.skip_evaluation and ("int8" in options.precision or decoding.beam_size > 1)


def _summaries(manifest: Manifest) -> Iterator[str]:
    for certificate in manifest.certificates:
        tokens = certificate.tokens
        whose = {"pytorch": "PyTorch's", "fp32": "fp32's"}[certificate.reference]
        yield (
            f"{certificate.precision}: {tokens.num_identical} of {tokens.num_compared} decodings identical to {whose}, "
            f"largest error {max(certificate.errors.values()):.1e}"
        )
        if (certificate.precision, certificate.provider) == ("fp16", "cpu"):
            yield "fp16: certified on the CPU, through conversions; CUDA's kernels have not run"
    for one in manifest.evaluation:
        if one.precision == "int8":
            yield f"int8: {one.metric} {one.value:g}, {one.difference:+g} to fp32, on {one.num_examples} examples"
    if "int8" in manifest.graphs:
        yield f"served on CPUs by default: {manifest.default_precision['cpu']}{_why(manifest.evaluation)}"


def _why(evaluation: Sequence[Evaluation]) -> str:
    """Why int8 is not served by default; empty where it is."""
    if not losses(evaluation):
        return "; int8 was not measured"
    limits = [f"{limit:g} {metric}" for metric, limit in too_costly(evaluation).items()]
    return f"; int8 may lose at most {' and '.join(limits)}" if limits else ""


def verify(options: argparse.Namespace) -> None:
    """Prints what holds, one line each."""
    run = None if options.run is None else (options.run, options.checkpoint or "best")
    with status() as say:
        lines = recheck(options.bundle, options.provider, run, say=say)
    print("\n".join(lines))


def inspect(options: argparse.Namespace) -> None:
    """Prints what the manifest says."""
    print("\n".join(describe(open_bundle(options.bundle))))


COMMANDS: Final = {"export": export, "verify": verify, "inspect": inspect}
