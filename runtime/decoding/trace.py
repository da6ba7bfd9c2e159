"""The course of a search, recorded if a request sets the option.

A step continues live hypotheses. Each has candidates, the symbols that may follow it, and each candidate has a fate. So
a trace is a tree: a live hypothesis continues one of the step before, whose candidate it took.

Traces are kept in arrays, which cost little to send from a worker process to the server's.

Shapes: T steps; N live hypotheses of all steps, step by step; M candidates of all of them; S source positions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import NO_ID, Floats, Ids


class Fate(IntEnum):
    """The fate of a candidate. The numbers are the API's, which describes them."""

    LIVES = 1
    ENDED = 2
    RANK = 3
    PREFIX = 4
    NOT_DRAWN = 5
    ALTERNATIVE = 6
    LENGTH = 7
    SEARCH_ENDED = 8


class SearchEnd(IntEnum):
    """The reason for the end of a search. The numbers are the API's, which describes them."""

    EOS = 1
    BOUND = 2
    PATIENCE = 3
    LENGTH = 4
    BANS = 5


@dataclass(slots=True)
class Candidate:
    """A symbol that may follow a live hypothesis.

    Attributes:
        log_prob: the model's, of the symbol.
        total: the log-probability of the hypothesis with it, less the penalties of repetition.
    """

    token_id: int
    log_prob: float
    total: float
    fate: Fate = Fate.RANK


class TracedEnd(NamedTuple):
    """A hypothesis that ended.

    Attributes:
        step: the step that ended it.
        live: its place among the live hypotheses of that step.
        ended_by_eos: it generated EOS; otherwise it was cut.
        hypothesis: its place among the answer's; None if it is not there.
    """

    step: int
    live: int
    ended_by_eos: bool
    log_prob: float
    score: float
    hypothesis: int | None


class TracedSearch(NamedTuple):
    """One search of a request.

    Attributes:
        num_live: [T] live hypotheses of each step.
        bounds: [T] after each step, the score that a live hypothesis has to exceed; NaN if there is none.
        best_possible: [T] after each step, an upper bound of the live hypotheses' scores; NaN if none lives.
        parents: [N] the place of each live hypothesis's parent in the step before; 0 in the first step.
        token_ids, log_probs: [N] the symbol that it took in the step before, and its log-probability; in the first
            step -1 and 0.
        totals, scores: [N] its log-probability less the penalties of repetition; and that over the length penalty.
        attention: [N, S] of the step that continues it; None if the model has no attention.
        banned: [N] the symbols that options ban after it.
        num_candidates: [N].
        candidate_ids, candidate_log_probs, candidate_totals, fates: [M], see `Candidate`.
        ended: in the order of ending.
    """

    num_live: Ids
    bounds: NDArray[np.float64]
    best_possible: NDArray[np.float64]
    parents: Ids
    token_ids: Ids
    log_probs: NDArray[np.float64]
    totals: NDArray[np.float64]
    scores: NDArray[np.float64]
    attention: Floats | None
    banned: tuple[tuple[int, ...], ...]
    num_candidates: Ids
    candidate_ids: Ids
    candidate_log_probs: NDArray[np.float64]
    candidate_totals: NDArray[np.float64]
    fates: NDArray[np.uint8]
    ended: tuple[TracedEnd, ...]
    reason: int

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in self if isinstance(value, np.ndarray))


Trace = tuple[TracedSearch, ...]
"""The searches of a request: one, unless its hypotheses are drawn or alternatives."""


@dataclass(slots=True)
class _Step:
    """A step while it is recorded; lists have an item per live hypothesis.

    Attributes:
        taken: the parent's place in the step before, and the candidate that was taken there.
    """

    taken: list[tuple[int, Candidate]]
    totals: list[float]
    scores: list[float]
    candidates: list[list[Candidate]]
    banned: list[tuple[int, ...]]
    attention: Floats | None
    bound: float = math.nan
    best_possible: float = math.nan

    def find(self, place: int, token_id: int) -> Candidate:
        """Returns a candidate of the live hypothesis at a place. The search takes none that it does not have."""
        return next(each for each in self.candidates[place] if each.token_id == token_id)


START: Final = Candidate(NO_ID, 0.0, 0.0, Fate.LIVES)


