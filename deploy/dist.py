"""Builds wheels and source archives of both distributions; the same commit gives the same bytes.

Run by `make dist`, in the environment of deploy/locks/build.txt, with SOURCE_DATE_EPOCH as the time of all files. Each
wheel is built from its source archive, which is therefore complete.
"""

import argparse
import gzip
import io
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ("server-cpu.txt", "server-gpu.txt")
"""Released with the wheels, for installations by hash and without a model hub's client (docs/installing.md)."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the distributions.")
    parser.add_argument("output", type=Path, help="folder for them")
    output = parser.parse_args().output.resolve()
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    output.mkdir(parents=True, exist_ok=True)
    # The archives contain the modes of files.
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        checkout = copy_of_checkout(Path(folder) / "checkout")
        commit = runpy.run_path(str(ROOT / "runtime" / "commit.py"))["commit"]()
        (checkout / "runtime" / "commit.txt").write_text(f"{commit}\n", encoding="utf-8")
        for project in (checkout / "client", checkout):
            archive = output / hook("build_sdist", project, output)
            make_reproducible(archive, epoch)
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            wheel = hook("build_wheel", Path(folder) / archive.name.removesuffix(".tar.gz"), output)
            print(f"dist: {archive.name}, {wheel}")
            # Releases depend on the client's version, not on its folder (setup.py).
            (checkout / "client" / "pyproject.toml").unlink(missing_ok=True)
        for lock in LOCKS:
            shutil.copy(checkout / "deploy" / "locks" / lock, output)


def copy_of_checkout(path: Path) -> Path:
    """Copies the tracked files, links as links; returns the folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in os.fsdecode(listed).split("\0")[:-1]:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path / name, follow_symlinks=False)
    return path


def hook(name: str, project: Path, output: Path) -> str:
    """Calls a build hook of setuptools; returns the name of the file in `output`."""
    program = f"import sys, setuptools.build_meta as b; sys.stderr.write(b.{name}(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(output)]
    run = subprocess.run(command, cwd=project, check=False, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"dist: {project.name}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.stderr.splitlines()[-1]


def make_reproducible(archive: Path, epoch: int) -> None:
    """Rewrites a .tar.gz: sorted, with one time and without names of users."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


if __name__ == "__main__":
    main()
