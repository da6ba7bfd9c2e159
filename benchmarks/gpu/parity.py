"""Whether a provider computes what the CPU computes, on sources of unequal lengths, before anything is timed.

onnxruntime's CUDA kernels of recurrent layers were once off by 0.96 there
(https://github.com/microsoft/onnxruntime/issues/1400).
"""

import numpy as np

from attendant.export.verification.comparison import relative_error
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.onnx.session import Array
from attendant.runtime.stepper import DecoderState, StepOutput, Stepper

LENGTHS = (40, 1, 13, 8, 2, 24, 7, 31, 16, 3, 20)
NUM_STEPS = 12
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""|a - b| <= tolerance * max(1, |b|) for every log-probability and attention weight. Each step is given the symbols of
the reference, but its own state: what a kernel gets wrong adds up."""


def largest_error(stepper: Stepper, reference: Stepper, num_source_symbols: int) -> float:
    """Steps both together: joins in the middle, reorderings, sources that leave, and repeated shapes."""
    random = np.random.default_rng(1)
    worst = 0.0
    sources = [random.integers(4, num_source_symbols, length).tolist() for length in LENGTHS]
    both = (stepper, reference)
    states: list[DecoderState] = [one.encode(sources[:4]) for one in both]
    for number in range(NUM_STEPS):
        if number == 2:
            states = [one.concat([state, one.encode(sources[4:])]) for one, state in zip(both, states, strict=True)]
        num_rows = states[1].num_rows
        previous = random.integers(4, stepper.vocabulary_size, num_rows)
        stepped = [
            one.step(state, previous, num_candidates=stepper.vocabulary_size, attention=True)
            for one, state in zip(both, states, strict=True)
        ]
        found, expected = (_by_symbol(output) for output, _ in stepped)
        worst = max(worst, relative_error(found, expected))
        weights, expected_weights = (output.attention for output, _ in stepped)
        if weights is not None and expected_weights is not None:
            # Steppers may pad their sources wider than the widest needs; weights there are zero.
            width = min(weights.shape[1], expected_weights.shape[1])
            worst = max(worst, relative_error(weights[:, :width], expected_weights[:, :width]))
        order = np.sort(random.integers(0, num_rows, num_rows)) if number in (4, 8) else np.arange(num_rows)
        states = [one.select(state, order) for one, (_, state) in zip(both, stepped, strict=True)]
    return worst


def _by_symbol(output: StepOutput) -> Array:
    """Log-probabilities [R, V] in the order of the symbols."""
    return np.take_along_axis(output.candidate_log_probs, np.argsort(output.candidate_ids, axis=1), axis=1)
