"""`make dist`: both distributions, the same bytes each time, under one version; installed where nothing else is."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attendant.server.bench.host import addresses
from attendant_client import VERSION
from tests.paths import ROOT
from tests.releases.conftest import built

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WHEEL, CLIENT_WHEEL = f"attendant-{VERSION}-py3-none-any.whl", f"attendant_client-{VERSION}-py3-none-any.whl"


def test_both_are_the_same_bytes_twice(distributions: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "again", umask=0o077, TZ="Pacific/Auckland", PYTHONHASHSEED="7")
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (distributions, again))
    archives = {f"attendant-{VERSION}.tar.gz", f"attendant_client-{VERSION}.tar.gz"}
    assert first.keys() == {WHEEL, CLIENT_WHEEL} | archives
    assert [name for name in first if first[name] != second.get(name)] == []


def test_they_hold_every_module_and_no_test(distributions: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    rooms = ("runtime", "training", "export", "server", "library")
    ours = {f"attendant/{name}" for name in tracked if name.startswith(rooms) and name.endswith(".py")}
    clients = {name.removeprefix("client/") for name in tracked if re.match(r"client/attendant_client/.*\.pyi?$", name)}
    wheel, client = (set(zipfile.ZipFile(distributions / name).namelist()) for name in (WHEEL, CLIENT_WHEEL))
    with tarfile.open(distributions / f"attendant-{VERSION}.tar.gz") as opened:
        archive = {name.partition("/")[2] for name in opened.getnames()}
    assert ours | clients <= wheel and ours | clients <= archive and clients <= client
    assert not [name for name in wheel | client | archive if name.startswith(("tests/", "server/", "benchmarks/"))]
    assert "attendant/server/web/page/index.html" in wheel and "attendant_client/py.typed" in wheel & client


@contextmanager
def served(programs: Path, folder: Path) -> Iterator[str]:
    """The pronunciation model, by what is installed; gives its address."""
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
    """A new environment with these alone; gives the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", "--quiet", *constraints, *requirements], check=True, cwd=folder)
    subprocess.run([*pip, "check"], check=True, cwd=folder)
    return folder / "venv/bin"


def says(folder: Path, program: Path, *arguments: str) -> str:
    run = subprocess.run([program, *arguments], cwd=folder, env=bare(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def names_in(programs: Path) -> set[str]:
    return set(re.findall(r"^(\S+)==", says(programs, programs / "python", "-m", "pip", "freeze"), re.MULTILINE)) | set(
        re.findall(r"^(\S+) @ ", says(programs, programs / "python", "-m", "pip", "freeze"), re.MULTILINE)
    )


def test_the_server_and_the_client_answer_from_empty_environments(distributions: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "client").mkdir()
    server = installed(tmp_path / "server", f"{distributions / WHEEL}[cpu]")
    client = installed(tmp_path / "client", str(distributions / CLIENT_WHEEL))
    assert not names_in(server) & {"attendant-client", "attendant_client", "torch"}
    assert not names_in(client) & {"attendant", "numpy", "onnxruntime", "torch"}
    with served(server, tmp_path) as target:
        for programs in (server, client):
            asked = says(tmp_path, programs / "attendant", "generate", "phoneme", "--target", target)
            assert asked == "F OW N IY M\n"
    program = f"import attendant; print(attendant.load({str(ROOT / 'models/g2p-en')!r}).generate('phoneme').best.text)"
    assert says(tmp_path, server / "python", "-c", program) == "F OW N IY M\n"


def test_training_and_export_run_from_empty_environments(distributions: Path, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "export").mkdir()
    training = installed(tmp_path / "training", f"{distributions / WHEEL}[training,cpu]")
    recipe = ["train", str(ROOT / "recipes/copy.toml"), "--output", "run", "--set", "training.max_steps=20"]
    says(tmp_path, training / "attendant", *recipe)
    export = installed(tmp_path / "export", f"{distributions / WHEEL}[export,cpu]")
    says(tmp_path, export / "attendant", "export", "run", "--output", "bundle")
    assert "bundle" in says(tmp_path, export / "attendant", "inspect", "bundle")
