"""The seam between a search and the batch that steps it.

A search is a frozen value that is advanced, never changed: advancing the same one twice gives the same result, and a
request's steps can be shared with any other's. It names rows by their place among its own.
"""

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.stepper import Floats


class Candidates(NamedTuple):
    """What one step said of one request's rows (plain lists: they are walked, not computed with).

    A named tuple because one is made per request and step: a frozen dataclass takes several times as long to make.

    Attributes:
        ids, log_probs: [rows][K], most probable first; K is at least the search's num_candidates, unless the
            vocabulary is smaller.
        forced_log_probs: [rows] of the search's forced_ids, if it has any.
        attention: [rows, source length] or None.
    """

    ids: list[list[int]]
    log_probs: list[list[float]]
    forced_log_probs: list[float]
    attention: Floats | None


class Search(Hashable, Protocol):
    """A search between two steps."""

    @property
    def done(self) -> bool:
        """Whether the result stands; a search that is done is not stepped again."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Which of the last step's rows go on, in order; a row may go on several times, or not at all."""

    @property
    def previous_ids(self) -> tuple[int, ...]:
        """What each of them is fed."""

    @property
    def num_candidates(self) -> int:
        """How many candidates per row the next advance looks at."""

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Symbols taken out of the next step's distribution, for all rows."""

    @property
    def forced_ids(self) -> tuple[int, ...]:
        """Symbols whose log-probabilities the next advance needs, one per row; empty: none."""

    @property
    def attention(self) -> bool:
        """Whether the next advance needs attention weights."""

    def advance(self, candidates: Candidates) -> "Search":
        """The search after a step."""

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The result, best first. Only for a search that is done."""
