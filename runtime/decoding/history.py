"""The steps behind the live hypotheses of a batch: one record a step, in which each hypothesis points to its parent.

Extending a hypothesis copies nothing, and requests that join or leave move nothing that is recorded. Only hypotheses
that are returned, and those whose options look back, are ever spelled out.

Shapes: R live hypotheses before a step, R' after it, L tokens, S source positions.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.stepper import Floats, Ids

RECORD: Final = np.dtype([("token", np.int64), ("log_prob", np.float32), ("parent", np.int32)])
"""A live hypothesis [R']: its last symbol, that symbol's log-probability, its parent's place [R] before the step."""


class Path(NamedTuple):
    """One hypothesis, spelled out.

    Attributes:
        tokens, log_probs: [L].
        places: [L] where its row stood, before each of its steps.
    """

    tokens: list[int]
    log_probs: list[float]
    places: list[int]


class History:
    """The records of the last steps, as far back as any live hypothesis goes. Steps are counted from 0."""

    def __init__(self) -> None:
        self._first = 0
        self._records: list[NDArray[np.void]] = []
        self._attention: list[Floats | None] = []

    @property
    def num_steps(self) -> int:
        return len(self._records)

    def begin_step(self, attention: Floats | None) -> None:
        """Takes the attention weights [R, S] of a step's rows, if anybody needs them."""
        # Copied: the stepper may write to its arrays again.
        self._attention.append(None if attention is None else attention.copy())

    def end_step(self, tokens: Ids, log_probs: Floats, parents: Ids) -> None:
        """Takes what is live after the step [R']."""
        record = np.empty(len(tokens), RECORD)
        record["token"], record["log_prob"], record["parent"] = tokens, log_probs, parents
        self._records.append(record)

    def keep_rows(self, rows: NDArray[np.bool_]) -> None:
        """Drops hypotheses between two steps, by a mask; those who joined since the last step stand behind."""
        if self._records:
            last = self._records[-1]
            self._records[-1] = last[rows[: len(last)]]

    def forget(self, before: int) -> None:
        """Drops the steps before this one."""
        surplus = before - self._first
        if surplus > 0:
            del self._records[:surplus]
            del self._attention[:surplus]
            self._first = before

    def path(self, step: int, place: int, length: int) -> Path:
        """The last `length` tokens before `step` of the hypothesis at `place` then."""
        tokens: list[int] = []
        log_probs: list[float] = []
        places: list[int] = []
        end = step - self._first
        for record in reversed(self._records[end - length : end]):
            token, log_prob, place = record.item(place)
            tokens.append(token)
            log_probs.append(log_prob)
            places.append(place)
        tokens.reverse()
        log_probs.reverse()
        places.reverse()
        return Path(tokens, log_probs, places)

    def attention(self, first_step: int, places: Sequence[int], source_length: int) -> Floats:
        """[len(places), source_length] the weights of the rows at these places, one a step."""
        first = first_step - self._first
        found = np.zeros((len(places), source_length), np.float32)
        for row, weights, place in zip(found, self._attention[first:], places, strict=False):
            # A model without attention gives none.
            if weights is not None:
                row[:] = weights[place, :source_length]
        return found
