"""The three commands of `python -m export`, once their command line is read."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console

from attendant.export.bundle_writer import write_bundle
from attendant.export.inspection import describe
from attendant.export.origins.exportable import Exportable
from attendant.export.origins.from_bundle import exportable_bundle
from attendant.export.origins.from_run import bundle_name, exportable_run
from attendant.export.recheck import recheck
from attendant.export.verification.quality import (
    Measurement,
    losses,
    measurement_of_bundle,
    measurement_of_run,
    too_costly,
)
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, Evaluation, Manifest
from attendant.runtime.errors import UserError
from attendant.training.run.loading import load_run


def export(options: argparse.Namespace) -> None:
    """Publishes a bundle and prints what it is, a line per precision."""
    is_bundle = (options.origin / MANIFEST_NAME).is_file()
    with Status() as status:
        exportable, measurement = (_of_bundle if is_bundle else _of_run)(options)
        bundle = write_bundle(
            exportable,
            options.output,
            precisions=options.precision,
            force=options.force,
            measure=None if measurement is None else measurement.taking(status.say),
            say=status.say,
        )
    print(f"{options.output}: {bundle.manifest.name} {bundle.manifest.version}, {len(bundle.golden)} golden examples")
    print("\n".join(_summaries(bundle.manifest)))


def _of_run(options: argparse.Namespace) -> tuple[Exportable, Measurement | None]:
    run = load_run(options.origin, options.checkpoint or "best")
    measurement = measurement_of_run(run, options.data) if _measures(options) else None
    return exportable_run(run, options.name), measurement


def _of_bundle(options: argparse.Namespace) -> tuple[Exportable, Measurement | None]:
    if options.checkpoint is not None:
        raise UserError(f"--checkpoint is for runs: the bundle {options.origin} has one set of weights")
    bundle = open_bundle(options.origin)
    name = None if options.name is None else bundle_name(options.name, "")
    measured = _measures(options) and options.data is not None
    measurement = measurement_of_bundle(options.origin, options.data) if measured else None
    return exportable_bundle(bundle, name), measurement


def _measures(options: argparse.Namespace) -> bool:
    """fp32 alone costs nothing."""
    return "int8" in options.precision and not options.skip_evaluation


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
    with Status() as status:
        lines = recheck(options.bundle, options.provider, run, say=status.say)
    print("\n".join(lines))


def inspect(options: argparse.Namespace) -> None:
    """Prints what the manifest says."""
    print(describe(open_bundle(options.bundle)))


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], None]]] = {
    "export": export,
    "verify": verify,
    "inspect": inspect,
}


class Status(contextlib.AbstractContextManager["Status"]):
    """What is going on: one changing line on a terminal, one line per stage elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> "Status":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Tells the stage that begins."""
        if self._status is not None:
            self._status.update(line)
        else:
            print(f"export: {line}", file=sys.stderr, flush=True)
