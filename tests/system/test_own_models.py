"""Four models that this project did not design: trained, exported, served, and compared with a naive loop."""

from pathlib import Path

import pytest
import torch

from tests.own_models import MODELS, train
from tests.served_models import assert_served, export_in, write_pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = """
from tests.own_models import MODELS, user_model

def build():
    return user_model(MODELS["{name}"]())
"""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_served_as_a_naive_loop_answers(name: str, tmp_path: Path) -> None:
    module = MODELS[name]()
    train(module)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "mine.py").write_text(PROGRAM.format(name=name))
    write_pairs(tmp_path / "test.tsv")
    line = ("mine.py:build", "--weights", "weights.pt", "--output", "bundle", "--data", "test.tsv")
    export_in(tmp_path, *line, "--precision", "fp32,int8")
    assert_served(tmp_path / "bundle", module)
