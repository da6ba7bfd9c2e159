"""attendant export RUN|BUNDLE --output BUNDLE; attendant import|verify|inspect|sign|reference: see --help."""

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from attendant.runtime.command import (
    Command,
    CommandParser,
    ended_by_interrupts,
    exit_command,
    handle_ending_signals,
    require,
)
from attendant.runtime.errors import shown
from attendant.runtime.process import LOAD_MIB, LOAD_SECONDS

DEFAULT = "(default: %(default)s)"
PRECISIONS = ("fp32", "int8", "fp16")
TOOLKITS = ("fairseq", "g2p_en", "joeynmt", "onnx", "opennmt-py")

DESCRIPTION = """\
Turns a trained run into a bundle: the encoder and the decoder's step as ONNX graphs, verified against PyTorch by the
loader and the search that serve. Nothing is published if a check fails. A bundle is exported again from its own graphs.

  attendant export RUN --output BUNDLE     export a run
  attendant export OLD --output BUNDLE --precision fp32,int8
                                           add precisions to a bundle
  attendant export BUNDLE --web FOLDER     write a static page that runs a bundle in the browser
  attendant import joeynmt MODEL --output BUNDLE
                                           import a model of fairseq, JoeyNMT, OpenNMT-py or g2p_en
  attendant import onnx ENCODER.onnx STEP.onnx --spec SPEC.toml --output BUNDLE
                                           import ONNX graphs that another tool has exported
  attendant verify BUNDLE                  check a bundle's files and golden examples on this host
  attendant inspect BUNDLE                 show a bundle's contents
  attendant sign BUNDLE --key KEY          sign a bundle, for servers that require it
  attendant reference BUNDLE --data FILE.tsv --output NEW
                                           add reference statistics for drift detection, and the calibration of
                                           confidence, to a bundle
"""


def command(name: str) -> Command:
    """Returns a subcommand, or `export`."""
    description, add_options = SUBCOMMANDS[name]
    # Only the lines of export's description are not folded.
    formatter = argparse.RawDescriptionHelpFormatter if name == "export" else argparse.HelpFormatter
    parser = CommandParser(prog=f"attendant {name}", description=description, formatter_class=formatter)
    add_options(parser)
    return Command(parser, partial(_run, name))


def main(arguments: Sequence[str]) -> None:
    """Runs the command; `run_command` handles its exceptions."""
    # A run with the name of a subcommand is written as a path: ./verify.
    name = arguments[0] if arguments and arguments[0] in SUBCOMMANDS else "export"
    command(name)(arguments if name == "export" else arguments[1:])


def _run(name: str, options: argparse.Namespace) -> None:
    with ended_by_interrupts():
        function = _function(name, options)
    with _status():
        text = function(options)
    print(text)


def _function(name: str, options: argparse.Namespace) -> Callable[[argparse.Namespace], str]:
    """Imports and returns a subcommand's function. Raises UserError: the output exists."""
    from attendant.export import published  # noqa: PLC0415

    if name in ("export", "import", "reference") and options.output is not None:
        published.refuse_occupied(options.output, force=options.force)
    if name == "export" and options.web is not None:
        # No torch, which takes seconds to import and which a server's environment lacks.
        from attendant.export import static_page  # noqa: PLC0415

        return static_page.export
    if name in published.COMMANDS:
        return published.COMMANDS[name]
    # Importing torch takes seconds: --help, a mistyped option and a missing package don't wait for it.
    for package in ("torch", "onnx", "onnxscript"):
        require(package)
    from attendant.export import commands  # noqa: PLC0415

    return commands.COMMANDS[name]


class _Stages(logging.Handler):
    """Prints the messages that the package logs. On a terminal, each stage replaces the one before; warnings stay."""

    def __init__(self, console: Console, line: Status | None) -> None:
        super().__init__(logging.INFO)
        self._console, self._line = console, line

    def emit(self, record: logging.LogRecord) -> None:
        # Not as markup: shapes are in brackets.
        text = Text(f"export: {record.getMessage()}")
        if self._line is not None and record.levelno == logging.INFO:
            self._line.update(text)
        else:
            self._console.print(text, soft_wrap=True)