@dataclass(slots=True)
class Recorder:
    """Records one search, step by step: `begin`, then `end` for each hypothesis that ends, and `extend`."""

    options: DecodingOptions
    eos: int
    _steps: list[_Step] = field(default_factory=list)
    _ended: list[tuple[TracedEnd, object]] = field(default_factory=list)
    # The live hypotheses of the next step.
    _next: list[tuple[int, Candidate]] = field(default_factory=lambda: [(0, START)])
    # The row of the step's first live hypothesis.
    _first_row: int = 0
    _reason: SearchEnd = SearchEnd.EOS

    def fork(self) -> "Recorder":
        """Returns a recorder of another search that has had the same steps, between two steps."""
        return Recorder(self.options, self.eos, self._steps.copy(), self._ended.copy(), self._next.copy())

    def begin(
        self,
        first_row: int,
        totals: list[float],
        candidates: list[list[Candidate]],
        banned: list[tuple[int, ...]],
        attention: Floats | None,
    ) -> None:
        """Begins a step; the lists have an item per live hypothesis, in the order of `extend`.

        Args:
            first_row: the number of the search's first row, by which `extend` and `end` name rows.
            candidates: by rank; those that the search does not take are shown up to the requested number.
            attention: [R, S] of these rows.
        """
        penalty = self.options.penalty(len(self._steps))
        scores = [total / penalty for total in totals]
        self._first_row = first_row
        self._steps.append(_Step(self._next, totals, scores, candidates, banned, attention))
        self._next = []

    def end(self, row: int, log_prob: float, score: float, hypothesis: object, *, by_eos: bool) -> None:
        """Records that a hypothesis ends with this step; `searched` gets the same object if it is in the answer."""
        place = row - self._first_row
        if by_eos:
            self._steps[-1].find(place, self.eos).fate = Fate.ENDED
        end = TracedEnd(len(self._steps) - 1, place, by_eos, log_prob, score, None)
        self._ended.append((end, hypothesis))

    def extend(self, rows: list[int], token_ids: list[int], bound: float, best_possible: float) -> None:
        """Ends a step: the hypotheses of these rows live on with these symbols, in this order.

        Args:
            bound: the score that they have to exceed; infinite if there is none.
            best_possible: an upper bound of their scores; NaN if there are none.
        """
        step = self._steps[-1]
        for row, token_id in zip(rows, token_ids, strict=True):
            candidate = step.find(row - self._first_row, token_id)
            candidate.fate = Fate.LIVES
            self._next.append((row - self._first_row, candidate))
        self._set_bound(bound)
        step.best_possible = best_possible

    def finish(self, bound: float) -> None:
        """Ends the search with the present step."""
        last = len(self._steps) - 1
        is_longest = last == self.options.max_length
        self._set_bound(bound)
        if self._next:
            for _, candidate in self._next:
                candidate.fate = Fate.SEARCH_ENDED
            self._reason = SearchEnd.BOUND if self.options.patience is None else SearchEnd.PATIENCE
        elif any(end.step == last and not end.ended_by_eos for end, _ in self._ended):
            self._reason = SearchEnd.LENGTH if is_longest else SearchEnd.BANS
        if is_longest:
            for candidates in self._steps[-1].candidates:
                for candidate in candidates:
                    candidate.fate = Fate.ENDED if candidate.fate is Fate.ENDED else Fate.LENGTH

    def _set_bound(self, bound: float) -> None:
        if self.options.patience is None and math.isfinite(bound):
            self._steps[-1].bound = bound

    def searched(self, hypotheses: Sequence[object]) -> TracedSearch:
        """Returns the record after the last step; the answer's hypotheses are the same objects as in `end`."""
        places = {id(hypothesis): place for place, hypothesis in enumerate(hypotheses)}
        steps, shown = self._steps, self.options.trace
        taken = [each for step in steps for each in step.taken]
        candidates = [
            [each for place, each in enumerate(row) if place < shown or each.fate in _TAKEN]
            for step in steps
            for row in step.candidates
        ]
        flat = [each for row in candidates for each in row]
        attention = [step.attention for step in steps if step.attention is not None]
        return TracedSearch(
            num_live=np.array([len(step.taken) for step in steps]),
            bounds=np.array([step.bound for step in steps]),
            best_possible=np.array([step.best_possible for step in steps]),
            parents=np.array([parent for parent, _ in taken]),
            token_ids=np.array([candidate.token_id for _, candidate in taken]),
            log_probs=np.array([candidate.log_prob for _, candidate in taken]),
            totals=np.array([total for step in steps for total in step.totals]),
            scores=np.array([score for step in steps for score in step.scores]),
            attention=np.concatenate(attention) if attention else None,
            banned=tuple(banned for step in steps for banned in step.banned),
            num_candidates=np.array([len(row) for row in candidates]),
            candidate_ids=np.array([each.token_id for each in flat], np.int64),
            candidate_log_probs=np.array([each.log_prob for each in flat], np.float64),
            candidate_totals=np.array([each.total for each in flat], np.float64),
            fates=np.array([each.fate for each in flat], np.uint8),
            ended=tuple(end._replace(hypothesis=places.get(id(each))) for end, each in self._ended),
            reason=int(self._reason),
        )


