"""Tests of products in a loop and of dropout against torch's plain operators."""

import gc
import weakref

import pytest
import torch

from attendant.training.kernels.cells import Dropout, LoopedProduct

NUM_STEPS, NUM_ROWS, OUTPUT_SIZE, INPUT_SIZE = 5, 2, 4, 3


def test_several_backward_passes_of_a_graph_are_independent() -> None:
    weight, first = torch.randn(INPUT_SIZE, INPUT_SIZE, requires_grad=True), torch.randn(NUM_ROWS, INPUT_SIZE)
    addends = torch.randn(NUM_STEPS, NUM_ROWS, INPUT_SIZE, requires_grad=True)
    product, outputs = LoopedProduct(addends, weight), [first.requires_grad_()]
    for _ in range(NUM_STEPS):
        outputs.append(product(outputs[-1]))
    leaves = (weight, addends, first)
    for needed in (2, NUM_STEPS, 3):
        result = torch.autograd.grad(outputs[needed].sum(), leaves, retain_graph=True)
        plain = first
        for step in range(needed):
            plain = plain @ weight.T + addends[step]
        torch.testing.assert_close(result, torch.autograd.grad(plain.sum(), leaves))
        # A backward pass for `first` alone must not change the next pass.
        torch.autograd.grad(outputs[4].sum(), first, retain_graph=True)


def test_data_of_the_steps_is_freed_with_the_graph() -> None:
    """Checks that no cycle of references keeps the steps' data until Python's garbage collector runs."""
    product, inputs = (
        LoopedProduct(
            torch.zeros(NUM_STEPS, NUM_ROWS, INPUT_SIZE), torch.randn(INPUT_SIZE, INPUT_SIZE, requires_grad=True)
        ),
        torch.randn(NUM_ROWS, INPUT_SIZE),
    )
    for _ in range(NUM_STEPS):
        inputs = product(inputs)
    left = weakref.ref(product._steps)
    inputs.sum().backward()
    gc.disable()
    try:
        del product, inputs
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_drops_the_expected_share_and_scales_the_others(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = torch.ones(333, 301, dtype=dtype, requires_grad=True)
    outputs = Dropout(probability)(inputs)
    assert outputs.dtype == dtype
    kept = outputs != 0
    # Five standard deviations of a mean of 100,233 draws.
    assert kept.double().mean().item() == pytest.approx(1 - probability, abs=5 * 0.5 / inputs.numel() ** 0.5)
    torch.testing.assert_close(outputs[kept], torch.full_like(outputs[kept], 1 / (1 - probability)))
    outputs.sum().backward()
    assert torch.equal(inputs.grad, outputs)


def test_elements_of_one_random_word_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(20_000, 4)) != 0).double()
    torch.testing.assert_close(torch.corrcoef(kept.T), torch.eye(4).double(), rtol=0, atol=0.05)


def test_random_numbers_are_those_of_the_generator() -> None:
    dropout, inputs = Dropout(0.3), torch.ones(7, 5)
    torch.manual_seed(0)
    first, second = dropout(inputs), dropout(inputs)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(dropout(inputs), first)


def test_looped_dropout_draws_another_mask_at_each_step() -> None:
    torch.manual_seed(0)
    inputs = torch.ones(50, 40, requires_grad=True)
    drop = Dropout(0.25).looped(inputs, num_steps=3)
    outputs = [drop(inputs) for _ in range(3)]
    for output in outputs:
        assert (output == 0).double().mean().item() == pytest.approx(0.25, abs=0.05)
        torch.testing.assert_close(output.max().item(), 1 / 0.75)
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(torch.autograd.grad(outputs[2].sum(), inputs)[0], outputs[2])


@pytest.mark.parametrize("dropout", [Dropout(0.0), Dropout(0.5).eval()], ids=["probability 0", "not in training"])
def test_no_element_is_dropped_at_probability_zero_or_in_evaluation(dropout: Dropout) -> None:
    inputs, before = torch.randn(3, 4), torch.get_rng_state()
    assert dropout(inputs) is inputs
    assert dropout.looped(inputs, num_steps=2)(inputs) is inputs
    assert torch.equal(torch.get_rng_state(), before)
