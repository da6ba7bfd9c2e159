"""The symbols behind the live hypotheses of a batch, a row each.

Shapes: R live hypotheses, W steps (columns), S source positions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.stepper import Floats, Ids

MIN_WIDTH = 16


class History:
    """Arrays [R, W] of symbols and their log-probabilities, and the attention behind them where it is kept.

    All hypotheses write their symbol of a step into the same column; each began at the column of its own first step.
    Reordering them copies whole rows, which costs less than keeping each step's parents and following them at the end.

    Attributes:
        step: the one that comes next.
        attends: whether the last one kept its attention.
    """

    def __init__(self) -> None:
        self.step = 0
        # The step of column 0.
        self._first = 0
        self._tokens = np.empty((0, MIN_WIDTH), np.int32)
        self._log_probs = np.empty((0, MIN_WIDTH), np.float32)
        # The row that each hypothesis had before each step [R, W], and each step's attention [its rows, S]; kept only
        # while somebody needs attention.
        self._places = np.empty((0, MIN_WIDTH), np.int32)
        self._attention: list[Floats | None] = []
        self.attends = False

    @property
    def width(self) -> int:
        """Steps that there is room for."""
        return self._tokens.shape[1]

    def join(self, num_rows: int, first_begin: int) -> None:
        """Adds hypotheses that begin with this step; nobody goes back before the step `first_begin` any more."""
        used = slice(first_begin - self._first, self.step - self._first)
        self._first = first_begin
        del self._attention[: used.start]
        width = MIN_WIDTH
        while width <= used.stop - used.start:
            width *= 2
        shape = len(self._tokens) + num_rows, width
        self._tokens, self._log_probs = _moved(self._tokens[:, used], shape), _moved(self._log_probs[:, used], shape)
        if self.attends:
            self._places = _moved(self._places[:, used], shape)

    def extend(self, parents: Ids | None, tokens: Ids, log_probs: Floats, attention: Floats | None) -> None:
        """Ends a step: the hypotheses `parents`, in this order, go on with a symbol each.

        Args:
            parents: [R'] into the hypotheses before the step; None: all of them in order.
            tokens, log_probs: [R'].
            attention: [R, S] of the rows before the step, where anybody needs it; None: nobody does.
        """
        column = self.step - self._first
        if column == self.width:
            shape = len(self._tokens), 2 * self.width
            self._tokens, self._log_probs = _moved(self._tokens, shape), _moved(self._log_probs, shape)
            self._places = _moved(self._places, shape) if self.attends else self._places
        self.attends = attention is not None
        if self.attends:
            if self._places.shape != self._tokens.shape:
                self._places = np.empty(self._tokens.shape, np.int32)
            self._places[:, column] = np.arange(len(self._places))
        if parents is not None:
            self.keep(parents)
        self._tokens[:, column] = tokens
        self._log_probs[:, column] = log_probs
        # Copied: the stepper may write to its arrays again.
        self._attention.append(None if attention is None else attention.copy())
        self.step += 1

    def keep(self, rows: Ids | NDArray[np.bool_]) -> None:
        """Keeps these hypotheses: a mask [R] bool, or rows [R'] in this order, which may be repeated."""
        if rows.dtype == np.bool_:
            rows = rows.nonzero()[0]
        self._tokens, self._log_probs = self._tokens.take(rows, axis=0), self._log_probs.take(rows, axis=0)
        if self.attends:
            self._places = self._places.take(rows, axis=0)

    def tokens(self, row: int, begin: int) -> list[int]:
        """The symbols of the hypothesis at `row` from step `begin`, its first, on."""
        found: list[int] = self._tokens[row, begin - self._first : self.step - self._first].tolist()
        return found

    def log_probs(self, row: int, begin: int) -> list[float]:
        """The log-probabilities of these symbols."""
        found: list[float] = self._log_probs[row, begin - self._first : self.step - self._first].tolist()
        return found

    def attention(self, row: int, begin: int, source_length: int, last: Floats | None) -> Floats:
        """[L, source_length] what a hypothesis has attended to, a row for each of its tokens.

        Args:
            last: [R, S] of the step that is not in here yet, for a row more; None: none.
        """
        first, end = begin - self._first, self.step - self._first
        found = np.zeros((end - first + (last is not None), source_length), np.float32)
        places = self._places[row, first:end].tolist() if end > first else []
        for place, weights, own in zip(places, self._attention[first:end], found, strict=False):
            assert weights is not None, "attention is kept from the first step of whoever needs it"
            own[:] = weights[place, :source_length]
        if last is not None:
            found[-1] = last[row, :source_length]
        return found


def _moved(array: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """The array in the corner of a larger one."""
    enlarged = np.empty(shape, array.dtype)
    enlarged[: array.shape[0], : array.shape[1]] = array
    return enlarged
