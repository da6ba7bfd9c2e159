"""Which decisions of a search have a clear margin: those that noise on every log-probability does not change.

This treats the search as a black box. So it works for every option, and covers every decision, from the choice of rows
to the end of the search.
"""

from collections.abc import Sequence

import numpy as np

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Stepper, Taken

NUM_DRAWS = 12
"""A tie between two outcomes goes unnoticed once in 2,048 times: where all draws fall on the same side."""

SPARE_CANDIDATES = 4
"""Further candidates, since the noise may lift one of them among those asked for."""


class NoisyStepper:
    """Another stepper, with uniform noise within +-`amplitude` on each candidate's log-probability."""

    def __init__(self, stepper: Stepper, amplitude: float, random: np.random.Generator) -> None:
        self._stepper = stepper
        self._amplitude = amplitude
        self._random = random

    @property
    def vocabulary_size(self) -> int:
        return self._stepper.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        return self._stepper.encode(sources)

    def step(
        self,
        given: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        output, stepped = self._stepper.step(
            given,
            previous_ids,
            num_candidates=num_candidates + SPARE_CANDIDATES,
            forced_ids=forced_ids,
            banned_ids=banned_ids,
            attention=attention,
        )
        exact = output.candidate_log_probs
        noisy = exact + self._random.uniform(-self._amplitude, self._amplitude, exact.shape).astype(exact.dtype)
        order = np.argsort(-noisy, axis=1, kind="stable")[:, :num_candidates]
        ids = np.take_along_axis(output.candidate_ids, order, axis=1)
        log_probs = np.take_along_axis(noisy, order, axis=1)
        return output._replace(candidate_ids=ids, candidate_log_probs=log_probs), stepped

    def select(self, given: DecoderState | Taken, rows: Ids) -> DecoderState:
        return self._stepper.select(given, rows)

    def concat(self, given: Sequence[DecoderState | Taken]) -> DecoderState:
        return self._stepper.concat(given)


def outcomes_under_noise(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions,
    special_ids: SpecialIds,
    amplitude: float,
) -> list[set[tuple[int, ...]]]:
    """The best hypotheses that each source gets under `NUM_DRAWS` draws of the noise."""
    noisy = NoisyStepper(stepper, amplitude, np.random.default_rng(0))
    repeated = [source for source in sources for _ in range(NUM_DRAWS)]
    found = decode_all(noisy, repeated, options, special_ids)
    best = [hypotheses[0].token_ids for hypotheses in found]
    return [set(best[first : first + NUM_DRAWS]) for first in range(0, len(best), NUM_DRAWS)]
