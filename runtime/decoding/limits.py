"""When each of many searches may, and must, end. It is looked at only in steps in which it can matter.

Shapes: B searches (beams).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import NO_ID, Ids

NEVER: Final = 1 << 62


class Limits:
    """The lengths and bans that searches ask for, against the count of steps that all of them share."""

    def __init__(self, eos: int, unk: int) -> None:
        self._eos, self._unk = eos, unk
        # [B, 4] the step of a search's first symbol, the one in which it must end at the latest, the first one in
        # which it may end; and UNK where it is banned.
        self._facts: Ids = np.empty((0, 4), np.int64)
        # No search is at its limit before the first of these steps, none may not end from the second on.
        self._cut_from, self._end_banned_until = NEVER, 0
        self._bans_unk = False

    @property
    def first_begin(self) -> int:
        """The first step of the search that began first; NEVER where there is none."""
        return int(self._facts[0, 0]) if len(self._facts) else NEVER

    def join(self, options: Sequence[DecodingOptions], step: int) -> None:
        """Adds searches that begin with this step."""
        facts = [
            (step, step + o.max_length, step + o.min_length, self._unk if o.suppress_unk else NO_ID) for o in options
        ]
        self._facts = np.concatenate([self._facts, np.array(facts, np.int64)])
        self._cut_from = min(self._cut_from, *(cut for _, cut, _, _ in facts))
        self._end_banned_until = max(self._end_banned_until, *(free for _, _, free, _ in facts))
        self._bans_unk |= any(unk != NO_ID for _, _, _, unk in facts)

    def keep(self, beams: Ids | NDArray[np.bool_]) -> None:
        """Keeps these searches, by a mask [B] or, in order of their beginning and possibly repeated, by place."""
        self._facts = self._facts[beams]
        if self._bans_unk:
            self._bans_unk = bool((self._facts[:, 3] != NO_ID).any())

    def reached(self, step: int) -> NDArray[np.bool_] | None:
        """[B] who has as many tokens as it may have before this step; None: nobody."""
        if step < self._cut_from:
            return None
        reached: NDArray[np.bool_] = self._facts[:, 1] <= step
        if reached.any():
            return reached
        self._cut_from = int(self._facts[:, 1].min(initial=NEVER))
        return None

    def banned_ids(self, step: int) -> Ids | None:
        """[B, N] what each must not generate in this step, -1: nothing; None: nobody is forbidden anything."""
        if self._bans_unk:
            end = np.where(step < self._facts[:, 2], self._eos, NO_ID)
            return np.stack([end, self._facts[:, 3]], axis=1)
        if step < self._end_banned_until:
            return np.where(step < self._facts[:, 2:3], self._eos, NO_ID)
        return None
