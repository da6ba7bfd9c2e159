"""The commands for published bundles, once their command line is read. They run without PyTorch and onnx."""

import argparse
from pathlib import Path
from typing import Final

from attendant.export.inspection import describe
from attendant.export.status import status
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import SIGNATURE_NAME
from attendant.runtime.bundle.signature import sign_bundle
from attendant.runtime.command import require
from attendant.runtime.errors import UserError, escaped
from attendant.runtime.process import limited


def verify(options: argparse.Namespace) -> None:
    """Prints what holds, one line each."""
    from attendant.export.recheck import recheck  # noqa: PLC0415  # onnxruntime, which the others don't need

    run = None if options.run is None else (options.run, options.checkpoint or "best")
    if run is not None:
        try:
            require("torch")
            require("onnx")
        except ModuleNotFoundError as missing:
            remedy = "pip install 'attendant-seq2seq[export]'"
            raise UserError(f"--run: {missing.name} is not installed: {remedy}") from None
    with status() as say:
        limits = options.load_seconds, options.load_mib
        lines = recheck(options.bundle, options.provider, run, trusted=options.signature, limits=limits, say=say)
    print("\n".join(lines))


def inspect(options: argparse.Namespace) -> None:
    """Prints what the manifest says."""
    bundle = limited(lambda: open_bundle(options.bundle), f"the bundle {options.bundle} is refused")
    # What a manifest says may hold anything that a terminal obeys.
    print("\n".join(map(escaped, describe(bundle))))


def sign(options: argparse.Namespace) -> None:
    """Writes model.sig, and says where.

    Raises:
        UserError: there is one, without --force; options that exclude each other; a bad key or bundle.
    """
    if (options.bundle / SIGNATURE_NAME).exists() and not options.force:
        raise UserError(f"{options.bundle / SIGNATURE_NAME} exists already: add --force to replace it")
    if options.certificate is not None and options.passphrase_file is not None:
        raise UserError("--passphrase-file: the key of a --certificate must not be encrypted")
    if options.chain and options.certificate is None:
        raise UserError("--chain: it leads from a --certificate to its authority, and there is none")
    password = None if options.passphrase_file is None else _first_line(options.passphrase_file)
    written = sign_bundle(
        options.bundle, options.key, certificate=options.certificate, chain=options.chain, password=password
    )
    print(f"{written}: signed by {options.certificate or options.key}")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").split("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--passphrase-file {path} can't be read: {error}") from error


COMMANDS: Final = {"verify": verify, "inspect": inspect, "sign": sign}
