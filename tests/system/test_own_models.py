"""Four models that this project did not design: trained, exported, served, and compared with a naive loop."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attendant_client import BlockingClient
from tests.own_models import MODELS, naive_search, train, user_model, words
from tests.paths import ROOT
from tests.server_process import server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_SOURCES = 500
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
    pairs = [(word, word[::-1]) for word in words(300, 10_000)]
    (tmp_path / "test.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    line = ["mine.py:build", "--weights", "weights.pt", "--output", "bundle", "--data", "test.tsv"]
    done = subprocess.run(
        [sys.executable, "-m", "attendant.export", *line, "--precision", "fp32,int8"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sources = words(NUM_SOURCES, 20_000)
    model = user_model(module)
    with server(str(tmp_path / "bundle"), "--precision", "fp32") as running, BlockingClient(running.target) as client:
        for beam_size in (1, 4):
            # A call takes 256 texts.
            halves = sources[: NUM_SOURCES // 2], sources[NUM_SOURCES // 2 :]
            answers = [
                answer for half in halves for answer in client.generate(half, beam_size=beam_size, max_length=12)
            ]
            alone = client.generate(sources[0], beam_size=beam_size, max_length=12)
            assert alone.best.text == answers[0].best.text
            for source, answer in zip(sources, answers, strict=True):
                assert "".join(naive_search(model, list(source), beam_size, 12)[0]) == answer.best.text
        streamed = client.stream(sources[1], beam_size=4, max_length=12)
        assert "".join(delta.text for delta in streamed) == streamed.generation.best.text == answers[1].best.text
