"""The grid on which graphs are compared, and how closely they must agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attendant.runtime.bundle.manifest import Precision

TOLERANCE = 1e-5
"""|a - b| <= TOLERANCE * max(1, |b|), for every element of every tensor, a the graphs' and b PyTorch's."""

ROUNDING_MULTIPLE = 8
"""Weights with large logits amplify rounding until PyTorch in float32 is further than TOLERANCE from its own float64.
No runtime can then be asked to be nearer to it than that: a tensor may be off by this multiple of PyTorch's own error
there. On three trainings of recipes/reverse.toml, whose log-probabilities were off by up to 5.3e-5, the graphs' error
was 1.1 to 3.5 times PyTorch's."""

TIE_TOLERANCES = 10
"""Tokens may differ where the reference's own decision hangs on less than this many tolerances."""

FIRST_STEP_TOLERANCE: Final[Mapping[Precision, float]] = {"int8": 1.0, "fp16": 0.05}
"""As TOLERANCE, for a first step's log-probabilities against the fp32 graphs': a wrong rewrite is further off. What
int8 costs in quality is measured on a test set. Rounding logits of 8 to 16 to fp16 alone moves them by up to 0.004."""

INT8_DISTANCE = 0.2
"""Of every teacher-forced step's log-probabilities and attention: the mean distance of int8 from the fp32 graphs, as a
share of that between sources (comparison.py). Rounding makes it 0.02 to 0.05 on random models, a matrix whose
rows stand in wrong places 0.3 to 5."""

SCORE_TOLERANCE: Final[Mapping[Precision, float]] = {"fp32": 1e-4, "int8": 1e-2, "fp16": 2e-2}
"""How far a golden example's scores may be off on another host: its last bits differ at each of many steps. Where such
a bit tips a rounding to the next code, an int8 activation moves by a whole step. fp16 is certified and served by other
kernels, which round in other places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationPlan:
    """The grid of a certificate.

    Attributes:
        batch_sizes: sources stepped together, in every one of which each source must give the same.
        source_lengths: dealt out in turn, so that every batch has unequal ones.
        beam_sizes: rows per source, dealt out in turn; and the beams of the decodings.
        num_steps: teacher-forced steps, between which each source's rows are reordered, repeated and dropped.
        num_decoded: sources decoded by both sides and compared token for token, per beam size.
        num_alone: of these, the ones decoded alone as well, and compared bit for bit.
        max_length: of the decodings.
    """

    batch_sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 16, 33, 64)
    source_lengths: tuple[int, ...] = (80, 1, 13, 8, 2, 40, 7, 9, 24, 3, 64, 17, 5, 31, 16, 57, 11)
    beam_sizes: tuple[int, ...] = (1, 2, 4, 5)
    num_steps: int = 6
    num_decoded: int = 96
    num_alone: int = 16
    max_length: int = 40


FULL_PLAN = VerificationPlan()
