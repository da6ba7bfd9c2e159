"""Models of users, as modules and as ONNX graphs: trained, exported, served, and compared with a naive loop."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attendant_client import BlockingClient
from tests.onnx_graphs import KERAS, KERAS_PATHS, NaiveGraphs, export_with_torch
from tests.own_models import MODELS, SYMBOLS, TutorialTranslator, naive_search, train, user_model, words
from tests.paths import ROOT
from tests.server_process import server

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


NUM_SOURCES = 500


def write_pairs(path: Path) -> None:
    """Writes held-out pairs of the task that `train` teaches."""
    pairs = [(word, word[::-1]) for word in words(300, 10_000)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))


def export_in(folder: Path, *arguments: str) -> None:
    """Runs a command line of `attendant.export` in a folder, without the caller's environment."""
    done = subprocess.run(
        [sys.executable, "-m", "attendant.export", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def assert_served(bundle: Path, module: torch.nn.Module) -> None:
    """Compares answers of a server, in lists, alone and streamed, with a naive loop around a module."""
    sources, model = words(NUM_SOURCES, 20_000), user_model(module)
    with server(str(bundle), "--precision", "fp32") as running, BlockingClient(running.target) as client:
        for beam_size in (1, 4):
            # A call takes 256 texts.
            halves = sources[: NUM_SOURCES // 2], sources[NUM_SOURCES // 2 :]
            answers = [
                answer for half in halves for answer in client.generate(half, beam_size=beam_size, max_length=12)
            ]
            for source, answer in zip(sources, answers, strict=True):
                assert "".join(naive_search(model, list(source), beam_size, 12)[0]) == answer.best.text
                alone = client.generate(source, beam_size=beam_size, max_length=12)
                assert alone.best.text == answer.best.text
        streamed = client.stream(sources[1], beam_size=4, max_length=12)
        assert "".join(delta.text for delta in streamed) == streamed.generation.best.text == answers[1].best.text
