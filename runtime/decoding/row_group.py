"""Requests of a batch that are advanced together, as arrays; the seam between them and the batch.

Most requests of a busy server are of a few kinds: greedy, or one of few beam sizes. Those of a kind share every array
operation of a step, so that a step costs about the same however many they are.
"""

from collections.abc import Sequence, Set
from typing import Protocol, TypeGuard, TypeVar

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.search import Search
from attendant.runtime.stepper import Floats, Ids

Key = TypeVar("Key")

Ending = tuple[Key, tuple[Hypothesis, ...]]
"""A request that has ended, with its hypotheses, best first."""


def can_share(search: Search) -> TypeGuard[BeamSearch]:
    """Whether a search may be advanced with others of its beam size: one that has not begun, and keeps no attention."""
    return isinstance(search, BeamSearch) and not search.options.attention and search.length == 0


class RowGroup(Protocol[Key]):
    """The requests of a kind, and their rows.

    Shapes: R rows of the group, K candidates.

    Attributes:
        rows: [R] where each row stands in the batch: after `advance`, what it goes on from. Whoever reorders the batch
            sets it.
        previous_ids: [R] what each is fed next, after `advance`.
        num_candidates: how many candidates of a row are looked at.
    """

    rows: Ids
    previous_ids: Ids
    num_candidates: int

    @property
    def keys(self) -> list[Key]:
        """Of the requests, in the order of joining."""

    def join(self, keys: Sequence[Key], searches: Sequence[BeamSearch], rows: Sequence[int]) -> None:
        """Adds requests, of one model, whose rows stand at `rows`."""

    def banned_ids(self) -> Ids | None:
        """[R, 2] what must not follow each row, -1: nothing; None: nobody is forbidden anything."""

    def advance(self, ids: Ids, log_probs: Floats) -> list[Ending[Key]]:
        """Takes the candidates [R, K or more] of the rows, most probable first; returns those that end, who leave."""

    def remove(self, keys: Set[Key]) -> None:
        """Drops requests; keys that are not here are ignored."""
