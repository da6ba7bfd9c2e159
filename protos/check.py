"""Lints the API and compares it with the last release's: python protos/check.py [--release].

By buf, offline. `released.binpb` is the API as the last release has it; before the first one, as it was promised first.
`--release` writes it anew, which belongs into the commit of a release. What was released must not change: a field keeps
its number, type and name, and nothing goes.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import google.rpc

PROTOS = Path(__file__).parent
RELEASED = PROTOS / "released.binpb"
GOOGLE = Path(next(iter(google.rpc.__path__))).parents[1]
BUF = Path(sysconfig.get_path("scripts"), "buf")


def describe(protos: Path, image: Path, *options: str) -> None:
    """Writes what protoc says of the API, as buf takes it too."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"-I{GOOGLE}", "--include_imports", *options]
    subprocess.run([*command, f"--descriptor_set_out={image}", "attendant/v1/seq2seq.proto"], check=True)


def check(protos: Path = PROTOS) -> int:
    """Says what is wrong, a line each; returns 0 where nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "api.binpb")
        describe(protos, image, "--include_source_info")
        settings = ["--config", str(PROTOS / "buf.yaml")]
        lint = subprocess.run([BUF, "lint", image, *settings], check=False)
        breaking = subprocess.run([BUF, "breaking", image, "--against", RELEASED, *settings], check=False)
        return lint.returncode or breaking.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Lints the API and compares it with the last release's.")
    parser.add_argument("--release", action="store_true", help="what is there becomes the last release's")
    if parser.parse_args().release:
        describe(PROTOS, RELEASED)
    sys.exit(check())
