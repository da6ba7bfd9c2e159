"""Tests of the programs in docs/clients.md, run unchanged except for the address, with a server of models/g2p-en."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server_process import Running, server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEBIAN_GO, DEBIAN_JAVA = Path("/usr/share/gocode"), Path("/usr/share/java")

SECTIONS = dict(
    re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", (ROOT / "docs/clients.md").read_text(), re.DOTALL | re.MULTILINE)
)
(FIND_GOOGLE,) = re.findall(r"^(GOOGLE=.*)$", (ROOT / "docs/clients.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server("models/g2p-en") as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    return tmp_path


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


def addressed(program: str, running: Running) -> str:
    return program.replace("localhost:50051", running.target)


def shell(script: str, folder: Path, **variables: str) -> str:
    """Runs a script; returns its output."""
    script = f"set -e\n{FIND_GOOGLE}\n{script}".replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def expected(running: Running) -> str:
    """Returns the output of the program in Python: two pronunciations and their log-probabilities."""
    (program,) = blocks("Python", "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    done = subprocess.run(
        [sys.executable, "-c", addressed(program, running)], env=environment, capture_output=True, text=True, check=True
    )
    assert "F OW1 N IY0 M\n" in done.stdout
    assert done.stdout.count("\n") == 2
    return done.stdout


def needs(*programs: str, package: Path | None = None) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here; docs/clients.md says what has it")
    if package is not None and not package.exists():
        pytest.skip(f"{package} is not here; docs/clients.md says what has it")


def test_the_documented_node_client_works(running: Running, folder: Path, expected: str) -> None:
    needs("npm", "node")
    (install,), (program,) = blocks("Node", "sh"), blocks("Node", "js")
    (folder / "first_call.js").write_text(addressed(program, running))
    shell(install, folder)
    assert shell("node first_call.js", folder) == expected


def test_the_documented_go_client_works(running: Running, folder: Path, expected: str) -> None:
    needs("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc", package=DEBIAN_GO / "src/google.golang.org/grpc")
    (generate,), (program,) = blocks("Go", "sh"), blocks("Go", "go")
    package = folder / "src/example.org/client"
    package.mkdir(parents=True)
    (package / "protos").symlink_to(ROOT / "protos")
    (package / "main.go").write_text(addressed(program, running))
    shell(generate, package)
    # Debian's packages are not Go modules.
    variables = {"GO111MODULE": "off", "GOPATH": f"{folder}:{DEBIAN_GO}", "GOCACHE": str(folder / "cache")}
    assert shell("go vet . && go run .", package, **variables) == expected


def test_the_documented_java_client_works(running: Running, folder: Path, expected: str) -> None:
    needs("javac", "java", "protoc", "grpc_java_plugin", package=DEBIAN_JAVA / "grpc-netty.jar")
    (generate,), (program,) = blocks("Java", "sh"), blocks("Java", "java")
    (folder / "FirstCall.java").write_text(addressed(program, running))
    shell(generate, folder)
    shell("javac -cp '/usr/share/java/*' -d classes $(find generated -name '*.java') FirstCall.java", folder)
    assert shell("java -cp 'classes:/usr/share/java/*' FirstCall", folder) == expected


def test_the_documented_cpp_client_works(running: Running, folder: Path, expected: str) -> None:
    needs("g++", "pkg-config", "protoc", "grpc_cpp_plugin", package=Path("/usr/include/grpcpp"))
    (build,), (program,) = blocks("C++", "sh"), blocks("C++", "cpp")
    (folder / "first_call.cc").write_text(addressed(program, running))
    shell(build, folder)
    assert shell("./first_call", folder) == expected
