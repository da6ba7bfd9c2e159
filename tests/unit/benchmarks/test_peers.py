"""Tests of the peers: results of the plain loops, and configurations of trainings."""

import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.job import Job, sentences
from benchmarks.plain_model import export_plain, plain_model, torch_loop
from benchmarks.programs import BOS_ID, onnx_loop
from benchmarks.training import TOOLKITS, configure, write_corpus
from benchmarks.workload import QUICK


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_plain_loop_computes_what_its_model_does(tmp_path: Path) -> None:
    export_plain(str(tmp_path), **asdict(QUICK))
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


@pytest.mark.parametrize("name", TOOLKITS)
def test_configurations_have_every_value(name: str, tmp_path: Path) -> None:
    corpus, folder = write_corpus(QUICK, tmp_path / "data"), tmp_path / "run"
    settings = {"input_feeding": True, "precision": "fp32", "num_threads": 1}
    arguments = configure(TOOLKITS[name], QUICK, folder, corpus, **settings)
    config = folder / TOOLKITS[name].template
    assert str(config) in arguments
    text = config.read_text()
    assert "$" not in text
    assert str(QUICK.hidden_size) in text and str(corpus / "train") in text
    if name == "attendant":
        recipe = tomllib.loads(text)
        assert recipe["training"]["precision"] == "fp32" and recipe["model"]["decoder"]["input_feeding"] is True
        assert recipe["batches"]["max_tokens"] == 2 * QUICK.batch_tokens