@contextlib.contextmanager
def _status() -> Iterator[None]:
    """Shows the current stage: in one changing line on a terminal, else in a line per stage."""
    console, logger = Console(stderr=True), logging.getLogger("attendant.export")
    with console.status("") if console.is_terminal else contextlib.nullcontext() as line:
        handler = _Stages(console, line)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def _export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "origin",
        metavar="RUN|BUNDLE|FILE.py:FUNCTION",
        type=Path,
        help="a run directory, a bundle, or a function that returns your own model (docs/export-your-own.md)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, help="for FUNCTION: state_dict of the module, as torch.save wrote it"
    )
    parser.add_argument(
        "--sources",
        metavar="FILE",
        type=Path,
        help="for FUNCTION: held-out source texts, one a line, on which the graphs are verified (default: those of "
        "--data, else random symbols)",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--output", metavar="BUNDLE", type=Path, help="folder to publish the bundle at")
    place.add_argument(
        "--web",
        metavar="FOLDER",
        type=Path,
        help="folder to publish a static page at, which runs the bundle in the browser, without a server",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing bundle, or page")
    parser.add_argument(
        "--web-libraries",
        metavar="FOLDER",
        type=Path,
        help="for --web: a node_modules folder with onnxruntime-web and @huggingface/tokenizers (default: npm installs "
        "them temporarily)",
    )
    parser.add_argument(
        "--precision",
        metavar="P,...",
        type=_precisions,
        help="precision of weights and arithmetic: fp32, int8 (for CPUs), fp16 (for CUDA); all are made from fp32 and "
        "certified against it, even if the bundle omits it to be smaller (default: fp32; of a page: int8 if the bundle "
        "has it)",
    )
    measuring = parser.add_mutually_exclusive_group()
    measuring.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="pairs on which int8 is compared with fp32, and beams with greedy search (default: a run's test split)",
    )
    measuring.add_argument(
        "--skip-evaluation", action="store_true", help="don't measure; servers then use int8 only on request"
    )
    _add_decoding(parser, "the run's [evaluation], or the bundle's")
    parser.add_argument("--name", help="the model's name in requests (default: the run directory's, or the bundle's)")
    _add_checkpoint(parser)


def _import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("toolkit", metavar="TOOLKIT", type=str.lower, choices=TOOLKITS, help=" or ".join(TOOLKITS))
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=Path,
        nargs="+",
        help="fairseq: a .pt, or a folder with checkpoint_best.pt; g2p_en: checkpoint20.npz; joeynmt: a model folder "
        "or a .ckpt in it; opennmt-py: a .pt; onnx: the encoder and the decoder step, two .onnx",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--output", metavar="BUNDLE", type=Path, help="folder to publish the bundle at")
    place.add_argument(
        "--write-spec", metavar="FILE", type=Path, help="for onnx: draft a description of the graphs, and stop"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing bundle, or description")
    parser.add_argument(
        "--spec", metavar="FILE", type=Path, help="for onnx: the description of the graphs (docs/import-onnx.md)"
    )
    parser.add_argument(
        "--precision",
        metavar="P,...",
        type=_precisions,
        default=("fp32",),
        help="precision of weights and arithmetic, as in `attendant export` (default: fp32)",
    )
    parser.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="held-out pairs: their sources verify the graphs and give the golden examples (default: random symbols); "
        "for onnx, precisions are measured on them",
    )
    parser.add_argument(
        "--segmented",
        action="store_true",
        help="texts of requests and answers are the toolkit's subwords, separated by spaces",
    )
    _add_decoding(parser, "the checkpoint's, or the description's, else greedy search")
    parser.add_argument("--name", help="the model's name in requests (default: the output folder's)")


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)


def _verify_options(parser: argparse.ArgumentParser) -> None:
    _add_bundle(parser)
    parser.add_argument("--run", metavar="RUN", type=Path, help="also compare the graphs with this run in PyTorch")
    _add_checkpoint(parser)
    parser.add_argument(
        "--signature",
        metavar="PEM",
        type=Path,
        action="append",
        default=[],
        help="the bundle must be signed by this public key, or under this authority's certificate; may be repeated",
    )
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu", help=DEFAULT)
    limits = parser.add_argument_group("limits", "limits of time and memory for loading and checking the bundle")
    limits.add_argument(
        "--load-seconds", metavar="SECONDS", type=_in_range(0.1, 86_400), default=LOAD_SECONDS, help=DEFAULT
    )
    limits.add_argument("--load-mib", metavar="MIB", type=_in_range(1, 1_000_000, int), default=LOAD_MIB, help=DEFAULT)


