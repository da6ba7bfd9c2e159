"""What the documents show of the client is true."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attendant_client import errors
from attendant_client.channel import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.unit.client.fake_server import Served

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("document", ["docs/client.md", "docs/clients.md", "client/README.md"])
def test_the_program_runs(document: str, server: Served) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert "localhost:50051" in program
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    command = [sys.executable, "-c", program.replace("localhost:50051", server.target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search("FACE|HELLO|PHONEME", done.stdout)


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
