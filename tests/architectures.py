"""Small architectures for tests that must hold for all of them."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from attendant.training.kernels.cells import CellKind
from attendant.training.model import ModelConfig
from attendant.training.model.config import ReadoutKind, ScoreKind

HIDDEN_SIZE = 6
DEPTHS = ((1, 1, True), (2, 2, True), (3, 1, True), (1, 2, True), (4, 3, True), (3, 4, False))
"""Layers of the encoder and of the decoder, and whether they are residual."""

READINGS = ("bidirectional", "forward", "reversed")
FIRST_STATES = ("bridge", "mean", "zeros", "final", "backward", "top", "projected")
PROJECTED_READOUTS = (("tanh", False), ("tanh", True), ("linear", True))
"""Readouts of context and state alone, and whether they have a bias."""


def architectures() -> dict[str, ModelConfig]:
    """Returns every valid combination of the choices inside a decoder step.

    These are cell, score, query, feeding, readout and projections. Depth, the encoder's reading and the first state
    affect the step only from outside, so the combinations take their values in turn. The same holds for the readouts
    that resemble tanh.
    """
    outside = [
        (depth, reading, first_state, projected)
        for depth, reading, first_state, projected in itertools.product(
            DEPTHS, READINGS, FIRST_STATES, PROJECTED_READOUTS
        )
        if reading == "bidirectional" or first_state != "backward"
    ]
    rest = itertools.cycle(_mixed(outside))
    configs = {}
    for inner in _inner_choices():
        try:
            name, config = _config(inner, *next(rest))
        except ValidationError:
            continue
        configs[name] = config
    return configs


def choices_of(config: ModelConfig) -> frozenset[tuple[str, Any]]:
    """Returns the architecture's choices by dotted name, without sizes."""
    plain = config.model_dump(mode="json")
    tables = {name: plain.pop(name) for name in ("encoder", "attention", "decoder")}
    named = plain | {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    chosen = {name: value is not None if name.endswith("_size") else value for name, value in named.items()}
    return frozenset(item for item in chosen.items() if item[0] not in ("embedding_size", "hidden_size", "dropout"))


@functools.cache
def covering_architectures() -> dict[str, ModelConfig]:
    """Returns few architectures that have every pair of choices of all architectures, ordered by new pairs."""
    configs = architectures()
    return {name: configs[name] for name in covering({name: choices_of(config) for name, config in configs.items()})}


def covering(cases: Mapping[str, Iterable[tuple[str, Any]]]) -> list[str]:
    """Returns a pairwise cover: the names of few cases that have every pair of choices of all cases.

    Each name is that of the case with the most pairs that the cases before it lack.

    Args:
        cases: name -> (option, value) of each of its choices.
    """
    meetings = {name: set(itertools.combinations(sorted(own, key=str), 2)) for name, own in cases.items()}
    wanted = set[Any]().union(*meetings.values())
    chosen = []
    while wanted:
        chosen.append(max(meetings, key=lambda name: len(meetings[name] & wanted)))
        wanted -= meetings.pop(chosen[-1])
    return chosen


def _inner_choices() -> Iterator[dict[str, Any]]:
    for cell, score, query, feeding, readout, projected, special in itertools.product(
        get_args(CellKind),
        (*get_args(ScoreKind), "none"),
        ("current", "previous"),
        (False, True),
        [kind for kind in get_args(ReadoutKind) if kind != "linear"],
        (False, True),
        ("", "coverage", "copying"),
    ):
        if special == "copying" and (projected or readout != "tanh"):
            continue  # copying uses only the attention's weights
        yield {
            "cell": cell,
            "attention": {
                "score": score,
                "query": query,
                "key_size": 4 if projected and score != "general" else None,
                "value_size": 5 if projected else None,
                "coverage": special == "coverage" and score != "none",
            },
            "shared_embeddings": special == "copying",
            "decoder": {
                "input_feeding": feeding,
                "readout": readout,
                "source_vector": special == "coverage" and score == "none",
                "copying": special == "copying",
            },
        }


def _config(
    inner: dict[str, Any], depth: tuple[int, int, bool], reading: str, first_state: str, projected: tuple[str, bool]
) -> tuple[str, ModelConfig]:
    encoder_layers, decoder_layers, residual = depth
    bidirectional = reading == "bidirectional"
    encoder = {
        "num_layers": encoder_layers,
        "bidirectional": bidirectional,
        "hidden_size": HIDDEN_SIZE // (2 if bidirectional else 1),
        "reverse_source": reading == "reversed",
    }
    decoder = {**inner["decoder"], "num_layers": decoder_layers, "initial_state": first_state}
    if decoder["readout"] == "tanh" and (inner["attention"]["score"] != "none" or decoder["source_vector"]):
        decoder["readout"], decoder["readout_bias"] = projected
    config = ModelConfig(
        **{**inner, "encoder": encoder, "decoder": decoder},
        embedding_size=5,
        hidden_size=HIDDEN_SIZE,
        residual=residual,
    )
    attention = config.attention
    flags = {
        "bias": config.decoder.readout_bias,
        "feeding": config.decoder.input_feeding,
        "projected": attention.value_size is not None,
        "coverage": attention.coverage,
        "copying": config.decoder.copying,
        "vector": config.decoder.source_vector,
    }
    parts = [config.cell, attention.score, attention.query, config.decoder.readout]
    parts += [flag for flag, is_set in flags.items() if is_set]
    depths = f"{encoder_layers}x{decoder_layers}{'' if residual else '-plain'}"
    return "-".join([*parts, depths, reading, first_state]), config


def _mixed(choices: list[Any]) -> list[Any]:
    """Returns the choices in an order in which neighbours differ in everything."""
    stride = 19  # shares no factor with the number of choices
    return [choices[index * stride % len(choices)] for index in range(len(choices))]


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


def skip_without_bfloat16_lstm() -> None:
    """Skips a test of LSTMs in bfloat16 on processors on which recipes with bf16 are refused."""
    if not torch.cpu.get_capabilities().get("avx512_f"):
        pytest.skip("oneDNN has LSTMs in bfloat16 for AVX-512 only")
