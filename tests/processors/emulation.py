"""Runs the checks of tests/processors/checks.py on processors that this host does not have: `make test-processors`.

QEMU's user mode emulates them, instruction by instruction. onnxruntime chooses its kernels by the instructions that a
processor has, so it runs the same kernels as on a real one; their speed can't be measured. QEMU 7.2 has no AVX-512.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from attendant.runtime.errors import UserError
from attendant.runtime.process import processor
from tests.paths import ROOT

BUILD: Final = ROOT / "build" / "processors"
MODELS: Final = ("normalize-numbers-en", "g2p-en", "g2p-ipa", "summarize-debian", "translate-en-fr")
NOISE: Final = "TCG doesn't support requested feature"
"""QEMU's warning for each instruction that it doesn't emulate; the emulated processor then lacks it."""

ARM64_PACKAGES: Final = (
    "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libpython3.11-minimal",
    "libpython3.11-stdlib", "libssl3", "libstdc++6", "libuuid1", "python3.11-minimal", "zlib1g",
)  # fmt: skip
"""Debian 12's Python and the libraries that it and the wheels load."""

ARM64_PROCESSOR: Final = """\
processor\t: {number}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""A Neoverse N1 in /proc/cpuinfo. QEMU shows the host's, with which onnxruntime ends in a segmentation fault."""


@dataclass(frozen=True)
class Processor:
    """An emulated processor.

    Attributes:
        instructions: the instructions that matter to products of matrices.
        python: the command that runs Python on it.
    """

    name: str
    instructions: str
    python: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def main() -> int:
    """Prints a line per processor; returns 1 if a check fails on any, and 2 if the checks can't be run."""
    try:
        emulator = find("qemu-x86_64-static")
        processors = [
            *(
                Processor(name, instructions, [emulator, "-cpu", name, sys.executable])
                for name, instructions in (
                    ("EPYC-Rome", "AVX2, no VNNI"),
                    ("Haswell", "AVX2, no VNNI"),
                    ("Nehalem", "SSE4.2, no AVX"),
                )
            ),
            arm64(find("qemu-aarch64-static")),
        ]
    except UserError as error:
        print(f"test-processors: {error}", file=sys.stderr)
        return 2
    scores = BUILD / "scores.json"
    bundles = [*(ROOT / "models" / name for name in MODELS), *every_layer()]
    own = Processor("this host", processor(), [sys.executable])
    failed = not run(own, [*map(str, bundles), "--write", str(scores)])
    for emulated in processors:
        failed |= not run(emulated, [*map(str, bundles), "--compare", str(scores)])
    return int(failed)


def find(emulator: str) -> str:
    """Returns the path of an emulator.

    Raises:
        UserError: it is not installed.
    """
    if (path := shutil.which(emulator)) is None:
        raise UserError(f"{emulator} is not installed; on Debian and Ubuntu: apt-get install qemu-user-static")
    return path


def run(on: Processor, arguments: Sequence[str]) -> bool:
    """Runs the checks on a processor and prints the outcome; returns True if all pass."""
    start = time.monotonic()
    result = subprocess.run(
        [*on.python, "-m", "tests.processors.checks", *arguments],
        cwd=ROOT,
        # Emulated threads take turns in any case, and OpenMP's would wait for each other in loops.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **on.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    outcome = "passed" if result.returncode == 0 else "FAILED"
    seconds = time.monotonic() - start
    print(f"{on.name} ({on.instructions}): {outcome} in {seconds:.0f} s", flush=True)
    for line in result.stdout.splitlines():
        if NOISE not in line:
            print(f"  {line}", flush=True)
    return result.returncode == 0


def every_layer() -> list[Path]:
    """Exports untrained models on this host that together have every cell, every attention and copying."""
    # Imported here: the exporter needs torch.
    from attendant.export.bundle_writer import write_bundle
    from tests.bundles import KINDS, THOROUGH_PLAN, tiny_exportable

    paths = []
    for kind, options in KINDS.items():
        name = kind.replace(" ", "-")
        paths.append(BUILD / "bundles" / name)
        exportable = tiny_exportable(name=name, **options)
        write_bundle(exportable, paths[-1], precisions=("fp32", "int8"), plan=THOROUGH_PLAN, force=True)
    return paths


def arm64(emulator: str) -> Processor:
    """Returns a 64-bit ARM processor with Debian's Python, and PyPI's wheels of the server's packages.

    Raises:
        UserError: its packages can't be downloaded.
    """
    root = BUILD / "arm64"
    if not root.exists():
        # The folder is complete or absent: an interrupted installation starts again.
        partial = root.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        install_debian(partial)
        install_wheels(partial / "wheels")
        (partial / "proc").mkdir()
        processors = (ARM64_PROCESSOR.format(number=number) for number in range(os.cpu_count() or 1))
        (partial / "proc" / "cpuinfo").write_text("".join(processors), encoding="utf-8")
        partial.rename(root)
    # QEMU looks below `-L` first for every absolute path.
    python = [emulator, "-cpu", "neoverse-n1", "-L", str(root), str(root / "usr/bin/python3.11")]
    return Processor("Neoverse-N1", "64-bit ARM", python, {"PYTHONPATH": str(root / "wheels")})


def install_debian(folder: Path) -> None:
    """Unpacks Debian's packages for ARM; apt's own state on this host stays as it is."""
    lists = folder / "var/lib/apt/lists"
    (lists / "partial").mkdir(parents=True)
    apt = ["apt-get", "--quiet=2"]
    for option in ("APT::Architecture=arm64", "APT::Architectures=arm64", f"Dir::State::Lists={lists}",
                   "Dir::State::status=/dev/null", "APT::Sandbox::User=root"):  # fmt: skip
        apt += ["-o", option]
    command(*apt, "update", folder=folder)
    command(*apt, "download", *ARM64_PACKAGES, folder=folder)
    for package in folder.glob("*.deb"):
        command("dpkg-deb", "--extract", package.name, ".", folder=folder)
        package.unlink()


def install_wheels(folder: Path) -> None:
    """Installs PyPI's wheels of the server's locked dependencies for ARM."""
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)] + ["manylinux2014_aarch64", "any"]
    command(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)),
        *(word for platform in platforms for word in ("--platform", platform)),
        *("--python-version", "3.11", "--implementation", "cp", "--only-binary", ":all:", "--no-deps"),
        *("--require-hashes", "--requirement", str(ROOT / "deploy/locks/server-cpu.txt")),
        folder=ROOT,
    )


def command(*words: str, folder: Path) -> None:
    """Runs a command in a folder.

    Raises:
        UserError: it is missing, or fails.
    """
    try:
        subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"{words[0]} is not there: the ARM processor is tested on Debian and Ubuntu only") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise UserError(f"{' '.join(words[:3])} fails: {reason[0]}") from error


if __name__ == "__main__":
    sys.exit(main())
