"""Tests of the client's distribution and its documentation."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.paths import ROOT

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


def test_the_service_config_is_the_clients() -> None:
    (config,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    assert json.loads(config) == SERVICE_CONFIG


def test_every_option_is_in_the_documents() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    for message in (pb.DecodingOptions, pb.SamplingOptions, pb.OutputOptions):
        assert not {field.name for field in message.DESCRIPTOR.fields} - rows
