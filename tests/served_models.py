"""Users' models on a server: exported by the pages' commands, served, and compared with a naive loop."""

import subprocess
import sys
from pathlib import Path

import torch

from attendant_client import BlockingClient
from tests.own_models import naive_search, user_model, words
from tests.paths import ROOT
from tests.server_process import server

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
