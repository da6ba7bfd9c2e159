"""What the documents show of the client is true."""

import inspect
import json
import re

from attendant_client import errors
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.paths import ROOT


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
