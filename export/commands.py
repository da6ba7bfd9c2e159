"""The three commands of `python -m export`, once their command line is read."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console

from export.bundle_writer import write_bundle
from export.from_run import exportable_run
from export.inspection import describe
from export.recheck import recheck
from runtime.bundle import open_bundle
from training.checkpoint import load_run


def export(options: argparse.Namespace) -> None:
    """Publishes a bundle and prints what it is in one line."""
    exportable = exportable_run(load_run(options.run, options.checkpoint), options.name)
    with Status() as status:
        bundle = write_bundle(exportable, options.output, force=options.force, say=status.say)
    certificate = bundle.manifest.certificates[0]
    print(
        f"{options.output}: {bundle.manifest.name} {bundle.manifest.version}, {certificate.tokens.num_identical} of "
        f"{certificate.tokens.num_compared} decodings identical to PyTorch's, largest error "
        f"{max(certificate.errors.values()):.1e}, {len(bundle.golden)} golden examples"
    )


def verify(options: argparse.Namespace) -> None:
    """Prints what holds, one line each."""
    run = None if options.run is None else (options.run, options.checkpoint)
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
