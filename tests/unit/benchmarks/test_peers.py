"""The peers: their environments, and that the plain loops compute what their model says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.command import Context
from benchmarks.decoding.job import Job, sentences
from benchmarks.peers.candidates import Candidate
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.in_process import measured
from benchmarks.peers.marian_shapes import BLOCK, narrowed, num_parameters, shapes_of
from benchmarks.peers.plain_loop import BOS_ID, PlainLoop
from benchmarks.peers.plain_model import export_plain, plain_model
from benchmarks.training.environment import InstallationFailed
from benchmarks.training.workload import QUICK


def test_an_interpreter_that_is_not_here_is_named(tmp_path: Path) -> None:
    environment = PeerEnvironment(name="peer", requirements=("peer==1",), interpreters=("python2.4", "python9.9"))
    with pytest.raises(InstallationFailed, match=r"it needs one of python2\.4, python9\.9, and none is here"):
        environment.install(tmp_path)


def test_an_interpreter_that_only_pyenv_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "asked for $2"; exit 1; }\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    environment = PeerEnvironment(name="peer", requirements=("peer==1",), interpreters=("python2.4", "python9.9"))
    with pytest.raises(InstallationFailed, match="asked for venv"):
        environment.install(tmp_path)


def test_a_complete_environment_is_kept(tmp_path: Path) -> None:
    environment = PeerEnvironment(name="peer", requirements=("peer==1",), interpreters=("python9.9",))
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "installed.txt").write_text("peer==1\n")
    assert environment.install(tmp_path) == tmp_path / "peer" / "bin" / "python"


def test_a_peer_that_can_not_be_installed_keeps_its_row_with_the_reason(tmp_path: Path) -> None:
    def fail() -> None:
        raise InstallationFailed("no wheel for this machine")

    said: list[str] = []
    context = Context(workload=QUICK, cache=tmp_path, quick=True, num_requests=1, say=said.append)
    lost = Candidate(key="lost", name="a peer", prepare=fail)  # type: ignore[arg-type]
    ((key, name, measurement, problem),) = measured(context, [lost], Job(num_sentences=1), 0.1)
    assert (key, name, measurement, problem) == ("lost", "a peer", None, "not measured: no wheel for this machine")
    assert said == ["a peer: no wheel for this machine"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_plain_loop_computes_what_its_model_does(tmp_path: Path) -> None:
    export_plain(QUICK, tmp_path)
    loop = PlainLoop(str(tmp_path / "fp32"), 1)
    sources = sentences(Job(num_sentences=3, num_tokens=7, vocabulary_size=QUICK.vocabulary_size))
    encoder, step = plain_model(QUICK)
    with torch.inference_mode():
        memory, keys, hidden, cell = encoder(torch.tensor(sources))
        feeding, previous, wanted = torch.zeros(3, QUICK.hidden_size), torch.full((3,), BOS_ID), []
        for _ in range(5):
            _, ids, hidden, cell, feeding = step(previous, hidden, cell, feeding, memory, keys)
            previous = ids[:, 0]
            wanted.append(previous)
    greedy = loop.decode(sources, 5, 1)
    np.testing.assert_array_equal(greedy, torch.stack(wanted, 1).numpy())
    assert loop.decode(sources, 5, 4).shape == (3, 5)
    np.testing.assert_array_equal(loop.decode(sources[1:2], 5, 4), loop.decode(sources, 5, 4)[1:2])
    assert PlainLoop(str(tmp_path / "int8"), 1).decode(sources, 5, 1).shape == (3, 5)


def test_marian_is_as_wide_as_its_parameters_permit() -> None:
    def parameters(width: int) -> int:
        return num_parameters(shapes_of(8000, 256, width, 2))

    for width in (BLOCK, 3 * BLOCK, 8 * BLOCK):
        assert narrowed(8000, 256, 2, parameters(width)) == width
        assert narrowed(8000, 256, 2, parameters(width) + 1) == width
    assert narrowed(8000, 256, 2, parameters(3 * BLOCK) - 1) == 2 * BLOCK
    assert narrowed(8000, 256, 2, 1) == BLOCK, "never narrower than one block"


def test_marians_parameters_are_those_of_its_layers() -> None:
    shapes = shapes_of(vocabulary=100, embedding=64, width=128, num_layers=2)
    cell = 4 * 128
    layers = {
        "Wemb": 2 * 100 * 64,
        "encoder_bi": 2 * (64 + 128 + 1) * cell + 2 * (128 + 128 + 1) * cell,
        "decoder_cell": (64 + 128 + 1) * cell + (256 + 128 + 1) * cell,
        "decoder_l2": (128 + 128 + 1) * cell,
        "att": 128 * 256 + 256 * 256 + 256 + 256,
        "decoder_ff": (256 + 1) * 128 + (64 + 128 + 256 + 3) * 64 + (64 + 1) * 100,
    }
    for part, size in layers.items():
        assert sum(a * b for name, (a, b) in shapes.items() if part in name) == size, part
    assert num_parameters(shapes) == sum(layers.values())
