"""What options make of a step's candidates before the search orders them: forced symbols, penalties, draws.

The model says which symbols are probable; a prefix, a repetition penalty, sampling and alternatives change which of
them a hypothesis takes. Each changes the lists of its own rows only, so the search behind it is one for all.

Shapes: R rows, K candidates of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.options import Sampling
from attendant.runtime.stepper import Floats, Ids

LEAST_POSSIBLE: Final = -1e8
"""A log-probability below this is of a banned symbol, whose logit is -1e9; no other symbol's comes near."""


@dataclass(slots=True)
class Candidates:
    """The candidates of all rows, best first, in arrays that may be written to.

    Attributes:
        ids: int64 [R, K].
        log_probs: float32 [R, K] what the model gives them.
        scores: float64 [R, K] what they are ordered by: the log-probabilities, less the penalties.
    """

    ids: Ids
    log_probs: Floats
    scores: NDArray[np.float64]

    @classmethod
    def of_rows(cls, ids: Ids, log_probs: Floats, rows: Ids) -> "Candidates":
        """Copies the candidates [R, K] of rows [R'], which may be repeated."""
        log_probs = log_probs[rows]
        return cls(ids[rows], log_probs, log_probs.astype(np.float64))

    def force(self, row: int, token_id: int, log_prob: float) -> None:
        """Leaves a row this symbol alone."""
        self.ids[row, 0], self.log_probs[row, 0], self.scores[row, 0] = token_id, log_prob, log_prob
        self.scores[row, 1:] = -math.inf

    def choose(self, row: int, rank: int) -> None:
        """Leaves a row the candidate of this rank alone."""
        self.ids[row, 0] = self.ids[row, rank]
        self.log_probs[row, 0] = self.log_probs[row, rank]
        self.scores[row, 0] = self.scores[row, rank]
        self.scores[row, 1:] = -math.inf

    def restrict(self, row: int, token_ids: Ids) -> None:
        """Leaves a row these symbols alone, in the model's order."""
        self.scores[row, ~np.isin(self.ids[row], token_ids)] = -math.inf
        self._order(row)

    def penalize(self, row: int, token_ids: Sequence[int], penalty: float) -> None:
        """Divides the probability of symbols that stand in the row's hypothesis, and orders its candidates anew.

        Keskar et al. (2019), section 4.1, divide the logits; a quotient of probabilities needs no logits, and does not
        spare a symbol that the model is sure of.
        """
        self.scores[row, np.isin(self.ids[row], token_ids)] -= math.log(penalty)
        self._order(row)

    def _order(self, row: int) -> None:
        # Stable: of equal scores, the one that the model prefers.
        order = np.argsort(-self.scores[row], kind="stable")
        for values in (self.ids, self.log_probs, self.scores):
            values[row] = values[row, order]

    def draw(self, row: int, sampling: Sampling, random: np.random.Generator) -> None:
        """Leaves a row one candidate, drawn at random. One number is drawn, whatever comes of it."""
        number = random.random()
        scores = self.scores[row]
        scores = scores[scores > LEAST_POSSIBLE][: sampling.top_k or None]
        if not len(scores):
            return
        weights = np.exp((scores - scores[0]) / sampling.temperature)
        below = np.cumsum(weights)
        if sampling.top_p < 1:
            # Those before which the probability has not been reached yet: at least the first.
            kept = int(((below - weights) < sampling.top_p * below[-1]).sum())
            below = below[:kept]
        self.choose(row, int(np.searchsorted(below, number * below[-1], side="right").clip(0, len(below) - 1)))


def repeated_ngram_ends(token_ids: Sequence[int], size: int) -> list[int]:
    """The symbols after which the last `size` tokens would stand in `token_ids` a second time; no symbol twice."""
    start = len(token_ids) - size + 1
    if start < 0:
        return []
    last = tuple(token_ids[start:])
    return list({token_ids[i + size - 1]: None for i in range(start) if tuple(token_ids[i : i + size - 1]) == last})
