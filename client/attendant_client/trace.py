"""The course of a search as plain frozen values.

A step continues live hypotheses. A live hypothesis has candidates, the tokens that may follow it. A candidate that
lives is a live hypothesis of the next step, so all of them form a tree.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

Place = tuple[int, int]
"""A step, and a place among its live hypotheses."""


class FinishReason(StrEnum):
    """Why a hypothesis ended."""

    EOS = "EOS"  # the model generated the end symbol
    LENGTH = "LENGTH"  # it was cut at max_length, or because bans left no token
    UNSPECIFIED = "UNSPECIFIED"  # a reason that is unknown to this version of the client


class Fate(StrEnum):
    """The fate of a candidate: the search continues it, or the reason why not."""

    LIVES = "LIVES"  # the next step continues the hypothesis with it
    ENDED = "ENDED"  # it is the end symbol, and the hypothesis ended with it
    RANK = "RANK"  # the beam has no place: beam_size others have a higher total
    PREFIX = "PREFIX"  # the prefix, or its last word, demands another token
    NOT_DRAWN = "NOT_DRAWN"  # another token was drawn
    ALTERNATIVE = "ALTERNATIVE"  # another token begins this alternative
    LENGTH = "LENGTH"  # the hypothesis has max_length tokens
    SEARCH_ENDED = "SEARCH_ENDED"  # the beam had a place, but the search ended with this step
    UNSPECIFIED = "UNSPECIFIED"  # a fate that is unknown to this version of the client


class SearchEnd(StrEnum):
    """Why a search ended."""

    EOS = "EOS"  # every hypothesis has generated the end symbol
    BOUND = "BOUND"  # no live hypothesis can enter the best any more
    PATIENCE = "PATIENCE"  # patience * beam_size hypotheses have ended
    LENGTH = "LENGTH"  # the hypotheses have max_length tokens
    BANS = "BANS"  # bans left no token to follow any hypothesis
    UNSPECIFIED = "UNSPECIFIED"  # a reason that is unknown to this version of the client


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCandidate:
    """A token that may follow a live hypothesis.

    Attributes:
        total: the total of the hypothesis with this token, as in `TracedHypothesis`.
    """

    token: str
    log_prob: float
    total: float
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedHypothesis:
    """A hypothesis that a step continues.

    Attributes:
        parent: the place, among the live hypotheses of the step before, of the one that it continues; 0 at the first
            step.
        token, log_prob: its last token, taken in the step before, and the token's log-probability; empty and 0 at the
            first step.
        total: the sum of the log-probabilities of its tokens, less the penalties of repetition: a beam ranks by it.
        score: `total` over the length penalty of its present length.
        candidates: best first; after the requested number of them, any others that the search took.
        banned: tokens that options exclude after it.
    """

    parent: int
    token: str
    log_prob: float
    total: float
    score: float
    candidates: tuple[TracedCandidate, ...]
    banned: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step of a search.

    Attributes:
        live: the hypotheses that it continues.
        attention: a row for each of them, a column per source token; None if the model has no attention.
        bound: after the step, the score that a live hypothesis has to exceed; None if there is none.
        best_possible: after the step, the highest score that a live hypothesis can reach; None if none lives.
    """

    live: tuple[TracedHypothesis, ...]
    attention: tuple[tuple[float, ...], ...] | None
    bound: float | None
    best_possible: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedEnd:
    """A hypothesis that ended.

    Attributes:
        live: its place among the live hypotheses of that step.
        hypothesis: its place among the answer's; None if it is not there.
    """

    step: int
    live: int
    finish_reason: FinishReason
    log_prob: float
    score: float
    hypothesis: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSearch:
    """One search.

    Attributes:
        ended: in the order of ending.
    """

    steps: tuple[TracedStep, ...]
    ended: tuple[TracedEnd, ...]
    reason: SearchEnd

    def path(self, step: int, live: int) -> tuple[Place, ...]:
        """Returns the step and place of each hypothesis on the way from the first one to a live one, in order."""
        places = [(step, live)]
        while step:
            live = self.steps[step].live[live].parent
            step -= 1
            places.append((step, live))
        return tuple(reversed(places))

    def tokens(self, step: int, live: int) -> tuple[str, ...]:
        """Returns the tokens of a live hypothesis."""
        return tuple(self.steps[at].live[place].token for at, place in self.path(step, live)[1:])

    def coverage(self, step: int, live: int) -> tuple[float, ...]:
        """Returns the sum of the attention that each source token has had, this step's included.

        Raises:
            ValueError: the model has no attention.
        """
        rows = []
        for at, place in self.path(step, live):
            attention = self.steps[at].attention
            if attention is None:
                raise ValueError("the model has no attention, so there is no coverage")
            rows.append(attention[place])
        return tuple(math.fsum(column) for column in zip(*rows, strict=True))

    def children(self) -> dict[Place, list[int]]:
        """Returns the places in the next step of the hypotheses that continue each live one, by step and place."""
        children: dict[Place, list[int]] = {}
        for step, traced in enumerate(self.steps):
            for place, hypothesis in enumerate(traced.live):
                children[step, place] = []
                if step:
                    children[step - 1, hypothesis.parent].append(place)
        return children

    def ends(self) -> dict[Place, list[TracedEnd]]:
        """Returns the hypotheses that ended, by the step that ended them and their place in it."""
        ends: dict[Place, list[TracedEnd]] = {}
        for end in self.ended:
            ends.setdefault((end.step, end.live), []).append(end)
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The course of a search, or of several if the hypotheses were drawn or are alternatives."""

    searches: tuple[TracedSearch, ...]


def percent(log_prob: float) -> str:
    """Returns a probability for people."""
    value = 100 * math.exp(log_prob)
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %" if value >= 0.1 else "<0.1 %"


def score_and_rank(end: TracedEnd) -> str:
    """Returns the score of a hypothesis that ended, and its rank in the answer, for people."""
    rank = "" if end.hypothesis is None else f", answer {end.hypothesis + 1}"
    return f"score {end.score:.3f}{rank}"
