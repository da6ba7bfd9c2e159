"""Lints the API and compares it with the last release's: python protos/check.py [--release].

By buf, offline. `released.binpb` is the API of the last release. `--release` replaces it, in the commit of a release. A
released API must not change: a field keeps its number, type and name, and nothing is removed.
"""

import argparse
import os
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
    """Writes protoc's descriptors of the API to a file that buf reads."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"-I{GOOGLE}", "--include_imports", *options]
    subprocess.run([*command, f"--descriptor_set_out={image}", "attendant/v1/seq2seq.proto"], check=True)


def check(protos: Path = PROTOS) -> int:
    """Prints a line for each violation; returns 0 if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "api.binpb")
        describe(protos, image, "--include_source_info")
        settings = ["--config", str(PROTOS / "buf.yaml")]
        # By default in the home folder, which may not be writable.
        environment = os.environ | {"BUF_CACHE_DIR": folder}
        lint = subprocess.run([BUF, "lint", image, *settings], env=environment, check=False)
        breaking = [BUF, "breaking", image, "--against", RELEASED, *settings]
        comparison = subprocess.run(breaking, env=environment, check=False)
        return lint.returncode or comparison.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Lints the API and compares it with the last release's.")
    parser.add_argument("--release", action="store_true", help="make this API the last release's")
    if parser.parse_args().release:
        describe(PROTOS, RELEASED)
    sys.exit(check())
