"""Two ONNX graphs of a trained model: imported by the page's commands, served, and compared with a naive loop."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.onnx_graphs import KERAS, KERAS_PATHS, NaiveGraphs, export_with_torch
from tests.own_models import SYMBOLS, TutorialTranslator, train
from tests.served_models import assert_served, export_in, write_pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SPEC = """
[source]
tokenizer = "symbols.txt"
kind = "character"
max_tokens = 30
[target]
tokenizer = "symbols.txt"
kind = "character"
max_tokens = 30
"""


@pytest.mark.parametrize("tool", ["torch", "tf2onnx"])
def test_graphs_are_served_as_a_naive_loop_answers(tool: str, tmp_path: Path) -> None:
    if tool == "torch":
        module: torch.nn.Module = TutorialTranslator()
        train(module)
        export_with_torch(module, tmp_path)
    else:
        module = NaiveGraphs(*KERAS_PATHS, KERAS)
        for path in KERAS_PATHS:
            shutil.copy(path, tmp_path)
    (tmp_path / "symbols.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    write_pairs(tmp_path / "test.tsv")
    graphs = ("import", "onnx", "encoder.onnx", "step.onnx")
    export_in(tmp_path, *graphs, "--write-spec", "draft.toml")
    # The draft's tables of the graphs, with the tokenizers written in.
    drafted = (tmp_path / "draft.toml").read_text().partition("# Found by trying the graphs")[2]
    (tmp_path / "spec.toml").write_text(f"{SPEC}#{drafted}")
    line = ("--spec", "spec.toml", "--output", "bundle", "--data", "test.tsv", "--precision", "fp32,int8")
    export_in(tmp_path, *graphs, *line)
    assert_served(tmp_path / "bundle", module)
