"""The API is linted, and what was released of it can't change unnoticed."""

import runpy
import shutil
from pathlib import Path

import pytest

from tests.paths import ROOT

PROTOS = ROOT / "protos"
FILE = "attendant/v1/seq2seq.proto"

check = runpy.run_path(str(PROTOS / "check.py"))["check"]


def test_the_api_is_in_order_and_keeps_what_was_released(capfd: pytest.CaptureFixture[str]) -> None:
    assert check() == 0, capfd.readouterr()


@pytest.mark.parametrize(
    ("there", "instead", "complaint"),
    [
        ("optional uint32 beam_size = 1;", "optional uint32 beam_size = 30;", 'Previously present field "1"'),
        ("optional uint32 beam_size = 1;", "optional int64 beam_size = 1;", "changed type"),
        ("optional uint32 beam_size = 1;", "optional uint32 beams = 1;", 'changed name from "beam_size" to "beams"'),
        ("rpc Score(ScoreRequest) returns (ScoreResponse);", "", 'Previously present RPC "Score"'),
        ("optional uint32 beam_size = 1;", "optional uint32 beamSize = 1;", "should be lower_snake_case"),
    ],
)
def test_what_breaks_callers_is_found(
    there: str, instead: str, complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PROTOS / "attendant", tmp_path / "attendant")
    text = (tmp_path / FILE).read_text()
    assert text.count(there) == 1
    (tmp_path / FILE).write_text(text.replace(there, instead))
    assert check(tmp_path) != 0
    assert complaint in capfd.readouterr().out
