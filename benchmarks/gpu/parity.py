"""Whether a provider computes what the CPU computes, on sources of unequal lengths, before anything is timed.

onnxruntime's CUDA kernels of recurrent layers were once off by 0.96 there
(https://github.com/microsoft/onnxruntime/issues/1400).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attendant.runtime.stepper import DecoderState, Stepper

LENGTHS = (40, 1, 13, 8, 2, 24, 7, 31, 16, 3, 20)
NUM_STEPS = 12
TOLERANCES = {"fp32": 1e-3, "fp16": 5e-2}
"""|a - b| <= tolerance * max(1, |b|) for every log-probability and attention weight. Each step is given the symbols of
the reference, but its own state: what a kernel gets wrong adds up."""


@dataclass(frozen=True, slots=True)
class Parity:
    """The largest error of a system."""

    system: str
    precision: str
    error: float

    @property
    def holds(self) -> bool:
        # Written so that NaN fails.
        return self.error <= TOLERANCES[self.precision]


def largest_error(stepper: Stepper, reference: Stepper, num_source_symbols: int) -> float:
    """Steps both together: joins in the middle, reorderings, sources that leave, and repeated shapes."""
    random = np.random.default_rng(1)
    worst = 0.0
    sources = [random.integers(4, num_source_symbols, length).tolist() for length in LENGTHS]
    pair = (stepper, reference)
    states: list[DecoderState] = [one.encode(sources[:4]) for one in pair]
    for number in range(NUM_STEPS):
        if number == 2:
            states = [one.concat([state, one.encode(sources[4:])]) for one, state in zip(pair, states, strict=True)]
        num_rows = states[1].num_rows
        previous = random.integers(4, stepper.vocabulary_size, num_rows)
        stepped = [
            one.step(state, previous, num_candidates=stepper.vocabulary_size, attention=True)
            for one, state in zip(pair, states, strict=True)
        ]
        found, expected = (dict(_by_symbol(output)) for output, _ in stepped)
        worst = max([worst, *(_error(found[name], expected[name]) for name in expected)])
        order = np.sort(random.integers(0, num_rows, num_rows)) if number in (4, 8) else np.arange(num_rows)
        states = [one.select(state, order) for one, (_, state) in zip(pair, stepped, strict=True)]
    return worst


def _by_symbol(output: object) -> Iterator[tuple[str, np.ndarray]]:
    ids, log_probs = output.candidate_ids, output.candidate_log_probs  # type: ignore[attr-defined]
    ordered = np.empty_like(log_probs)
    np.put_along_axis(ordered, ids, log_probs, axis=1)
    yield "log_probs", ordered
    if output.attention is not None:  # type: ignore[attr-defined]
        yield "attention", output.attention  # type: ignore[attr-defined]


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    # Steppers may pad their sources wider than the widest needs; weights there are zero.
    width = min(found.shape[1], expected.shape[1])
    differences = np.abs(found[:, :width] - expected[:, :width]) / np.maximum(1.0, np.abs(expected[:, :width]))
    largest = float(differences.max())
    return largest if np.isfinite(largest) else float("inf")
