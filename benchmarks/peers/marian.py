"""Marian, in the environment of `bergamot`, the package that has it on PyPI. Its wheels end with Python 3.10."""

from __future__ import annotations

import functools
import importlib.util
import json
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, Sources, answer_jobs, word_of, words_of

MODEL, VOCABULARY = "model.npz", "vocabulary.spm"
EOS_ID, UNK_ID = 0, 1
EOS_BIAS = -50.0
SCALE = 0.05
PEAKEDNESS = 40.0
BLOCK = 64
"""Its integer products want widths in whole blocks."""

NAMED = json.loads(Path(__file__).with_name("marian_shapes.json").read_text(encoding="utf-8"))
"""Two layers on each side, LSTM cells: the sizes of every parameter, by Marian's name for it."""


def shapes_of(vocabulary: int, embedding: int, width: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of every parameter, by Marian's name."""
    sizes = {"vocabulary": vocabulary, "embedding": embedding, "width": width}
    sizes |= {"context": 2 * width, "gates": 4 * width, "one": 1}
    return {name: (sizes[rows], sizes[columns]) for name, (rows, columns) in NAMED.items()}


def num_parameters(shapes: dict[str, tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in shapes.values())


def narrowed(vocabulary: int, embedding: int, most: int) -> int:
    """The greatest width in whole blocks with at most so many parameters; one block at least."""
    width = BLOCK
    while num_parameters(shapes_of(vocabulary, embedding, width + BLOCK)) <= most:
        width += BLOCK
    return width


def make_model(folder: str, vocabulary: int, embedding: int, width: int) -> None:
    """Writes a model of seeded random weights, and a vocabulary of one piece per word of the benchmarks' sentences and
    as many more as the size asks for.
    """
    import sentencepiece  # noqa: PLC0415  # only its own environment has it

    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        name: np.zeros(shape, np.float32) if shape[0] == 1 else random.normal(0, SCALE, shape).astype(np.float32)
        for name, shape in shapes_of(vocabulary, embedding, width).items()
    }
    arrays["decoder_ff_logit_l2_Wt"] *= PEAKEDNESS
    arrays["decoder_ff_logit_l2_b"][0, EOS_ID] = EOS_BIAS
    template = Template((Path(__file__).parent / "marian.yml").read_text(encoding="utf-8"))
    text = template.substitute(vocabulary=vocabulary, embedding=embedding, width=width)
    # It ends with a zero, as C++ wants it.
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(Path(folder, MODEL), **arrays)
    first = NUM_SPECIAL_SYMBOLS - 2  # Marian knows two special symbols
    with Path(folder, VOCABULARY).open("wb") as file:
        words = (word_of(number) for number in range(first, vocabulary))
        ids = {"bos_id": -1, "pad_id": -1, "eos_id": EOS_ID, "unk_id": UNK_ID}
        options = {"model_type": "word", "vocab_size": vocabulary, "minloglevel": 2, **ids}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=words, model_writer=file, **options)


def extension() -> ModuleType:
    """The package's compiled module alone: the package itself asks a web site for its list of models when imported."""
    package = importlib.util.find_spec("bergamot")
    assert package is not None
    found = PathFinder.find_spec("_bergamot", package.submodule_search_locations)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def settings(folder: str, job: Job) -> str:
    """YAML, as JSON is. A batch is so many source tokens, end symbols among them, and no answer is longer than its
    source. Of the precisions that a model without precomputed scales can have, one is fastest for batches, one for
    sentences.
    """
    values = {
        "models": [f"{folder}/{MODEL}"],
        "vocabs": 2 * [f"{folder}/{VOCABULARY}"],
        "beam-size": job.beam_size,
        "normalize": 0.6,
        "max-length-factor": 1.0,
        "max-length-break": job.num_tokens,
        "mini-batch-words": job.num_tokens * job.batch_size,
        "gemm-precision": "int8" if job.batch_size == 1 else "int8shiftAll",
        **{"ssplit-mode": "sentence", "cpu-threads": 1, "workspace": 128, "quiet": True},
    }
    return json.dumps(values)


def work(folder: str, num_workers: int) -> None:
    """Decodes in process."""
    bergamot: Any = extension()
    service = bergamot.Service(bergamot.ServiceConfig(numWorkers=num_workers, cacheSize=0))
    options = bergamot.ResponseOptions(qualityScores=False)
    model = functools.lru_cache(maxsize=None)(service.modelFromConfig)

    def translate(sources: Sources, job: Job) -> None:
        # A line is a sentence; all lines of one request are there before the first batch is made.
        lines = bergamot.VectorString(["\n".join(map(words_of, sources))])
        (answer,) = service.translate(model(settings(folder, job)), lines, options)
        lengths = {answer.target.numWords(number) for number in range(len(sources))}
        if answer.target.numSentences() != len(sources) or lengths != {job.num_tokens}:
            raise AssertionError(f"{len(sources)} answers of {job.num_tokens} tokens were asked for, not {lengths}")

    answer_jobs(translate, batches_itself=True)