_TAKEN: Final = (Fate.LIVES, Fate.ENDED, Fate.SEARCH_ENDED)


LIVE_BYTES: Final = 64
CANDIDATE_BYTES: Final = 32
WEIGHT_BYTES: Final = 4
BAN_BYTES: Final = 8
"""Bytes of a live hypothesis, a candidate, an attention weight and a banned token in a trace, as it is sent."""


def max_trace_bytes(options: DecodingOptions, num_positions: int) -> int:
    """Returns the estimated size of the largest trace of a request, as it is sent; 0 without one."""
    if not options.trace:
        return 0
    live = LIVE_BYTES + WEIGHT_BYTES * num_positions + CANDIDATE_BYTES * (options.trace + 1)
    if options.no_repeat_ngram_size:
        live += BAN_BYTES * options.max_length
    return options.max_rows * (options.max_length + 1) * live


def trace_fields(trace: Trace, tokens_of: Callable[[Sequence[int]], list[str]]) -> dict[str, Any]:
    """Returns a trace under the names of the API; `tokens_of` returns the symbols of ids."""
    return {"searches": [_search_fields(search, tokens_of) for search in trace]}


def _search_fields(search: TracedSearch, tokens_of: Callable[[Sequence[int]], list[str]]) -> dict[str, Any]:
    columns = (search.candidate_log_probs, search.candidate_totals, search.fates)
    values = zip(tokens_of(search.candidate_ids.tolist()), *(column.tolist() for column in columns), strict=True)
    candidates = [dict(zip(("token", "log_prob", "total", "fate"), each, strict=True)) for each in values]
    ends = search.num_candidates.cumsum().tolist()
    first, *taken = search.token_ids.tolist()
    assert first == NO_ID, "a search begins with the empty hypothesis"
    of_live = (search.parents, search.log_probs, search.totals, search.scores)
    rows = zip(["", *tokens_of(taken)], *(column.tolist() for column in of_live), strict=True)
    live = [
        dict(zip(("token", "parent", "log_prob", "total", "score"), row, strict=True))
        | {"candidates": candidates[begin:end], "banned": tokens_of(banned)}
        for row, begin, end, banned in zip(rows, [0, *ends[:-1]], ends, search.banned, strict=True)
    ]
    steps: list[dict[str, Any]] = []
    begin = 0
    of_steps = zip(search.num_live.tolist(), search.bounds.tolist(), search.best_possible.tolist(), strict=True)
    for number, *limits in of_steps:
        end = begin + number
        named = zip(("bound", "best_possible"), limits, strict=True)
        step: dict[str, Any] = {name: value for name, value in named if not math.isnan(value)}
        if search.attention is not None:
            weights = search.attention[begin:end]
            step["attention"] = {"rows": number, "columns": weights.shape[1], "weights": weights.ravel().tolist()}
        steps.append({"live": live[begin:end], **step})
        begin = end
    ended = [end._asdict() for end in search.ended]
    for end in ended:
        end["finish_reason"] = f"FINISH_REASON_{'EOS' if end.pop('ended_by_eos') else 'LENGTH'}"
    return {"steps": steps, "ended": ended, "reason": search.reason}
