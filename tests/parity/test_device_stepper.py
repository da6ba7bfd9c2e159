"""Tests of DeviceStepper, which keeps its state on the device: the same bits as OnnxStepper, in every batch.

They use the CPU provider, whose bits must be equal. test_cuda.py has the tests that need a GPU.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import DecoderState, StepOutput


@pytest.fixture(scope="module", params=["lstm", "luong", "bahdanau", "unequal sizes", "fixed vector"])
def bundle(request: pytest.FixtureRequest, bundle_of_kind: Callable[[str], Path]) -> Bundle:
    return open_bundle(bundle_of_kind(request.param))


def sources_of(random: np.random.Generator, count: int, longest: int = 40) -> list[list[int]]:
    return [random.integers(4, 14, length).tolist() for length in random.integers(1, longest, count)]


def assert_same(actual: StepOutput, expected: StepOutput) -> None:
    assert np.array_equal(actual.candidate_ids, expected.candidate_ids)
    assert actual.candidate_log_probs.tobytes() == expected.candidate_log_probs.tobytes()
    assert actual.forced_log_probs.tobytes() == expected.forced_log_probs.tobytes()
    assert (actual.attention is None) == (expected.attention is None)
    if actual.attention is not None and expected.attention is not None:
        assert actual.attention.tobytes() == expected.attention.tobytes()


def test_every_step_has_the_bits_of_the_onnx_stepper(bundle: Bundle) -> None:
    """Covers joins, leaves, reorderings, bans, forced symbols, attention, and any number of candidates."""
    random = np.random.default_rng(5)
    device, plain = DeviceStepper(bundle, provider="cpu"), OnnxStepper(bundle)
    first = sources_of(random, 3)
    states: list[DecoderState] = [device.encode(first), plain.encode(first)]
    for number in range(12):
        if number % 3 == 2:
            joining = sources_of(random, int(random.integers(1, 6)), longest=10 + 5 * number)
            states = [stepper.concat([state, stepper.encode(joining)])
                      for stepper, state in zip((device, plain), states, strict=True)]  # fmt: skip
        num_rows = states[0].num_rows
        assert num_rows == states[1].num_rows
        ids = {
            "forced_ids": random.integers(-1, device.vocabulary_size, num_rows) if number % 2 else None,
            "banned_ids": random.integers(-1, 16, (num_rows, number % 4)) if number % 4 else None,
        }
        previous = random.integers(4, 16, num_rows)
        step_options = {"num_candidates": int(random.integers(1, 40)), "attention": number % 3 != 1, **ids}
        stepped = [stepper.step(state, previous, **step_options)
                   for stepper, state in zip((device, plain), states, strict=True)]  # fmt: skip
        assert_same(stepped[0][0], stepped[1][0])
        rows = random.integers(0, num_rows, int(random.integers(1, 2 * num_rows + 1)))
        # A search keeps the rows of a source together.
        rows = rows[np.argsort(stepped[1][1].row_sources[rows], kind="stable")]
        states = [stepper.select(state, rows)
                  for stepper, (_, state) in zip((device, plain), stepped, strict=True)]  # fmt: skip
    lengths = states[1].source_lengths[states[1].row_sources]
    for name, tensor in states[1].row_tensors.items():
        # Coverage is undefined beyond a source's length: it may be 0 / 0.
        valid = np.arange(tensor.shape[1]) < lengths[:, None] if name == "coverage" else slice(None)
        assert np.array_equal(np.asarray(states[0].row_tensors[name])[valid], tensor[valid]), name
