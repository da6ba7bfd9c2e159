"""The client's distribution and its documents."""

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from attendant_client import errors
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.paths import ROOT
from tests.unit.client.fake_server import served

CLIENT = ROOT / "client"
GENERATED = CLIENT / "attendant_client" / "v1"


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    import google.rpc

    googleapis = Path(next(iter(google.rpc.__path__))).parents[1]
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *(f"-Iattendant_client/v1={ROOT / 'protos/attendant/v1'}", f"-I{googleapis}"),
            *(f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            "attendant_client/v1/seq2seq.proto",
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "attendant_client/v1").iterdir()}
    committed = {path.name: path.read_text() for path in GENERATED.glob("seq2seq*")}
    assert committed == made, "run `make protos`"


def test_the_dependencies_are_as_new_as_the_generators() -> None:
    text = (GENERATED / "seq2seq_pb2.py").read_text(), (GENERATED / "seq2seq_pb2_grpc.py").read_text()
    generators = {
        "protobuf": re.findall(r"Protobuf Python Version: (\S+)", text[0])[0],
        "grpcio": re.findall(r"GRPC_GENERATED_VERSION = '(\S+)'", text[1])[0],
    }
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    required = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    for name, generator in generators.items():
        assert generator in required[name]
        older = generator.rsplit(".", 1)[0] + ".0"
        assert older == generator or older not in required[name], f"{name} {older} can't load the generated code"


def run(program: str, *banned: str) -> None:
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in banned), program]
    environment = {"PYTHONPATH": str(CLIENT), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_generated_code_and_the_client_come_without_the_command() -> None:
    run(
        "import attendant_client, attendant_client.v1.seq2seq_pb2, attendant_client.v1.seq2seq_pb2_grpc\n"
        "assert 'attendant_client.command' not in sys.modules and 'argparse' not in sys.modules",
        "rich",
    )


def test_the_client_stands_alone() -> None:
    banned = ("runtime", "training", "export", "server", "torch", "numpy", "onnxruntime", "pydantic", "tokenizers")
    run("import attendant_client.command", *banned)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_installs_alone_and_asks_a_server(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python, command = str(tmp_path / "venv/bin/python"), str(tmp_path / "venv/bin/attendant")
    # A copy: building leaves folders beside the sources.
    copied = tmp_path / "client"
    subprocess.run(["cp", "-r", str(CLIENT), str(copied)], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(copied)], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
    )
    names = {line.split("==")[0] for line in listed.stdout.split()}
    assert "attendant-seq2seq-client" in names
    assert not names & {"attendant-seq2seq", "numpy", "torch", "onnxruntime", "grpcio-tools"}
    environment = {"PATH": os.environ["PATH"]}
    with served() as server:
        generate = [command, "generate", "hello", "--target", server.target]
        done = subprocess.run(generate, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")
        program = f"""
import asyncio, importlib.metadata, pathlib, attendant_client
assert importlib.metadata.version("attendant-seq2seq-client") == attendant_client.VERSION
assert (pathlib.Path(attendant_client.__file__).parent / "py.typed").exists()
assert (pathlib.Path(attendant_client.__file__).parent / "v1/seq2seq_pb2.pyi").exists()
async def main():
    async with attendant_client.AttendantClient("{server.target}") as client:
        print((await client.generate("hello")).best.text)
asyncio.run(main())
"""
        done = subprocess.run([python, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")


def test_the_service_config_is_the_clients() -> None:
    (config,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    assert json.loads(config) == SERVICE_CONFIG


def test_every_option_is_in_the_documents() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    for message in (pb.DecodingOptions, pb.SamplingOptions, pb.OutputOptions):
        assert not {field.name for field in message.DESCRIPTOR.fields} - rows


def test_every_error_is_in_the_documents() -> None:
    drawn = re.findall(r"-- (\w+)", inspect.getdoc(errors) or "")
    assert len(drawn) > 8
    text = (ROOT / "docs/client.md").read_text()
    assert all(re.search(rf"^(\|   )?(\S-- )?{name} ", text, re.MULTILINE) for name in drawn)
