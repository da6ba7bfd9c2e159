"""Tests that decoding step by step equals teacher forcing of all positions at once, for every architecture.

The two share weights but little code: fused recurrences against cells, projections hoisted out of the loop
against whole ones, attention for all positions against rows that share a source.
"""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.runtime.stepper import attention_layout, pad_sources
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.reference import reference_logits
from attendant.training.model.stepper import TorchStepper
from tests.architectures import architectures, choices_of, covering_architectures

VOCABULARY = 13
LENGTHS = (5, 1, 9, 3)
NUM_STEPS = 6
ARCHITECTURES = architectures()
QUICK = covering_architectures().keys()
"""Architectures that together have every pair of choices; `make test-slow` runs the others."""

CASES = [
    pytest.param(config, id=name, marks=[] if name in QUICK else pytest.mark.slow)
    for name, config in ARCHITECTURES.items()
]


def build(config: ModelConfig) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(config, VOCABULARY, VOCABULARY).double().eval()


def random_pairs() -> tuple[list[list[int]], np.ndarray]:
    random = np.random.default_rng(0)
    sources = [random.integers(3, VOCABULARY, length).tolist() for length in LENGTHS]
    previous = random.integers(3, VOCABULARY, (len(LENGTHS), NUM_STEPS))
    previous[:, 0] = BOS_ID
    return sources, previous


def teacher_forced(model: Seq2Seq, sources: list[list[int]], previous: np.ndarray) -> torch.Tensor:
    width = max(map(len, sources))
    ids = torch.tensor([source + [0] * (width - len(source)) for source in sources])
    with torch.inference_mode():
        return model(ids, torch.tensor([len(source) for source in sources]), torch.from_numpy(previous))


def stepwise(
    model: Seq2Seq, sources: list[list[int]], previous: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns logits [B, T, V] and attention [B, T, S], computed one step after the other."""
    state = TorchStepper(model).encode(sources)
    layout = [torch.from_numpy(array) for array in attention_layout(state.row_sources, state.num_sources)]
    rows, logits, weights = state.row_tensors, [], []
    with torch.inference_mode():
        for previous_ids in previous.T:
            step = model.step(torch.from_numpy(previous_ids.copy()), rows, state.source_tensors, *layout)
            logits.append(step[0])
            rows = step[1]
            weights.append(step[2])
    return torch.stack(logits, 1), torch.stack(weights, 1) if model.config.has_attention else None


@pytest.mark.parametrize("config", CASES)
def test_stepwise_decoding_equals_teacher_forcing(config: ModelConfig) -> None:
    model = build(config)
    sources, previous = random_pairs()
    expected = teacher_forced(model, sources, previous)
    logits, weights = stepwise(model, sources, previous)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    for row, source in zip(() if weights is None else weights, sources, strict=weights is not None):
        torch.testing.assert_close(row[:, : len(source)].sum(-1), torch.ones(NUM_STEPS).double())
        assert not row[:, len(source) :].any()
    # Each pair gets the same logits alone, without neighbours and their padding.
    for index, source in enumerate(sources):
        alone = teacher_forced(model, [source], previous[index : index + 1])
        torch.testing.assert_close(expected[index : index + 1], alone, rtol=1e-10, atol=1e-10)
    model.float()
    logits, _ = stepwise(model, sources, previous)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", CASES)
def test_gradients_of_teacher_forcing_equal_those_of_the_steps(config: ModelConfig) -> None:
    """Compares teacher forcing's own gradient rules with autograd through the plain training step."""
    model = build(config)
    sources, previous = random_pairs()
    ids, lengths = (torch.from_numpy(array) for array in pad_sources(sources, PAD_ID))
    previous_ids = torch.from_numpy(previous)
    weighting = torch.linspace(-1, 1, previous.size * VOCABULARY).double().view(*previous.shape, -1)
    weighting[..., [PAD_ID, BOS_ID]] = 0

    (model(ids, lengths, previous_ids) * weighting).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    (reference_logits(model, ids, lengths, previous_ids) * weighting).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-11, msg=name)


def test_the_quick_architectures_cover_every_pair_of_choices() -> None:
    def meetings(names: Iterable[str]) -> set[frozenset[object]]:
        return {frozenset(two) for name in names for two in itertools.combinations(choices_of(ARCHITECTURES[name]), 2)}

    assert meetings(QUICK) == meetings(ARCHITECTURES)
    assert 6 * 5 <= len(QUICK) < len(ARCHITECTURES) / 10, "at least one for each pair of score and readout"
