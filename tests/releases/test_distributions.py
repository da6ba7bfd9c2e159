"""Tests of `make dist`: both distributions have the same bytes each time, and work in empty environments."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attendant.server.bench.command import addresses
from attendant_client import VERSION
from tests.paths import ROOT
from tests.releases.conftest import built

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NAMES = ("attendant_seq2seq", "attendant_seq2seq_client")
WHEEL, CLIENT_WHEEL = (f"{name}-{VERSION}-py3-none-any.whl" for name in NAMES)


def test_distributions_are_built_reproducibly(distributions: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "again", umask=0o077, TZ="Pacific/Auckland", PYTHONHASHSEED="7")
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (distributions, again))
    archives = {f"{name}-{VERSION}.tar.gz" for name in NAMES}
    assert first.keys() == {WHEEL, CLIENT_WHEEL, "server-cpu.txt", "server-gpu.txt"} | archives
    assert [name for name in first if first[name] != second.get(name)] == []


def test_distributions_hold_every_module_and_no_test(distributions: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    rooms = ("runtime", "training", "export", "server")
    ours = {f"attendant/{name}" for name in tracked if name.startswith(rooms) and name.endswith(".py")}
    clients = {name.removeprefix("client/") for name in tracked if re.match(r"client/attendant_client/.*\.pyi?$", name)}
    wheel, client = (set(zipfile.ZipFile(distributions / name).namelist()) for name in (WHEEL, CLIENT_WHEEL))
    with tarfile.open(distributions / f"{NAMES[0]}-{VERSION}.tar.gz") as opened:
        archive = {name.partition("/")[2] for name in opened.getnames()}
    assert ours <= wheel and ours <= archive and clients <= client
    assert not wheel & client, "a file that both install is gone when either is uninstalled"
    assert not [name for name in wheel | client | archive if name.startswith(("tests/", "server/", "benchmarks/"))]
    assert "attendant/server/http/page/index.html" in wheel and "attendant_client/py.typed" in client
    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert zipfile.ZipFile(distributions / WHEEL).read("attendant/runtime/commit.txt").decode() == commit


@contextmanager
def served(programs: Path, folder: Path) -> Iterator[str]:
    """Serves the pronunciation model with the installed programs; yields its address."""
    command = [str(programs / "attendant"), "serve", str(ROOT / "models/g2p-en"), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, cwd=folder, env=bare(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield addresses(process.stdout.readline())["serving"]
        finally:
            process.terminate()
        assert process.wait(30) == 0


def bare() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}


def installed(folder: Path, *requirements: str) -> Path:
    """Makes a new environment with these requirements only; returns the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", "--quiet", *constraints, *requirements], check=True, cwd=folder)
    subprocess.run([*pip, "check"], check=True, cwd=folder)
    return folder / "venv/bin"


def wheels(distributions: Path, extras: str) -> tuple[str, str]:
    """Returns the requirements for both distributions with these extras, as files: pip looks up no name of ours."""
    return str(distributions / CLIENT_WHEEL), f"{distributions / WHEEL}[{extras}]"


