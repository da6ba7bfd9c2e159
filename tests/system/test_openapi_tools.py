"""Tests of the OpenAPI document with tools: schemathesis tests the server with it, and generators make clients."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import python_of
from tests.server_process import Running, server
from tests.system.test_clients import blocks, needs, shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = """
[checks.positive_data_acceptance]
# What a schema can't say: a model's own limits, a beam as wide as its hypotheses are many, a text that is not blank.
expected-statuses = ["2xx", "400", "401", "403", "404", "429"]

[[operations]]
include-path = "/v1/generate_many"
# A request of a list that is out of range is an error in its place.
checks.negative_data_rejection.expected-statuses = ["200", "400", "401", "404", "413", "415", "429"]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with server("models/g2p-en") as started:
        yield started


def test_schemathesis_finds_no_fault(running: Running, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    program = python_of("openapi").with_name("schemathesis")
    url = f"http://127.0.0.1:{running.metrics_port}/openapi.json"
    command = [program, "run", url, "--checks", "all", "--max-examples", "50", "--seed", "1", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert running.process.poll() is None and "Traceback" not in running.log()


def addressed(program: str, running: Running) -> str:
    return program.replace("localhost:9090", f"127.0.0.1:{running.metrics_port}")


def test_a_generated_python_client_works(running: Running, tmp_path: Path) -> None:
    (generate,), (program,) = blocks("OpenAPI", "sh")[1:], blocks("OpenAPI", "python")
    python = python_of("openapi")
    path = f"{python.parent}:{os.environ['PATH']}"
    shell(addressed(generate, running), tmp_path, PATH=path)
    (tmp_path / "first_call.py").write_text(addressed(program, running))
    assert shell("python first_call.py", tmp_path, PATH=path).splitlines()[0].endswith(" F OW1 N IY0 M")


def test_a_generated_typescript_client_works(running: Running, tmp_path: Path) -> None:
    needs("npm", "node")
    (install, _), (program,) = blocks("OpenAPI", "sh"), blocks("OpenAPI", "ts")
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    (tmp_path / "first_call.ts").write_text(addressed(program, running))
    shell(addressed(install, running), tmp_path)
    options = "--strict --target es2022 --module nodenext --skipLibCheck --rewriteRelativeImportExtensions --outDir out"
    shell(f"npx tsc {options} first_call.ts", tmp_path)
    (tmp_path / "out" / "package.json").write_text(json.dumps({"type": "module"}))
    assert shell("node out/first_call.js", tmp_path).splitlines()[0].endswith(" F OW1 N IY0 M")
    wrong = program.replace("text: 'phoneme'", "text: 5")
    (tmp_path / "first_call.ts").write_text(wrong)
    with pytest.raises(AssertionError, match="TS2322"):
        shell(f"npx tsc {options} first_call.ts", tmp_path)
