"""The course of a search as plain frozen values, and as a picture of its tree for notebooks.

A step continues live hypotheses. A live hypothesis has candidates, the tokens that may follow it. A candidate that
lives is a live hypothesis of the next step, so all of them form a tree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

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
        log_prob: the token's log-probability.
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
        step: the step that ended it.
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

    def _repr_html_(self) -> str:
        """Returns pictures of the trees for notebooks: edges as wide as tokens are probable, cut ones grey."""
        return "".join(_picture(search) for search in self.searches)


def percent(log_prob: float) -> str:
    """Returns a probability for people."""
    value = 100 * math.exp(log_prob)
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %" if value >= 0.1 else "<0.1 %"


def score_and_rank(end: TracedEnd) -> str:
    """Returns the score of a hypothesis that ended, and its rank in the answer, for people."""
    rank = "" if end.hypothesis is None else f", answer {end.hypothesis + 1}"
    return f"score {end.score:.3f}{rank}"


LINE = 20
"""Height of a line of the picture, in pixels."""
CHARACTER, GAP = 8, 44
"""Width of a character, and of the space between two columns."""
MAX_CHARACTERS = 12
CHOSEN = "#008577"


def _picture(search: TracedSearch) -> str:
    """Draws a tree from left to right, a column for each step and a line for each candidate that ends a branch."""
    children, ends = search.children(), search.ends()
    leaves = {
        (step, place): _leaves(search.steps[step].live[place], ends.get((step, place), [])) for step, place in children
    }
    best = {place for end in search.ended if end.hypothesis == 0 for place in search.path(end.step, end.live)}
    num_lines: dict[Place, int] = {}
    for at in reversed(children):
        num_lines[at] = max(1, len(leaves[at]) + sum(num_lines[at[0] + 1, child] for child in children[at]))
    left = [0]
    for traced in search.steps:
        texts = [each.token for live in traced.live for each in live.candidates]
        left.append(left[-1] + GAP + CHARACTER * min(MAX_CHARACTERS, max(map(len, texts), default=0)))
    first = {(0, 0): 0}
    edges: list[str] = []
    for at in children:
        step, place = at
        line, middle = first[at], LINE * (first[at] + num_lines[at] / 2)
        x, next_x = left[step], left[step + 1]
        start = x + CHARACTER * min(MAX_CHARACTERS, len(search.steps[step].live[place].token)) + 4
        for child in children[at]:
            below = step + 1, child
            first[below] = line
            hypothesis = search.steps[step + 1].live[child]
            y = LINE * (line + num_lines[below] / 2)
            title = f"{percent(hypothesis.log_prob)}, total {hypothesis.total:.3f}"
            color = CHOSEN if at in best and below in best else "currentColor"
            edges.append(_edge((start, middle), (next_x, y), hypothesis.token, title, hypothesis.log_prob, color, 1))
            line += num_lines[below]
        for token, title, log_prob, is_answer in leaves[at]:
            target = next_x, LINE * (line + 0.5)
            color, opacity = (CHOSEN, 1.0) if is_answer else ("currentColor", 0.45)
            edges.append(_edge((start, middle), target, token, title, log_prob, color, opacity))
            line += 1
    width, height = left[-1] + GAP + CHARACTER * MAX_CHARACTERS, LINE * num_lines[0, 0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'font-family="monospace" font-size="13"><title>The search, which ended after {len(search.steps)} steps: '
        f"{search.reason}</title>{''.join(edges)}</svg>"
    )


def _leaves(live: TracedHypothesis, ends: Sequence[TracedEnd]) -> list[tuple[str, str, float, bool]]:
    """Returns the candidates of a live hypothesis without a branch: text, title, log-probability, if it is the best.

    Args:
        ends: those of this hypothesis.
    """
    scores = ", ".join(map(score_and_rank, ends))
    is_best = any(end.hypothesis == 0 for end in ends)
    shown = []
    for each in live.candidates:
        title = f"{percent(each.log_prob)}, total {each.total:.3f}, {each.fate}"
        if each.fate is Fate.ENDED:
            shown.append((each.token, ", ".join(filter(None, (title, scores))), each.log_prob, is_best))
        elif each.fate is not Fate.LIVES:
            shown.append((each.token, title, each.log_prob, False))
    if any(end.finish_reason is not FinishReason.EOS for end in ends):
        shown.append(("(cut)", scores, 0.0, is_best))
    return shown


def _edge(
    start: tuple[float, float],
    end: tuple[float, float],
    token: str,
    title: str,
    log_prob: float,
    color: str,
    opacity: float,
) -> str:
    """Draws a line to a token, as wide as the token is probable."""
    (x, y), (to_x, to_y) = start, end
    bend = (x + to_x) / 2
    path = f"M{x:.0f} {y:.0f}C{bend:.0f} {y:.0f} {bend:.0f} {to_y:.0f} {to_x - 4:.0f} {to_y:.0f}"
    text = token if len(token) <= MAX_CHARACTERS else f"{token[: MAX_CHARACTERS - 1]}~"
    return (
        f'<g opacity="{opacity:g}"><title>{escape(f"{token}: {title}")}</title><path d="{path}" fill="none" '
        f'stroke="{color}" stroke-width="{0.5 + 5 * math.exp(log_prob):.1f}" opacity=".6"/>'
        f'<text x="{to_x:.0f}" y="{to_y + 4:.0f}" fill="{color}">{escape(text)}</text></g>'
    )
