"""Beam requests of one beam size, advanced all at once: one sort for all of them instead of one search after another.

What comes out is what `BeamSearch` gives, number for number; how it is kept differs. Every step leaves one record, in
which each live hypothesis has its last symbol and a pointer to what it extends in the record before. Who joins or
leaves moves nothing there, and only the hypotheses that are returned are ever spelled out.

Shapes: Q requests, k beam size, R live hypotheses (request by request, at most k each), K candidates of each.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.beam import IMPOSSIBLE, BeamSearch, hypothesis_of, num_enough
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.limits import Limits
from attendant.runtime.decoding.options import DecodingOptions, length_penalty
from attendant.runtime.decoding.row_group import Ending
from attendant.runtime.stepper import Floats, Ids

Key = TypeVar("Key")
Mask = NDArray[np.bool_]


RECORD: Final = np.dtype([("token", np.int64), ("log_prob", np.float32), ("parent", np.int32)])
"""What a step made live [R]: a symbol, its log-probability, and the place in the record before of what it extends."""


class _Ended(NamedTuple):
    """A hypothesis that has ended, not yet spelled out.

    Attributes:
        step: in which it ended.
        parent: the place, in the record before that step, of its last token.
        length: tokens, EOS not among them.
        end_log_prob: of EOS; None where it was cut.
    """

    score: float
    log_prob: float
    step: int
    parent: int
    length: int
    end_log_prob: float | None


@dataclass(frozen=True, slots=True)
class _Request(Generic[Key]):
    """One request, and its hypotheses that have ended, in order of ending."""

    key: Key
    options: DecodingOptions
    ended: list[_Ended]


class BeamRows(Generic[Key]):
    """The requests of one beam size, and their live hypotheses: a RowGroup.

    A step finds the caches full of the model's weights, so what it costs is how many different operations it is made
    of, hardly how much they work on: hence their number is kept down where nobody ends.
    """

    def __init__(self, beam_size: int) -> None:
        self.rows: Ids = np.empty(0, np.int64)
        self.previous_ids: Ids = np.empty(0, np.int64)
        self.num_candidates = beam_size + 1
        self._beam_size = beam_size
        self._requests: list[_Request[Key]] = []
        self._limits = Limits()
        self._step = 0
        # Of the steps before, as far back as any request goes.
        self._records: list[NDArray[np.void]] = []
        # [R] log-probabilities of the hypotheses, with the other sign: the way that they are sorted.
        self._negated = np.empty(0, np.float64)
        # [Q] live hypotheses of each request.
        self._counts: Ids = np.empty(0, np.int64)

    @property
    def keys(self) -> list[Key]:
        return [request.key for request in self._requests]

    def join(self, keys: Sequence[Key], searches: Sequence[BeamSearch], rows: Sequence[int]) -> None:
        self._requests += [_Request(key, search.options, []) for key, search in zip(keys, searches, strict=True)]
        self._limits.join(searches, self._step)
        self.rows = np.concatenate([self.rows, np.array(rows, np.int64)])
        self._negated = np.concatenate([self._negated, np.zeros(len(keys))])
        self._counts = np.concatenate([self._counts, np.ones(len(keys), np.int64)])

    def banned_ids(self) -> Ids | None:
        banned = self._limits.banned_ids(self._step)
        return None if banned is None else banned.repeat(self._counts, axis=0)

    def advance(self, ids: Ids, log_probs: Floats) -> list[Ending[Key]]:
        reached = self._limits.reached(self._step)
        if reached is None:
            return self._advance(ids, log_probs, None)
        finished = self._cut(reached, ids[:, 0], log_probs[:, 0])
        stay = ~reached
        self._keep(stay)
        return finished + self._advance(ids, log_probs, stay)

    def remove(self, keys: Set[Key]) -> None:
        stay = np.array([request.key not in keys for request in self._requests], bool)
        rows = stay.repeat(self._counts)
        self.rows, self._negated, self._counts = self.rows[rows], self._negated[rows], self._counts[stay]
        if self._records:
            # Those who joined since stand behind all that are in the record.
            last = self._records[-1]
            self._records[-1] = last[rows[: len(last)]]
        self._keep(stay)

    def _advance(self, ids: Ids, log_probs: Floats, stay: Mask | None) -> list[Ending[Key]]:
        """Takes the candidates of all rows [R, K]; those of requests that don't stay [Q] come to nothing."""
        beam_size, num_requests = self._beam_size, len(self._counts)
        ids, log_probs = ids[:, : beam_size + 1], log_probs[:, : beam_size + 1]
        num_candidates = ids.shape[1]
        width = beam_size * num_candidates
        pool = self._negated[:, None] - log_probs
        first = first_in_pool = np.arange(0, num_requests * width, width)[:, None]
        if len(pool) < num_requests * beam_size:
            # The hypotheses of each request take the first of its k places.
            spread = np.full((num_requests * beam_size, num_candidates), math.inf)
            spread[(np.arange(beam_size) < self._counts[:, None]).ravel()] = pool
            pool, first = spread, ((self._counts.cumsum() - self._counts) * num_candidates)[:, None]
        # [Q, width] the search's order: of equal ones the lower row first, then the row's own order.
        order = pool.reshape(num_requests, width).argsort(axis=1, kind="stable")
        if stay is not None:
            order, first, first_in_pool = order[stay], first[stay], first_in_pool[stay]
        best = order[:, :beam_size]
        chosen, negated = best + first, pool.take(best + first_in_pool)
        tokens = ids.take(chosen, mode="clip")
        finished: list[Ending[Key]] = []
        # One banned symbol makes a whole hypothesis impossible: sums of others don't come near either.
        if negated.max(initial=-math.inf) < -IMPOSSIBLE and not (tokens == self._limits.eos).any():
            self._counts = np.full(len(order), beam_size)
        else:
            # A row has EOS once at most: among the first 2 k are all that live on.
            best = order[:, : 2 * beam_size]
            chosen, negated = best + first, pool.take(best + first_in_pool)
            tokens = ids.take(chosen, mode="clip")
            finished, lives = self._end_some(tokens, negated, chosen, log_probs)
            chosen, tokens, negated, self._counts = chosen[lives], tokens[lives], negated[lives], lives.sum(axis=1)
        chosen = chosen.ravel()
        parents = chosen // num_candidates
        self.rows, self.previous_ids, self._negated = self.rows[parents], tokens.ravel(), negated.ravel()
        record = np.empty(len(chosen), RECORD)
        record["token"], record["log_prob"], record["parent"] = self.previous_ids, log_probs.take(chosen), parents
        self._records.append(record)
        self._step += 1
        if finished:
            goes_on = self._counts > 0
            self._counts = self._counts[goes_on]
            self._keep(goes_on)
        return finished

    def _end_some(
        self, tokens: Ids, negated: NDArray[np.float64], chosen: Ids, log_probs: Floats
    ) -> tuple[list[Ending[Key]], Mask]:
        """Ends those whose next symbol is EOS.

        Args:
            tokens, negated, chosen: [Q, 2 k] the first candidates; chosen are their places in log_probs [R, K].

        Returns:
            the requests that end with this step, and which candidates live on [Q, 2 k]: none of theirs.
        """
        possible, is_eos = negated < -IMPOSSIBLE, tokens == self._limits.eos
        lives = possible & ~is_eos
        lives &= lives.cumsum(axis=1) <= self._beam_size
        ends = possible & is_eos
        ends[:, self._beam_size :] = False
        places = chosen[ends]
        found = ends.nonzero()[0], places // log_probs.shape[1], -negated[ends], log_probs.take(places)
        for number, row, total, end in zip(*(values.tolist() for values in found), strict=True):
            self._end(number, row, total, end)
        finished: list[Ending[Key]] = []
        for number, living in enumerate(lives.any(axis=1).tolist()):
            request = self._requests[number]
            if not living or (request.ended and len(request.ended) >= num_enough(request.options)):
                finished.append((request.key, self._hypotheses(request)))
                lives[number] = False
        return finished, lives

    def _cut(self, reached: Mask, tokens: Ids, log_probs: Floats) -> list[Ending[Key]]:
        """Ends what lives of these requests [Q], with EOS where that is the most probable next symbol [R]."""
        rows = reached.repeat(self._counts).nonzero()[0]
        numbers = reached.nonzero()[0]
        by_eos = (tokens[rows] == self._limits.eos) & (log_probs[rows] > IMPOSSIBLE)
        found = numbers.repeat(self._counts[numbers]), rows, -self._negated[rows], log_probs[rows], by_eos
        for number, row, total, end, is_eos in zip(*(values.tolist() for values in found), strict=True):
            self._end(number, row, total + end if is_eos else total, end if is_eos else None)
        requests = [self._requests[number] for number in numbers.tolist()]
        return [(request.key, self._hypotheses(request)) for request in requests]

    def _end(self, number: int, row: int, log_prob: float, end_log_prob: float | None) -> None:
        request = self._requests[number]
        length = self._step - self._limits.begin(number)
        num_summands = length + (end_log_prob is not None)
        score = log_prob / length_penalty(num_summands, request.options.length_penalty)
        request.ended.append(_Ended(score, log_prob, self._step, row, length, end_log_prob))

    def _hypotheses(self, request: _Request[Key]) -> tuple[Hypothesis, ...]:
        # Sorting is stable: of equal scores the one that ended first comes first.
        ranked = sorted(request.ended, key=attrgetter("score"), reverse=True)
        return tuple([self._spelled_out(ended, request.options) for ended in ranked[: request.options.num_hypotheses]])

    def _spelled_out(self, ended: _Ended, options: DecodingOptions) -> Hypothesis:
        tokens: list[int] = []
        log_probs: list[float] = []
        last = len(self._records) - (self._step - ended.step)
        place = ended.parent
        for record in reversed(self._records[last - ended.length : last]):
            token, log_prob, place = record.item(place)
            tokens.append(token)
            log_probs.append(log_prob)
        tokens.reverse()
        log_probs.reverse()
        if ended.end_log_prob is None:
            return hypothesis_of(tokens, log_probs, ended.log_prob, FinishReason.LENGTH, options)
        tokens.append(self._limits.eos)
        log_probs.append(ended.end_log_prob)
        return hypothesis_of(tokens, log_probs, ended.log_prob, FinishReason.EOS, options)

    def _keep(self, stay: Mask) -> None:
        """Keeps what is known of these requests [Q], and no record that only the others went back to."""
        self._requests = list(compress(self._requests, stay.tolist()))
        self._limits.keep(stay)
        del self._records[: max(0, len(self._records) - (self._step - min(self._limits.first_begin, self._step)))]
