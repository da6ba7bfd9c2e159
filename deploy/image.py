"""Installs an image's packages and assembles its root folder: they, the Python that runs them, the shared libraries.

Run while an image is built (Dockerfile), by the Python of deploy/locks/build.txt. The image has no shell and no package
manager; Debian's libraries keep their licences and their entries for scanners. Files are the same for the same input:
their time is SOURCE_DATE_EPOCH, and compiled modules contain no times.
"""

import argparse
import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

USER = 10001
# Tests, and files for compilers, type checkers and shells.
NOT_RUN = ("__pycache__", "test", "tests", "*.a", "*.h", "*.pyi", "activate*", "Activate.ps1")
NOT_RUN_OF_PYTHON = ("idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-3*", "*-packages")
NOT_RUN_OF_PACKAGES = ("onnxruntime/transformers", "onnxruntime/tools", "pygments/lexers")
"""Conversions of other models, and grammars of programming languages."""

SETTINGS = (
    *("/etc/os-release", "/usr/lib/os-release", "/etc/debian_version"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl/certs/ca-certificates.crt"),
)
"""Files of the base image, if it has them."""

ACCOUNTS = {
    "passwd": f"root:x:0:0:root:/:/nologin\nattendant:x:{USER}:{USER}::/:/nologin\n",
    "group": f"root:x:0:\nattendant:x:{USER}:\n",
    "nsswitch.conf": "hosts: files dns\n",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Assembles an image's root folder.")
    parser.add_argument("locks", nargs="+", metavar="LOCK", help="name of a file in deploy/locks")
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment that the image runs")
    parser.add_argument("--root", type=Path, required=True, help="folder to make")
    parser.add_argument("--folders", nargs="+", required=True, help="empty folders in it, to mount there or to work in")
    options = parser.parse_args()
    root: Path = options.root
    install(options.locks, options.environment)
    put_python(options.environment, root)
    # With CUDA's libraries it has gigabytes, which the build would store twice.
    shutil.rmtree(options.environment)
    put_libraries(root)
    for name in SETTINGS:
        put(Path(name), root)
    for name, text in ACCOUNTS.items():
        within(root, Path("/etc") / name).write_text(text)
    (root / "tmp").mkdir(mode=0o1777)
    for name in options.folders:
        (root / name).mkdir()
    subprocess.run(["ldconfig", "-r", root, "-X"], check=True)
    # ldconfig's cache contains times.
    shutil.rmtree(root / "var/cache", ignore_errors=True)
    compile_modules(root)
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [root, *root.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def install(locks: Sequence[str], environment: Path) -> None:
    """Installs the locked packages by their hashes, and this project. No other name is looked up, not even to build."""
    pip = [sys.executable, "-m", "pip"]
    # Always the same folder: installed packages record its path.
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
    for lock in locks:
        subprocess.run([*build, "--require-hashes", "--requirement", f"locks/{lock}.txt"], check=True)
    subprocess.run([*build, "--no-index", "./client-distribution", "."], check=True)
    installed = [*pip, "--python", environment, "install", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*installed, *sorted(Path("wheels").glob("*.whl"))], check=True)
    shutil.rmtree("wheels")


def put_python(environment: Path, root: Path) -> None:
    """Copies the environment, the interpreter with all links that lead to it, and the standard library."""
    shutil.copytree(environment, within(root, environment), symlinks=True, ignore=shutil.ignore_patterns(*NOT_RUN))
    for packages in within(root, environment).glob("lib/python3*/site-packages"):
        for name in NOT_RUN_OF_PACKAGES:
            shutil.rmtree(packages / name, ignore_errors=True)
    link = environment / "bin/python3"
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        put(link, root)
    ignored = shutil.ignore_patterns(*NOT_RUN, *NOT_RUN_OF_PYTHON)
    library = Path(sysconfig.get_paths()["stdlib"])
    shutil.copytree(library, within(root, library), symlinks=True, ignore=ignored)


def put_libraries(root: Path) -> None:
    """Copies the shared libraries that programs in `root` are linked with, and the entries of their packages."""
    programs = [path for path in root.rglob("*") if path.is_file() and (".so" in path.name or os.access(path, os.X_OK))]
    libraries = set()
    for program in sorted(programs):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        libraries |= {Path(name) for name in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.MULTILINE)}
    own = {path for path in libraries if path.is_relative_to(root)}
    owners = set()
    for library in sorted(libraries - own):
        shutil.copy2(library.resolve(), within(root, library))
        owners.update(packages_of(library.resolve()))
    for package in sorted(owners):
        put(Path("/usr/share/doc") / package / "copyright", root)
        entry = subprocess.run(["dpkg", "--status", package], capture_output=True, text=True, check=True).stdout
        within(root, Path("/var/lib/dpkg/status.d") / package).write_text(entry)


def packages_of(path: Path) -> Iterator[str]:
    """Yields the Debian package of a file, if it has one."""
    for name in (path, Path("/") / path.relative_to("/usr") if path.is_relative_to("/usr") else path):
        run = subprocess.run(["dpkg", "--search", name], capture_output=True, text=True, check=False)
        yield from re.findall(r"^([^:\s]+)(?::\w+)?: ", run.stdout, re.MULTILINE)


def compile_modules(root: Path) -> None:
    """Compiles all modules to the same bytes each time: at run time nothing can be written."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        compileall.compile_dir(folder, maxlevels=0, stripdir=root, prependdir="/", quiet=2, invalidation_mode=mode)


def put(path: Path, root: Path) -> None:
    """Copies a file, link or folder of the base, if it exists."""
    if path.is_dir():
        shutil.copytree(path, within(root, path), symlinks=True)
    elif path.exists():
        shutil.copy2(path, within(root, path), follow_symlinks=False)


def within(root: Path, path: Path) -> Path:
    """Returns the path's place in the image; makes its folder."""
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


if __name__ == "__main__":
    main()