def says(folder: Path, program: Path, *arguments: str) -> str:
    run = subprocess.run([program, *arguments], cwd=folder, env=bare(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def pronounced(folder: Path, programs: Path) -> str:
    return says(folder, programs / "attendant", "generate", "phoneme", "--bundle", str(ROOT / "models/g2p-en"))


def refused(folder: Path, program: Path, *arguments: str) -> str:
    """Runs a command that must fail here; returns its only line of errors."""
    run = subprocess.run([program, *arguments], cwd=folder, env=bare(), capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1), run.stdout + run.stderr
    return run.stderr


def names_in(programs: Path) -> set[str]:
    lines = says(programs, programs / "python", "-m", "pip", "freeze")
    return set(re.findall(r"^(\S+?)(?:==| @ )", lines, re.MULTILINE))


def test_the_server_and_the_client_answer_from_empty_environments(distributions: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "client").mkdir()
    server = installed(tmp_path / "server", *wheels(distributions, "cpu"))
    client = installed(tmp_path / "client", str(distributions / CLIENT_WHEEL))
    assert "torch" not in names_in(server)
    assert not names_in(client) & {"attendant-seq2seq", "numpy", "onnxruntime", "torch"}
    with served(server, tmp_path) as target:
        for programs in (server, client):
            spoken = says(tmp_path, programs / "attendant", "generate", "phoneme", "--target", target)
            assert spoken == "F OW1 N IY0 M\n"
    program = f"import attendant; print(attendant.load({str(ROOT / 'models/g2p-en')!r}).generate('phoneme').best.text)"
    assert says(tmp_path, server / "python", "-c", program) == "F OW1 N IY0 M\n"
    bundle = str(ROOT / "models/normalize-numbers-en")
    assert "golden examples hold" in says(tmp_path, server / "attendant", "verify", bundle)
    assert "normalize-numbers-en  version" in says(tmp_path, server / "attendant", "inspect", bundle)
    uninstall = [server / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "attendant-seq2seq"]
    subprocess.run(uninstall, check=True)
    assert says(tmp_path, server / "attendant", "generate", "--version") == f"attendant-client {VERSION}\n"
    assert refused(tmp_path, server / "attendant", "serve", "models/g2p-en").startswith("attendant serve: ")
    subprocess.run([server / "python", "-m", "pip", "install", "--quiet", distributions / WHEEL], check=True)
    subprocess.run([*uninstall[:-1], "attendant-seq2seq-client"], check=True)
    check = subprocess.run([server / "python", "-m", "pip", "check"], capture_output=True, text=True, check=False)
    expected = f"attendant-seq2seq {VERSION} requires attendant-seq2seq-client, which is not installed.\n"
    assert (check.returncode, check.stdout) == (1, expected)


def test_the_released_lock_excludes_the_model_hub(distributions: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv/bin"
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--requirement", distributions / "server-cpu.txt"], check=True)
    subprocess.run([*pip, *wheels(distributions, "cpu")], check=True)
    assert not names_in(programs) & {"huggingface-hub", "huggingface_hub", "httpx", "fsspec", "hf-xet"}
    assert pronounced(tmp_path, programs) == "F OW1 N IY0 M\n"


def test_a_checkout_installs_without_asking_an_index_for_our_names(tmp_path: Path) -> None:
    """Installs a copy, because building leaves folders among the sources."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    packed = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "client", "attendant"]
    packed += ["runtime", "training", "export", "server", "recipes"]
    for name in names:
        if name.partition("/")[0] in packed:
            (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "checkout" / name, follow_symlinks=False)
    programs = installed(tmp_path, f"{tmp_path / 'checkout'}[cpu]")
    assert {"attendant-seq2seq", "attendant-seq2seq-client"} <= names_in(programs)
    assert pronounced(tmp_path, programs) == "F OW1 N IY0 M\n"


def test_training_and_export_run_from_empty_environments(distributions: Path, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "export").mkdir()
    training = installed(tmp_path / "training", *wheels(distributions, "training,cpu"))
    says(tmp_path, training / "attendant", "train", "copy", "--output", "run", "--set", "training.max_steps=20")
    program = (
        "import attendant; attendant.train('copy', output='again', overrides={'training.max_steps': 20})._repr_html_()"
    )
    assert says(tmp_path, training / "python", "-c", program) == ""
    export = installed(tmp_path / "export", *wheels(distributions, "export,cpu"))
    says(tmp_path, export / "attendant", "export", "run", "--output", "bundle")
    assert "bundle" in says(tmp_path, export / "attendant", "inspect", "bundle")
    program = (
        "import attendant; print(attendant.export_run('again', 'other', precisions=['int8'], data=[('ab', 'a b')]))"
    )
    assert "int8: " in says(tmp_path, export / "python", "-c", program)
