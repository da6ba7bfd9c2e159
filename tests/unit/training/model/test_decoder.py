"""Tests of decoders in mixed precision: states and gradients are in float32 and close to those of full precision.

tests/parity/test_teacher_forcing.py compares the cells and the training loop with plain steps and with torch's layers.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from attendant.runtime.stepper import attention_layout
from attendant.training.kernels.cells import RNN_CLASSES, STATE_NAMES, CellKind
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.decoder import CellLoop, DecoderCell
from attendant.training.model.stepper import TorchStepper, candidates, evaluating
from tests.architectures import NEEDS_GPU, covering_architectures, skip_without_bfloat16_lstm

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


def gradient(model: Seq2Seq, dtype: torch.dtype | None = None, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(0)
    source_ids, previous_ids, next_ids = (
        torch.randint(3, 11, (4, 6), generator=generator).to(device) for _ in range(3)
    )
    source_lengths, positions = (torch.tensor(values, device=device) for values in ([6, 3, 1, 5], range(24)))
    model.to(device).zero_grad()
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(source_ids, source_lengths, previous_ids, positions)
        loss = smoothed_cross_entropy(logits, next_ids.flatten(), label_smoothing=0.1)
    assert loss.isfinite()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu()


def model_of(config: ModelConfig) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(config, 11, 11).eval()


LOW = [
    pytest.param(config, dtype, id=f"{name}-{dtype}")
    for name, config in ARCHITECTURES.items()
    for dtype in (torch.bfloat16, torch.float16)
    if config.cell != "lstm" or dtype == torch.bfloat16  # oneDNN has no LSTMs in float16
]


@pytest.mark.parametrize(("config", "dtype"), LOW)
def test_gradients_in_16_bits_are_close_to_those_in_float32(config: ModelConfig, dtype: torch.dtype) -> None:
    if config.cell == "lstm":
        skip_without_bfloat16_lstm()
    model = model_of(config)
    full, low = gradient(model), gradient(model, dtype)
    assert low.dtype == torch.float32
    assert torch.cosine_similarity(full, low, dim=0) > 0.97


@pytest.mark.parametrize(("config", "dtype"), LOW)
def test_weights_and_probabilities_have_32_bits_where_products_have_16(config: ModelConfig, dtype: torch.dtype) -> None:
    """On CUDA, the score of padding and the logit of a ban, -1e9, are refused for float16."""
    if config.cell == "lstm":
        skip_without_bfloat16_lstm()
    model = model_of(config)
    stepper = TorchStepper(model)
    state = stepper.encode([[4, 5, 6], [4]])
    layout = map(torch.from_numpy, attention_layout(state.row_sources, state.num_sources))
    with evaluating(model), torch.autocast("cpu", dtype):
        logits, _, weights = model.step(torch.tensor([4, 5]), state.row_tensors, state.source_tensors, *layout)
        log_probs, _, _ = candidates(logits, torch.tensor([7, 7]), torch.tensor([[5], [-1]]), 9)
    assert {each.dtype for each in (log_probs, weights) if each is not None} == {torch.float32}


@pytest.mark.cuda
@NEEDS_GPU
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_gradients_on_a_gpu_are_close_to_those_on_the_cpu(config: ModelConfig, dtype: torch.dtype | None) -> None:
    model = model_of(config)
    cpu, gpu = gradient(model), gradient(model, dtype, "cuda")
    assert torch.cosine_similarity(cpu, gpu, dim=0) > (0.97 if dtype else 0.9999)
    previous = np.full(2, 4)
    with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
        stepper = TorchStepper(model, "cuda")
        output, _ = stepper.step(
            stepper.encode([[4, 5, 6], [4]]), previous, num_candidates=9, banned_ids=np.array([[5], [-1]])
        )
    assert np.isfinite(output.candidate_log_probs).all()
