"""The peers: sizes of their models, their requests, and the results of the plain loops."""

from pathlib import Path
from string import Template

import numpy as np
import pytest
import torch

from attendant.server.inference.v2.open_inference_pb2 import ModelInferRequest
from benchmarks import DATA
from benchmarks.job import Job, sentences
from benchmarks.peers import TRANSFORMERS, transformer_parameters
from benchmarks.plain_model import export_plain, plain_model, torch_loop
from benchmarks.programs import BOS_ID, MARIAN_BLOCK, marian_parameters, marian_shapes, marian_width, onnx_loop
from benchmarks.served_peers import triton_requests
from benchmarks.workload import QUICK


def test_transformers_have_about_as_many_parameters_as_the_model() -> None:
    counts = [transformer_parameters(**shape, vocabulary_size=8000) for shape in TRANSFORMERS.values()]
    assert [round(count / 1e6, 1) for count in counts] == [17.2, 17.5]


def test_requests_to_triton_have_one_shape() -> None:
    requests = [ModelInferRequest.FromString(payload) for payload in triton_requests([([5, 6, 3], 7), ([4, 3], 2)])]
    assert [[list(tensor.shape) for tensor in request.inputs] for request in requests] == [[[1, 3], [1, 1]]] * 2
    sources = [np.frombuffer(request.raw_input_contents[0], "<i8").tolist() for request in requests]
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
    for width in (MARIAN_BLOCK, 3 * MARIAN_BLOCK, 8 * MARIAN_BLOCK):
        limit = marian_parameters(8000, 256, width)
        assert marian_width(8000, 256, limit) == marian_width(8000, 256, limit + 1) == width
        assert marian_width(8000, 256, limit - 1) == max(MARIAN_BLOCK, width - MARIAN_BLOCK)


def test_marians_parameters_are_those_of_its_layers() -> None:
    shapes = marian_shapes(vocabulary=100, embedding=64, width=128)
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
    assert marian_parameters(100, 64, 128) == sum(layers.values())
    assert Template((DATA / "marian.yml").read_text()).get_identifiers() == ["vocabulary", "embedding", "width"]
