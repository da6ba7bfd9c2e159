"""Greedy requests of a batch, advanced all at once: most requests of a busy server are among them at every step.

What comes out is what `BeamSearch` with a beam of 1 gives, number for number; how it is kept differs: one array entry
per request instead of one object, so that a step costs a few array operations however many requests there are.

Shapes: G requests.
"""

from collections.abc import Hashable, Sequence, Set
from itertools import compress
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.decoding.beam import BeamSearch, hypothesis_of
from runtime.decoding.hypothesis import FinishReason, Hypothesis
from runtime.decoding.search import Search
from runtime.stepper import Floats, Ids

Key = TypeVar("Key", bound=Hashable)

NO_ID = -1


def is_greedy(search: Search) -> TypeGuard[BeamSearch]:
    """Whether a search may be decoded here: a beam of 1 that has not begun, and keeps no attention."""
    return (
        isinstance(search, BeamSearch)
        and search.options.beam_size == 1
        and not search.options.attention
        and search.length == 0
    )


class GreedyRows(Generic[Key]):
    """The requests, one row each, and the symbols that they have had.

    All requests write their symbols of a step into the same column; each begins at the column that was next when it
    joined. What depends on lengths is looked at only in steps in which it can matter.

    Attributes:
        keys: in the order of joining.
        rows: [G] where each request's row stands in the batch; whoever reorders the batch sets it.
        previous_ids: [G] what each is fed next.
    """

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.rows: Ids = np.empty(0, np.int64)
        self.previous_ids: Ids = np.empty(0, np.int64)
        self._searches: list[BeamSearch] = []
        # [G, 4] of each request: where it begins, most and least tokens, and UNK where it is banned.
        self._facts: Ids = np.empty((0, 4), np.int64)
        self._column = 0
        self._tokens: Ids = np.empty((0, 0), np.int64)
        self._log_probs: Floats = np.empty((0, 0), np.float32)
        self._eos = NO_ID
        # The columns at which the first is at its limit, and the last may end.
        self._cut_from = self._banned_until = 0
        self._bans_unk = False

    def join(self, keys: Sequence[Key], searches: Sequence[BeamSearch], rows: Sequence[int]) -> None:
        """Adds requests, of one model, whose rows stand at `rows`."""
        if not keys:
            return
        # Columns that only those who have left wrote to are dropped.
        first = int(self._facts[:, 0].min(initial=self._column))
        self._facts[:, 0] -= first
        begun, self._column = slice(first, self._column), self._column - first
        facts = [(self._column, s.options.max_length, s.options.min_length, _banned_unk(s)) for s in searches]
        self._facts = np.concatenate([self._facts, np.array(facts, np.int64)])
        shape = len(self.keys) + len(keys), self._column + int(self._facts[:, 1].max()) + 1
        self._tokens = _enlarged(self._tokens[:, begun], shape)
        self._log_probs = _enlarged(self._log_probs[:, begun], shape)
        self.keys += keys
        self.rows = np.concatenate([self.rows, np.array(rows, np.int64)])
        starts = [previous for search in searches for previous in search.previous_ids]
        self.previous_ids = np.concatenate([self.previous_ids, np.array(starts, np.int64)])
        self._searches += searches
        self._eos = searches[0].special_ids.eos
        self._look_ahead()

    def banned_ids(self) -> Ids | None:
        """[G, 2] what each must not generate next, -1: nothing; None: nobody is forbidden anything."""
        if self._column >= self._banned_until and not self._bans_unk:
            return None
        begins, _, least, unk = self._facts.T
        return np.stack([np.where(self._column - begins < least, self._eos, NO_ID), unk], axis=1)

    def advance(self, tokens: Ids, log_probs: Floats) -> list[tuple[Key, tuple[Hypothesis, ...]]]:
        """Takes the most probable symbol [G] of each, and its log-probability; returns those that end, who leave."""
        column, self._column = self._column, self._column + 1
        self._tokens[:, column] = self.previous_ids = tokens
        self._log_probs[:, column] = log_probs
        ended = tokens == self._eos
        if column >= self._cut_from:
            ended |= column - self._facts[:, 0] >= self._facts[:, 1]
        if not ended.any():
            return []
        finished: list[tuple[Key, tuple[Hypothesis, ...]]] = []
        for place in np.flatnonzero(ended).tolist():
            finished.append((self.keys[place], (self._hypothesis(place),)))
        self._keep(~ended)
        return finished

    def remove(self, keys: Set[Key]) -> None:
        """Drops requests; keys that are not here are ignored."""
        self._keep(np.array([key not in keys for key in self.keys], bool))

    def _keep(self, stay: NDArray[np.bool_]) -> None:
        staying = stay.tolist()
        self.keys = list(compress(self.keys, staying))
        self._searches = list(compress(self._searches, staying))
        self.rows, self.previous_ids, self._facts = self.rows[stay], self.previous_ids[stay], self._facts[stay]
        self._tokens, self._log_probs = self._tokens[stay], self._log_probs[stay]
        self._look_ahead()

    def _look_ahead(self) -> None:
        begins, most, least, unk = self._facts.T
        self._cut_from = int((begins + most).min(initial=self._column))
        self._banned_until = int((begins + least).max(initial=0))
        self._bans_unk = bool((unk >= 0).any())

    def _hypothesis(self, place: int) -> Hypothesis:
        begin = int(self._facts[place, 0])
        by_eos = int(self._tokens[place, self._column - 1]) == self._eos
        # At its limit a hypothesis ends without the symbol of this step, unless that is EOS.
        symbols = slice(begin, self._column if by_eos else self._column - 1)
        log_probs = self._log_probs[place, symbols].tolist()
        log_prob = 0.0
        for summand in log_probs:  # in order, as a search adds them up
            log_prob += summand
        reason = FinishReason.EOS if by_eos else FinishReason.LENGTH
        tokens = self._tokens[place, symbols].tolist()
        return hypothesis_of(tokens, log_probs, log_prob, reason, self._searches[place].options)


def _banned_unk(search: BeamSearch) -> int:
    return search.special_ids.unk if search.options.suppress_unk else NO_ID


def _enlarged(array: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """The array in the corner of one of that shape."""
    enlarged = np.empty(shape, array.dtype)
    enlarged[: array.shape[0], : array.shape[1]] = array
    return enlarged