def _sign_options(parser: argparse.ArgumentParser) -> None:
    _add_bundle(parser)
    parser.add_argument(
        "--key", metavar="PEM", type=Path, required=True, help="private key: ECDSA on P-256, P-384 or P-521"
    )
    parser.add_argument(
        "--passphrase-file", metavar="FILE", type=Path, help="a file whose first line is the key's passphrase"
    )
    parser.add_argument(
        "--certificate", metavar="PEM", type=Path, help="the key's certificate from an authority (default: none)"
    )
    parser.add_argument(
        "--chain",
        metavar="PEM",
        type=Path,
        action="append",
        default=[],
        help="intermediate certificates; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing signature")


def _reference_options(parser: argparse.ArgumentParser) -> None:
    _add_bundle(parser)
    parser.add_argument(
        "--data", metavar="FILE.tsv|SOURCE,TARGET", required=True, help="held-out pairs, from validation, not from test"
    )
    parser.add_argument(
        "--training",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="the model's training pairs, which improve the detection of inputs from another domain",
    )
    parser.add_argument(
        "--right",
        metavar="METRIC:PERCENT",
        help="condition for a right answer: exact_match, or a minimum of chrf, rouge_1, rouge_2 or rouge_l, e.g. "
        "chrf:60 (default: by the bundle's metrics)",
    )
    parser.add_argument(
        "--warn-below",
        metavar="PROBABILITY",
        type=_in_range(0.0, 1.0),
        help="confidence below which answers come with a warning (default: that of one in twenty held-out answers, at "
        "most 0.5)",
    )
    parser.add_argument("--output", metavar="BUNDLE", type=Path, required=True, help="folder to publish the bundle at")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")


def _precisions(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PRECISIONS)}")
    return names


def _in_range(low: float, high: float, kind: type[float] = float) -> Callable[[str], float]:
    """Returns a parser of numbers in a range; `kind` may be int."""

    def parsed(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= (value := kind(text)) <= high:
                return value
        noun = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a {noun} from {low:,} to {high:,}")

    return parsed


def _add_decoding(parser: argparse.ArgumentParser, default: str) -> None:
    defaults = parser.add_argument_group(
        "decoding defaults", f"values of a request's unset options (default: {default})"
    )
    defaults.add_argument("--beam-size", metavar="N", type=int, help="live hypotheses; 1: greedy search")
    defaults.add_argument(
        "--length-penalty",
        metavar="A",
        type=_in_range(0, 10),
        help="log P is divided by ((K + length) / (K + 1)) ^ A, 0 to 10",
    )
    defaults.add_argument(
        "--length-penalty-offset", metavar="K", type=_in_range(0, 10), help="5 as in GNMT; 0: a power of the length"
    )
    defaults.add_argument(
        "--patience",
        metavar="P",
        type=_in_range(0, 10),
        help="a beam ends when P times its size have ended, 0 to 10; 0: when no live one can enter the best",
    )
    for name, meaning in (
        ("protect-spans", "return a text's placeholders, tags, addresses, paths and emoji as they are written"),
        ("split-sentences", "decode each line and sentence of a text by itself"),
    ):
        defaults.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=meaning)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", choices=["best", "last"], help="checkpoint of the run (default: best)")


SUBCOMMANDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "export": (DESCRIPTION, _export_options),
    "import": (
        "Turns a recurrent model of another toolkit, or two ONNX graphs, into a bundle, verified like a trained run. "
        "Nothing in a checkpoint is executed.",
        _import_options,
    ),
    "verify": (
        "Checks a bundle on this host: files, digests, the graphs' inputs and outputs, golden examples.",
        _verify_options,
    ),
    "inspect": ("Shows a bundle's contents.", _add_bundle),
    "sign": (
        "Signs a bundle: writes model.sig into its folder, with the library model-signing. A server with "
        "--require-signature serves only bundles that are signed by a key that it trusts.",
        _sign_options,
    ),
    "reference": (
        "Publishes a copy of a bundle with statistics of its answers to held-out texts: reference distributions of "
        "lengths, unknown symbols and log-probabilities, with which a server compares its answers, and the calibration "
        "of confidence, the probability that an answer is right. The weights don't change.",
        _reference_options,
    ),
}
"""The description of each subcommand, and the function that adds its options."""


if __name__ == "__main__":
    handle_ending_signals()  # temporary folders are removed
    exit_command("export", lambda: main(sys.argv[1:]), "cpu,export")
