"""When each of many requests may, and must, end. It is looked at only in steps in which it can matter.

Shapes: Q requests.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.stepper import NO_ID, Ids

NEVER = 1 << 62


class Limits:
    """The lengths and bans that requests ask for, against the count of steps that all of them share.

    Attributes:
        eos: the symbol that ends; requests of one model share it.
    """

    def __init__(self) -> None:
        self.eos = NO_ID
        # [Q, 4] of each: the steps in which it begins, must end at the latest, may end; and UNK where it is banned.
        self._facts: Ids = np.empty((0, 4), np.int64)
        # No request is at its limit before the first of these steps, none is forbidden anything from the second on.
        self._cut_from, self._banned_until = NEVER, 0

    def begin(self, number: int) -> int:
        """The step in which a request has its first symbol."""
        return int(self._facts[number, 0])

    @property
    def last_cut(self) -> int:
        """The step in which the last one ends at the latest."""
        return int(self._facts[:, 1].max(initial=0))

    @property
    def first_begin(self) -> int:
        """Of those that are there, in the order of joining; NEVER where nobody is."""
        return int(self._facts[0, 0]) if len(self._facts) else NEVER

    def join(self, searches: Sequence[BeamSearch], step: int) -> None:
        """Adds requests that begin with this step, not before those that are there."""
        options = [search.options for search in searches]
        self.eos = searches[0].special_ids.eos
        unk = searches[0].special_ids.unk
        facts = [(step, step + o.max_length, step + o.min_length, unk if o.suppress_unk else NO_ID) for o in options]
        self._facts = np.concatenate([self._facts, np.array(facts, np.int64)])
        self._cut_from = min(self._cut_from, *(cut for _, cut, _, _ in facts))
        self._banned_until = max(self._banned_until, *(free if unk == NO_ID else NEVER for _, _, free, unk in facts))

    def keep(self, stay: NDArray[np.bool_]) -> None:
        """Keeps those of the mask [Q]."""
        self._facts = self._facts[stay]

    def reached(self, step: int) -> NDArray[np.bool_] | None:
        """[Q] who has as many tokens as it may have before this step; None: nobody."""
        if step < self._cut_from:
            return None
        reached: NDArray[np.bool_] = self._facts[:, 1] <= step
        if reached.any():
            return reached
        self._cut_from = int(self._facts[:, 1].min(initial=NEVER))
        return None

    def banned_ids(self, step: int) -> Ids | None:
        """[Q, 2] what each must not generate in this step, -1: nothing; None: nobody is forbidden anything."""
        if step >= self._banned_until:
            return None
        banned = np.stack([np.where(step < self._facts[:, 2], self.eos, NO_ID), self._facts[:, 3]], axis=1)
        if (banned >= 0).any():
            return banned
        self._banned_until = 0
        return None
