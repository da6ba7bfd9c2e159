"""The peers: their environments, and that the plain loops compute what their model says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.server.inference.v2.open_inference_pb2 import ModelInferRequest
from benchmarks.command import Context
from benchmarks.decoding.in_process import Decoder, throughput
from benchmarks.harness.environment import Environment
from benchmarks.harness.measurement import Unavailable
from benchmarks.job import Job, sentences
from benchmarks.peers.decoders import TRANSFORMERS, transformer_parameters
from benchmarks.peers.marian import BLOCK, narrowed, num_parameters, shapes_of
from benchmarks.peers.plain_loop import BOS_ID, onnx_loop
from benchmarks.peers.plain_model import export_plain, plain_model, torch_loop
from benchmarks.peers.served import triton_requests
from benchmarks.workload import QUICK


def test_an_interpreter_that_is_not_here_is_named(tmp_path: Path) -> None:
    environment = Environment(name="peer", package="peer==1", interpreters=("python2.4", "python9.9"))
    with pytest.raises(Unavailable, match=r"it needs one of python2\.4, python9\.9, and none is here"):
        environment.install(tmp_path)


def test_an_interpreter_that_only_pyenv_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "asked for $2"; exit 1; }\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    environment = Environment(name="peer", package="peer==1", interpreters=("python2.4", "python9.9"))
    with pytest.raises(Unavailable, match="asked for venv"):
        environment.install(tmp_path)


def test_a_complete_environment_is_kept(tmp_path: Path) -> None:
    environment = Environment(name="peer", package="peer==1", interpreters=("python9.9",))
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "installed.txt").write_text("peer==1\n")
    assert environment.install(tmp_path) == tmp_path / "peer" / "bin" / "python"


def test_a_peer_that_can_not_be_installed_keeps_its_row_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise Unavailable("no wheel for this machine")

    context = Context(workload=QUICK, cache=tmp_path, quick=True)
    part = throughput(context, [Decoder(key="lost", name="a peer", command=fail)], beam_size=1)  # type: ignore[arg-type]
    assert part.rows == [["a peer", *[None] * 4, "not measured: no wheel for this machine"]]
    assert part.figures == {}
    assert capsys.readouterr().err.startswith("a peer: no wheel for this machine\n")


def test_an_environments_packages_are_installed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("benchmarks.harness.environment.output_of", lambda command: commands.append(list(command)))
    peer = Environment(name="peer", package="peer==1", requirements=("torch==2",), own_dependencies=False)
    (tmp_path / "peer").mkdir()
    peer.install(tmp_path)
    assert commands[0][1:4] == ["-m", "venv", "--clear"]
    assert commands[1][-2:] == ["--disable-pip-version-check", "torch==2"]
    assert commands[2][-2:] == ["--no-deps", "peer==1"]
    peer.install(tmp_path)
    assert len(commands) == 3, "a complete environment is kept"


def test_transformers_have_about_as_many_parameters_as_the_model() -> None:
    found = [transformer_parameters(**shape, vocabulary_size=8000) for shape in TRANSFORMERS.values()]
    assert [round(one / 1e6, 1) for one in found] == [17.2, 17.5]


def test_requests_to_triton_have_one_shape() -> None:
    requests = [ModelInferRequest.FromString(one) for one in triton_requests([([5, 6, 3], 7), ([4, 3], 2)])]
    assert [[list(tensor.shape) for tensor in one.inputs] for one in requests] == [[[1, 3], [1, 1]]] * 2
    sources = [np.frombuffer(one.raw_input_contents[0], "<i8").tolist() for one in requests]
    assert sources == [[5, 6, 3], [4, 3, 0]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_plain_loop_computes_what_its_model_does(tmp_path: Path) -> None:
    export_plain(QUICK, tmp_path)
    loop = onnx_loop(str(tmp_path / "fp32"))
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
    np.testing.assert_array_equal(torch_loop(QUICK).decode(sources, 5, 1), greedy)
    np.testing.assert_array_equal(torch_loop(QUICK).decode(sources, 5, 4), loop.decode(sources, 5, 4))
    assert onnx_loop(str(tmp_path / "int8")).decode(sources, 5, 1).shape == (3, 5)


def test_marian_is_as_wide_as_its_parameters_permit() -> None:
    def parameters(width: int) -> int:
        return num_parameters(shapes_of(8000, 256, width))

    for width in (BLOCK, 3 * BLOCK, 8 * BLOCK):
        assert narrowed(8000, 256, parameters(width)) == width
        assert narrowed(8000, 256, parameters(width) + 1) == width
    assert narrowed(8000, 256, parameters(3 * BLOCK) - 1) == 2 * BLOCK
    assert narrowed(8000, 256, 1) == BLOCK, "never narrower than one block"


def test_marians_parameters_are_those_of_its_layers() -> None:
    shapes = shapes_of(vocabulary=100, embedding=64, width=128)
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
