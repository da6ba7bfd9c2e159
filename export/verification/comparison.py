"""How far the traces of a stepper are from its reference's, and whether batch-mates changed a bit of them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendant.export.verification.probes import Trace
from attendant.runtime.decoding.candidates import LEAST_POSSIBLE


def relative_error(value: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest |a - b| / max(1, |b|), a `value` and b its `reference`, of any shape and dtype.

    It is infinite where the shapes differ or either has something that is no number.
    """
    if value.shape != reference.shape:
        return float("inf")
    if not value.size:
        return 0.0
    a, b = value.astype(np.float64), reference.astype(np.float64)
    error = float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))
    return error if np.isfinite(error) else float("inf")


@dataclass(slots=True)
class Worst:
    """The largest error of one tensor, and where it was."""

    error: float = 0.0
    where: str = ""


@dataclass(slots=True)
class Agreement:
    """Gathers the comparisons of a grid.

    Attributes:
        errors: tensor, all steps together -> its worst.
        variations: tensor -> the first place where batch-mates changed its bits.
    """

    errors: dict[str, Worst] = field(default_factory=dict)
    variations: dict[str, str] = field(default_factory=dict)

    def compare(self, traces: Sequence[Trace], references: Sequence[Trace], where: str) -> None:
        """Compares each source's trace with the reference's."""
        for trace, reference in zip(traces, references, strict=True):
            for key in trace.keys() | reference.keys():
                name = tensor_name(key)
                error = relative_error(trace[key], reference[key]) if key in trace and key in reference else np.inf
                worst = self.errors.setdefault(name, Worst())
                if error > worst.error:
                    self.errors[name] = Worst(error, f"{key.partition('/')[0]}, {where}")

    def compare_bits(self, traces: Sequence[Trace], alone: Sequence[Trace], where: str) -> None:
        """Compares each source's trace, bit for bit, with the one that it gave alone."""
        for trace, single in zip(traces, alone, strict=True):
            for key, values in trace.items():
                if not np.array_equal(values, single[key]):
                    self.variations.setdefault(tensor_name(key), f"{key.partition('/')[0]}, {where}")

    def largest_errors(self) -> Mapping[str, float]:
        return {name: worst.error for name, worst in sorted(self.errors.items())}

    def differences(self, allowed: Callable[[str], float]) -> list[str]:
        """One line per tensor that is further off than is allowed to it."""
        return [
            f"{name}: off by {worst.error:.2g} ({worst.where}); allowed is {allowed(name):.2g}"
            for name, worst in sorted(self.errors.items())
            if not worst.error <= allowed(name)
        ]

    def variation_lines(self) -> list[str]:
        """One line per tensor that depends on the batch."""
        return [
            f"{name}: not the same bits alone and with batch-mates ({where})"
            for name, where in sorted(self.variations.items())
        ]


def first_step_lines(traces: Sequence[Trace], references: Sequence[Trace], tolerance: float) -> list[str]:
    """A line where the first step's log-probabilities are further off than that; see `Agreement.differences`."""
    # Later log-probabilities have rounding in them that the recurrence has amplified.
    key, first = "step 1/log_probs", Agreement()
    ours, theirs = ([{key: trace[key]} for trace in one] for one in (traces, references))
    first.compare(ours, theirs, "in one batch")
    return first.differences(lambda name: tolerance)


def distance(name: str, traces: Sequence[Trace], references: Sequence[Trace]) -> float:
    """How far the traces are from the references, as a share of how far these are from each other.

    The mean difference between a source's values and its reference's, over that between the references of neighbouring
    sources, of the step where that is largest. Rounding leaves it small at every step of any model; a wrong graph comes
    near to 1.

    Args:
        name: of a tensor of every step, [R, ...] of each source; features that only one of two sources has, and
            impossible symbols, are left out.
    """
    moments = dict.fromkeys(key for trace in references for key in trace if key.partition("/")[2] == name)
    largest = 0.0
    for key in moments:
        pairs = zip(traces, references, strict=True)
        own = [_mean_difference(trace[key], reference[key]) for trace, reference in pairs]
        others = [_mean_difference(one[key][:1], other[key][:1]) for one, other in itertools.pairwise(references)]
        share = float(np.mean(own)) / max(float(np.mean(others)), float(np.finfo(np.float32).tiny))
        largest = max(largest, share if np.isfinite(share) else np.inf)
    return largest


def _mean_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    width = min(a.shape[-1], b.shape[-1])
    a, b = a[..., :width].astype(np.float64), b[..., :width].astype(np.float64)
    possible = ~((a <= LEAST_POSSIBLE) | (b <= LEAST_POSSIBLE))
    return float(np.abs(a - b)[possible].mean())


def tensor_name(key: str) -> str:
    """The tensor that a trace's key stands for: "encoder/memory"; "step/hidden" of every step's."""
    moment, _, name = key.partition("/")
    return f"encoder/{name}" if moment == "encoder" else f"step/{name}"
