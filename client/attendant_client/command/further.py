"""The commands of `attendant` that the distribution attendant-seq2seq has; this one only knows where."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from attendant_client.version import VERSION


@dataclass(frozen=True, slots=True)
class Further:
    """A command that may not be installed.

    Attributes:
        summary: for --help.
        module: whose `command(name)` gives a `parser`, and a `main(program, arguments)` that ends the process.
        extras: of the distribution attendant-seq2seq, with which the command runs.
    """

    summary: str
    module: str
    extras: str


_TRAINING, _EXPORT = "attendant.training.__main__", "attendant.export.__main__"

FURTHER = {
    "train": Further("train a model by a recipe, or from a file of pairs", _TRAINING, "cpu,training"),
    "check": Further("show what is in a training's data", _TRAINING, "cpu,training"),
    "evaluate": Further("measure runs and bundles on held-out data", _TRAINING, "cpu,training"),
    "report": Further("show what came of trainings, as a page", _TRAINING, "cpu,training"),
    "fetch": Further("build the data that a recipe names", _TRAINING, "cpu,training"),
    "average": Further("average a run's last checkpoints", _TRAINING, "cpu,training"),
    "label": Further("decode sources into pairs to train on", _TRAINING, "cpu,training"),
    "export": Further("turn a run into a verified bundle", _EXPORT, "cpu,export"),
    "import": Further("turn a model of another toolkit into a bundle", _EXPORT, "cpu,export"),
    "verify": Further("check a bundle on this host", _EXPORT, "cpu"),
    "inspect": Further("show a bundle's contents", _EXPORT, "cpu"),
    "sign": Further("sign a bundle", _EXPORT, "cpu,signing"),
    "reference": Further("add reference statistics for drift detection to a bundle", _EXPORT, "cpu,export"),
    "serve": Further("serve bundles over gRPC", "attendant.server.command", "cpu"),
    "bench": Further("measure how fast a bundle is served on this host", "attendant.server.bench.command", "cpu"),
}


def load(name: str) -> Any:
    """The command; raises ModuleNotFoundError where it, or what it needs, is not installed."""
    return import_module(FURTHER[name].module).command(name)


def run(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, to the end of the process; returns 2 where it can't be."""
    try:
        load(name).main(f"attendant {name}", arguments)
    except ModuleNotFoundError as missing:
        print(f"attendant {name}: {remedy(missing, FURTHER[name].extras)}", file=sys.stderr)
    return 2


def remedy(missing: ModuleNotFoundError, extras: str) -> str:
    """Returns which package is missing and what to install.

    An installed distribution's further extras come from the index alone; the distribution itself is on none.
    """
    if (missing.name or "").partition(".")[0] == "attendant":
        wheel = f"./attendant_seq2seq-{VERSION}-py3-none-any.whl"
        return (
            f"the distribution attendant-seq2seq is not installed: pip install '{wheel}[{extras}]' (made by `make "
            f"dist`), or in a checkout '.[{extras}]'"
        )
    return f"{missing.name} is not installed: pip install 'attendant-seq2seq[{extras}]'"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Of those commands that are installed."""
    found = {}
    for name in FURTHER:
        try:
            found[name] = load(name).parser
        except ModuleNotFoundError:
            continue
    return found
