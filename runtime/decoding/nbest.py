"""What a beam has found so far: its hypotheses that have ended, their scores, and how many it still waits for."""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from attendant.runtime.decoding.history import History
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, length_penalty
from attendant.runtime.stepper import NO_ID, Floats

Key = TypeVar("Key")

MIN_COVERAGE: Final = 1e-10
"""Attention that a source position is taken to have had at least: the logarithm of none at all would outweigh all."""


@dataclass(slots=True)
class RunningRequest(Generic[Key]):
    """What a request's beams have in common.

    Attributes:
        begin: the step of its first symbol.
        num_open: beams that have not ended.
        found: the hypotheses of those that have.
    """

    key: Key
    options: DecodingOptions
    source_length: int
    begin: int
    num_open: int = 1
    found: list[Hypothesis] = field(default_factory=list)

    def ranked(self) -> tuple[Hypothesis, ...]:
        """What it is answered with, best first."""
        return tuple(sorted(self.found, key=attrgetter("score"), reverse=True))


class Ended(NamedTuple):
    """A hypothesis that has ended, not yet spelled out.

    Attributes:
        step: in which it ended.
        place: of its last token, before that step.
        length: tokens, EOS not among them.
        end_log_prob: of EOS; None where it was cut.
    """

    score: float
    step: int
    place: int
    length: int
    end_log_prob: float | None


@dataclass(slots=True)
class Beam(Generic[Key]):
    """One search of a request.

    Attributes:
        number: among its request's beams.
        random: what it draws from, where it does.
        ended: in order of ending.
    """

    request: RunningRequest[Key]
    number: int = 0
    random: np.random.Generator | None = None
    ended: list[Ended] = field(default_factory=list)

    @property
    def num_wanted(self) -> int:
        """Hypotheses that it contributes to the answer."""
        return 1 if self.request.options.num_beams > 1 else self.request.options.num_hypotheses

    def forced_id(self, step: int) -> int:
        """The symbol of its prefix that it must take in this step; -1: it may choose."""
        prefix, length = self.request.options.target_prefix, step - self.request.begin
        return prefix[length] if length < len(prefix) else NO_ID

    def end(self, history: History, step: int, place: int, log_prob: float, end_log_prob: float | None) -> float:
        """Ends the hypothesis that stood at `place` before this step.

        Args:
            log_prob: the sum of its log-probabilities, less the penalties of repetition.
            end_log_prob: of EOS, which is part of the sum; None: it is cut.

        Returns:
            what the score of a live hypothesis must exceed to matter: inf where none does any more, -inf where all do.
        """
        options = self.request.options
        ended = Ended(log_prob, step, place, step - self.request.begin, end_log_prob)
        score = log_prob / length_penalty(ended.length + (end_log_prob is not None), options.length_penalty)
        if options.coverage_penalty:
            score += options.coverage_penalty * coverage(self._attention(history, ended))
        self.ended.append(ended._replace(score=score))
        if options.patience is not None:
            # Options travel in single precision: 1.1 times 10 is 11 hypotheses, not 11.0000002 rounded up.
            num_enough = max(math.ceil(options.patience * options.beam_size - 1e-5), self.num_wanted)
            return math.inf if len(self.ended) >= num_enough else -math.inf
        if len(self.ended) < self.num_wanted:
            return -math.inf
        return sorted([one.score for one in self.ended], reverse=True)[self.num_wanted - 1]

    def best(self, history: History) -> list[Hypothesis]:
        """Its best hypotheses, spelled out."""
        # Sorting is stable: of equal scores the one that ended first comes first.
        ranked = sorted(self.ended, key=attrgetter("score"), reverse=True)
        return [self._hypothesis(history, ended) for ended in ranked[: self.num_wanted]]

    def _hypothesis(self, history: History, ended: Ended) -> Hypothesis:
        tokens, log_probs, _ = history.path(ended.step, ended.place, ended.length)
        token_ids, reason = tuple(tokens), FinishReason.LENGTH
        if ended.end_log_prob is not None:
            log_probs.append(ended.end_log_prob)
            reason = FinishReason.EOS
        log_prob = 0.0
        for summand in log_probs:  # in order, as the search adds them up
            log_prob += summand
        attention = self._attention(history, ended) if self.request.options.attention else None
        return Hypothesis(token_ids, tuple(log_probs), log_prob, ended.score, reason, attention)

    def _attention(self, history: History, ended: Ended) -> Floats:
        """[summands, source length]."""
        places = history.path(ended.step, ended.place, ended.length).places
        if ended.end_log_prob is not None:
            places.append(ended.place)
        return history.attention(self.request.begin, places, self.request.source_length)


def coverage(attention: Floats) -> float:
    """The sum over source positions of log min(attention that each has had, 1) (Wu et al. 2016, eq. 14).

    Args:
        attention: [summands, source length].
    """
    had = attention.sum(axis=0, dtype=np.float64)
    return float(np.log(had.clip(MIN_COVERAGE, 1.0)).sum())


def opened_beams(request: RunningRequest[Key], num_beams: int) -> list[Beam[Key]]:
    """The beams of a request, none of which has begun. Each draws from numbers of its own, whoever else draws."""
    sampling = request.options.sampling
    if sampling is None:
        return [Beam(request, number) for number in range(num_beams)]
    return [
        Beam(request, number, np.random.Generator(np.random.Philox(key=[sampling.seed, number])))
        for number in range(num_beams)
    ]
