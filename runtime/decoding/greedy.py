"""Greedy requests of a batch, advanced all at once: most requests of a busy server are among them at every step.

What comes out is what `BeamSearch` with a beam of 1 gives, number for number; how it is kept differs: one array entry
per request instead of one object, so that a step costs a few array operations however many requests there are.

Shapes: G requests.
"""

from collections.abc import Hashable, Sequence, Set
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.beam import BeamSearch, hypothesis_of
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.limits import Limits
from attendant.runtime.decoding.row_group import Ending
from attendant.runtime.stepper import Floats, Ids

Key = TypeVar("Key", bound=Hashable)


class GreedyRows(Generic[Key]):
    """The requests, one row each, and the symbols that they have had: a RowGroup.

    All requests write their symbols of a step into the same column; each begins at the column that was next when it
    joined.
    """

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.rows: Ids = np.empty(0, np.int64)
        self.previous_ids: Ids = np.empty(0, np.int64)
        self.num_candidates = 1
        self._searches: list[BeamSearch] = []
        self._limits = Limits()
        self._step = 0
        # The step that wrote column 0.
        self._first = 0
        self._tokens: Ids = np.empty((0, 0), np.int64)
        self._log_probs: Floats = np.empty((0, 0), np.float32)

    def join(self, keys: Sequence[Key], searches: Sequence[BeamSearch], rows: Sequence[int]) -> None:
        # Columns that only those who have left wrote to are dropped.
        first = min(self._limits.first_begin, self._step)
        begun, self._first = slice(first - self._first, self._step - self._first), first
        self._limits.join(searches, self._step)
        shape = len(self.keys) + len(keys), self._limits.last_cut + 1 - first
        self._tokens = _enlarged(self._tokens[:, begun], shape)
        self._log_probs = _enlarged(self._log_probs[:, begun], shape)
        self.keys += keys
        self.rows = np.concatenate([self.rows, np.array(rows, np.int64)])
        self._searches += searches

    def banned_ids(self) -> Ids | None:
        return self._limits.banned_ids(self._step)

    def advance(self, ids: Ids, log_probs: Floats) -> list[Ending[Key]]:
        reached = self._limits.reached(self._step)
        column, self._step = self._step - self._first, self._step + 1
        self._tokens[:, column] = self.previous_ids = ids[:, 0].copy()
        self._log_probs[:, column] = log_probs[:, 0]
        ended = self.previous_ids == self._limits.eos
        if reached is not None:
            ended |= reached
        if not ended.any():
            return []
        finished: list[Ending[Key]] = []
        for place in np.flatnonzero(ended).tolist():
            finished.append((self.keys[place], (self._hypothesis(place),)))
        stay = ~ended
        self.previous_ids = self.previous_ids[stay]
        self._keep(stay)
        return finished

    def remove(self, keys: Set[Key]) -> None:
        self._keep(np.array([key not in keys for key in self.keys], bool))

    def _keep(self, stay: NDArray[np.bool_]) -> None:
        staying = stay.tolist()
        self.keys = list(compress(self.keys, staying))
        self._searches = list(compress(self._searches, staying))
        self.rows = self.rows[stay]
        self._tokens, self._log_probs = self._tokens[stay], self._log_probs[stay]
        self._limits.keep(stay)

    def _hypothesis(self, place: int) -> Hypothesis:
        begin, end = self._limits.begin(place) - self._first, self._step - self._first
        by_eos = int(self._tokens[place, end - 1]) == self._limits.eos
        # At its limit a hypothesis ends without the symbol of this step, unless that is EOS.
        symbols = slice(begin, end if by_eos else end - 1)
        log_probs = self._log_probs[place, symbols].tolist()
        log_prob = 0.0
        for summand in log_probs:  # in order, as a search adds them up
            log_prob += summand
        reason = FinishReason.EOS if by_eos else FinishReason.LENGTH
        tokens = self._tokens[place, symbols].tolist()
        return hypothesis_of(tokens, log_probs, log_prob, reason, self._searches[place].options)


def _enlarged(array: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """The array in the corner of one of that shape."""
    enlarged = np.empty(shape, array.dtype)
    enlarged[: array.shape[0], : array.shape[1]] = array
    return enlarged
