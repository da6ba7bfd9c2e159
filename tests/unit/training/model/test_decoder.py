"""Tests of decoders in mixed precision: states and gradients are in float32 and close to those of full precision.

tests/parity/test_teacher_forcing.py compares the cells and the training loop with plain steps and with torch's layers.
"""

import pytest
import torch
from torch import Tensor

from attendant.training.kernels.cells import RNN_CLASSES, STATE_NAMES, CellKind
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.decoder import CellLoop, DecoderCell
from tests.architectures import covering_architectures, skip_without_bfloat16_lstm

NUM_ROWS, NUM_STEPS, INPUT_SIZE, HIDDEN_SIZE = 3, 5, 4, 6
CELLS = list(RNN_CLASSES)


@pytest.mark.parametrize("kind", CELLS)
def test_states_keep_32_bits_where_products_have_16(kind: CellKind) -> None:
    torch.manual_seed(0)
    cell = DecoderCell(kind, INPUT_SIZE, 2, HIDDEN_SIZE)
    known = torch.randn(NUM_STEPS, NUM_ROWS, INPUT_SIZE)
    fed = torch.randn(NUM_ROWS, 2, requires_grad=True)
    states = []
    for enabled in (True, False):
        state = tuple(torch.full((NUM_ROWS, HIDDEN_SIZE), 0.1) for _ in STATE_NAMES[kind])
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loop = CellLoop(cell, known, NUM_ROWS, NUM_STEPS)
            assert {product._steps.weight.dtype for product in loop._products} == {
                torch.bfloat16 if enabled else torch.float32
            }
            for _ in range(NUM_STEPS):
                state = loop.step(fed, state)
        states.append(state)
    for low, full in zip(*states, strict=True):
        assert low.dtype == torch.float32 and not torch.equal(low, full)
        torch.testing.assert_close(low, full, rtol=0, atol=0.02)
    gradients = [torch.autograd.grad(state[0].square().sum(), cell.rnn.weight_hh_l0)[0] for state in states]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert torch.cosine_similarity(*(gradient.flatten() for gradient in gradients), dim=0) > 0.99


ARCHITECTURES = covering_architectures()


def gradient(model: Seq2Seq, *, is_low: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    source_ids, previous_ids, next_ids = (torch.randint(3, 11, (4, 6), generator=generator) for _ in range(3))
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        logits = model(source_ids, torch.tensor([6, 3, 1, 5]), previous_ids, torch.arange(24))
        loss = smoothed_cross_entropy(logits, next_ids.flatten(), label_smoothing=0.1)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_gradients_in_bfloat16_are_close_to_those_in_float32(config: ModelConfig) -> None:
    if config.cell == "lstm":
        skip_without_bfloat16_lstm()
    torch.manual_seed(0)
    model = Seq2Seq(config, 11, 11).eval()
    full, low = gradient(model, is_low=False), gradient(model, is_low=True)
    assert low.dtype == torch.float32
    assert torch.cosine_similarity(full, low, dim=0) > 0.97


def random_inputs(kind: CellKind) -> list[Tensor]:
    """Returns the inputs and the parts of the first state."""
    shapes = [(NUM_ROWS, NUM_STEPS, INPUT_SIZE), *[(NUM_ROWS, HIDDEN_SIZE)] * len(STATE_NAMES[kind])]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kind", CELLS)
def test_unrolling_in_bfloat16_is_close_to_float32(kind: CellKind) -> None:
    if kind == "lstm":
        skip_without_bfloat16_lstm()
    torch.manual_seed(0)
    cell = DecoderCell(kind, INPUT_SIZE, 0, HIDDEN_SIZE)
    inputs, *state = (tensor.detach().float() for tensor in random_inputs(kind))
    full = cell.unroll(inputs, tuple(state))
    with torch.autocast("cpu", torch.bfloat16):
        low = cell.unroll(inputs, tuple(state))
    torch.testing.assert_close(low.float(), full, rtol=0, atol=0.02)
    gradients = [
        torch.autograd.grad(outputs.float().square().sum(), cell.rnn.weight_hh_l0)[0] for outputs in (full, low)
    ]
    assert gradients[1].dtype == torch.float32
    assert torch.cosine_similarity(*(gradient.flatten() for gradient in gradients), dim=0) > 0.99
