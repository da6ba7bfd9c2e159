"""The certificate: what the graphs of a bundle were compared with, how well they agreed, and what is refused.

The graphs are run by the very stepper and decoded by the very search that serve. PyTorch is the reference of the fp32
graphs; the fp32 graphs are that of int8 and fp16, and int8 graphs of 8 bits that of those that were halved.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from attendant.export.verification.comparison import Agreement, distance, first_step_lines
from attendant.export.verification.grid import GridComparison
from attendant.export.verification.plan import (
    FIRST_STEP_TOLERANCE,
    INT8_DISTANCE,
    ROUNDING_MULTIPLE,
    TOLERANCE,
)
from attendant.export.verification.probes import Trace
from attendant.runtime.bundle.manifest import Certificate
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper

NOT_RUN: Final = (
    "not run on CUDA when it was exported: what is certified is the graph on the CPU, where onnxruntime computes in "
    "fp32 between conversions"
)


def certify_traced(grid: GridComparison, model: Seq2Seq) -> Certificate:
    """Compares the fp32 graphs with PyTorch.

    Args:
        grid: its reference runs `model`, the trained one of the same weights.

    Raises:
        VerificationFailed: one line per tensor, or per decoded source, that differs.
    """
    # On other providers batch-mates may change the last bits; the certificate then says so.
    must_be_invariant = grid.stepper.provider == "cpu"
    agreement = grid.compare_steps(from_expected=True)
    rounding = Agreement()
    exact = grid.trace(TorchStepper(copy.deepcopy(model).double()), started_from=grid.expected)
    rounding.compare(grid.expected, exact, "in one batch")

    def allowed(name: str) -> float:
        # Forced log-probabilities are a few of the log-probabilities, seen from another output of the graph.
        seen = name.replace("forced_log_probs", "log_probs")
        own = rounding.errors[seen].error if seen in rounding.errors else 0.0
        return max(TOLERANCE, ROUNDING_MULTIPLE * own)

    # Decodings would only repeat, at length, what differs here.
    grid.refuse([*agreement.differences(allowed), *(agreement.variation_lines() if must_be_invariant else ())])
    report = grid.compare_decodings(allowed("step/log_probs"))
    grid.refuse([*report.token_lines, *(report.batch_lines if must_be_invariant else ())])
    return grid.certificate(agreement, report, tolerance=TOLERANCE, reference_errors=rounding.largest_errors())


def certify_rewritten(grid: GridComparison, arithmetic: Mapping[str, str]) -> Certificate:
    """Compares the int8 or fp16 graphs with the fp32 graphs, or halved int8 graphs with the former ones.

    How far off they are is told, tensor by tensor, and not refused before the rewrite must be wrong: what it costs is
    measured on a test set. int8 must besides give every source the same bits alone and in any batch: its sums are
    exact. fp16 is for GPUs. Where there is none the CPU runs it, in fp32 between conversions. That shows a wrong
    rewrite, a value beyond fp16 and what rounding the stored tensors costs, and the certificate says that CUDA's
    kernels have not been seen.

    Args:
        arithmetic: what the rewrite did; see TracedPair.

    Raises:
        VerificationFailed: log-probabilities are off by more than rounding explains, something is no number, or a
            source got other bits in int8 beside batch-mates.
    """
    precision = grid.stepper.precision
    is_int8, tolerance = precision == "int8", FIRST_STEP_TOLERANCE[precision]
    stored = grid.stored_differently() if is_int8 else frozenset()
    agreement = grid.compare_steps(stored, from_expected=False)
    found = grid.trace(grid.stepper)
    lines = first_step_lines(found, grid.expected, tolerance)
    lines += [f"{name}: no number" for name, error in agreement.largest_errors().items() if not np.isfinite(error)]
    if is_int8:
        lines += [*_far_off(found, grid.expected), *agreement.variation_lines()]
    grid.refuse(lines)
    report = grid.compare_decodings()
    grid.refuse(report.batch_lines if is_int8 else ())
    unseen = {"CUDA": NOT_RUN} if (precision, grid.stepper.provider) == ("fp16", "cpu") else {}
    return grid.certificate(agreement, report, tolerance=tolerance, arithmetic={**arithmetic, **unseen})


def _far_off(found: Sequence[Trace], expected: Sequence[Trace]) -> list[str]:
    """One line per tensor of the teacher-forced steps that is further from fp32's than rounding explains."""
    names = [name for name in ("log_probs", "attention") if f"step 1/{name}" in expected[0]]
    distances = {name: distance(name, found, expected) for name in names}
    return [
        f"step/{name}: {one:.2g} of the distance between sources away from fp32; allowed is {INT8_DISTANCE:g}"
        for name, one in distances.items()
        if not one <= INT8_DISTANCE
    ]
