"""What a beam has found so far: its hypotheses that have ended, and which score another one must exceed to matter."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, TypeVar

import numpy as np

from attendant.runtime.decoding.completion import Choice, choice_after
from attendant.runtime.decoding.history import History
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import NO_ID, Floats

Key = TypeVar("Key")
TextOf = Callable[[Sequence[int]], str]
"""Decodes tokens to the text by which hypotheses are told apart."""

MIN_COVERAGE: Final = 1e-10
"""Attention that a source position is taken to have had at least: the logarithm of none at all would outweigh all."""


@dataclass(slots=True)
class RunningRequest(Generic[Key]):
    """What a request's beams have in common.

    Attributes:
        begin: the step of its first symbol.
        streams: whether its tokens are told as soon as they are certain.
        num_told: tokens that have been.
        num_open: beams that have not ended.
        found: the best hypotheses of those that have.
    """

    key: Key
    options: DecodingOptions
    source_length: int
    begin: int
    streams: bool = False
    num_told: int = 0
    num_open: int = 1
    found: list[Hypothesis] = field(default_factory=list)


@dataclass(slots=True)
class Beam(Generic[Key]):
    """One search of a request.

    Attributes:
        number: among its request's beams.
        random: what it draws from, where it does.
        text_of: decodes hypotheses; None: they are told apart by their tokens.
        ended: its hypotheses, in order of ending; no two have the same text.
        texts: theirs; empty if only one hypothesis is wanted.
        bound: what the score of a live hypothesis must exceed to matter; inf: none does, -inf: all do.
    """

    request: RunningRequest[Key]
    number: int = 0
    random: np.random.Generator | None = None
    text_of: TextOf | None = None
    ended: list[Hypothesis] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bound: float = -math.inf

    @property
    def num_wanted(self) -> int:
        """Hypotheses that it contributes to the answer."""
        return 1 if self.request.options.num_beams > 1 else self.request.options.num_hypotheses

    def forced_id(self, step: int) -> int:
        """The symbol of its prefix that it must take in this step; -1: it may choose."""
        prefix, length = self.request.options.target_prefix, step - self.request.begin
        return prefix[length] if length < len(prefix) else NO_ID

    def choice(self, history: History, row: int) -> Choice | None:
        """Returns what the hypothesis at `row` may take while it completes the prefix; None if it is complete."""
        request = self.request
        completion, num_forced = request.options.completion, len(request.options.target_prefix)
        # Each token is a character at least.
        if not 0 <= history.step - request.begin - num_forced < len(completion):
            return None
        return choice_after(completion, history.tokens(row, request.begin)[num_forced:])

    def best_possible(self, log_prob: float) -> float:
        """The score that a live hypothesis can reach at best.

        It only loses log-probability, so no more than it has now, over the penalty of its maximum length, EOS included;
        the penalty of coverage only takes away.
        """
        options = self.request.options
        return log_prob / options.penalty(options.max_length + 1)

    def end(
        self, history: History, row: int, log_prob: float, end_log_prob: float | None, attention: Floats | None
    ) -> None:
        """Ends the hypothesis that stands at `row`.

        Args:
            log_prob: the sum of its log-probabilities, less the penalties of repetition.
            end_log_prob: of EOS, which is part of the sum; None: it is cut.
            attention: [R, S] of the step that ends it, where anybody needs it.
        """
        request, options = self.request, self.request.options
        token_log_probs = history.log_probs(row, request.begin)
        if end_log_prob is not None:
            token_log_probs.append(end_log_prob)
        score = log_prob / options.penalty(len(token_log_probs))
        weights = None
        # A model without attention gives none, whoever asks.
        if options.needs_attention and (attention is not None or history.attends):
            last = None if end_log_prob is None else attention
            weights = history.attention(row, request.begin, request.source_length, last)
            if options.coverage_penalty:
                score += options.coverage_penalty * coverage(weights)
        found = Hypothesis(
            token_ids=tuple(history.tokens(row, request.begin)),
            token_log_probs=tuple(token_log_probs),
            log_prob=_sum_in_order(token_log_probs),
            score=score,
            finish_reason=FinishReason.LENGTH if end_log_prob is None else FinishReason.EOS,
            attention=weights if options.attention else None,
        )
        self._add(found)
        if options.patience is not None:
            # Options travel in single precision: 1.1 times 10 is 11 hypotheses, not 11.0000002 rounded up.
            num_enough = max(math.ceil(options.patience * options.beam_size - 1e-5), self.num_wanted)
            self.bound = math.inf if len(self.ended) >= num_enough else -math.inf
        elif len(self.ended) >= self.num_wanted:
            self.bound = self.best()[-1].score

    def _add(self, hypothesis: Hypothesis) -> None:
        """Adds a hypothesis that has ended; of two with the same text, the one with the higher score stays."""
        if self.text_of is not None and self.num_wanted > 1:
            text = self.text_of(hypothesis.token_ids)
            if text in self.texts:
                place = self.texts.index(text)
                if self.ended[place].score >= hypothesis.score:
                    return
                del self.ended[place], self.texts[place]
            self.texts.append(text)
        self.ended.append(hypothesis)

    def best(self) -> list[Hypothesis]:
        """Its best hypotheses, as many as are wanted."""
        return best_first(self.ended)[: self.num_wanted]


def best_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """By score; of equal scores the one that ended first comes first."""
    return hypotheses if len(hypotheses) == 1 else sorted(hypotheses, key=attrgetter("score"), reverse=True)


def distinct(hypotheses: list[Hypothesis], text_of: TextOf | None) -> list[Hypothesis]:
    """Returns the first hypothesis of each text; without `text_of`, of each sequence of tokens."""
    first: dict[Hashable, Hypothesis] = {}
    for hypothesis in hypotheses:
        first.setdefault((text_of or tuple)(hypothesis.token_ids), hypothesis)
    return list(first.values())


def coverage(attention: Floats) -> float:
    """The sum over source positions of log min(attention that each has had, 1) (Wu et al. 2016, eq. 14).

    Args:
        attention: [summands, source length].
    """
    had = attention.sum(axis=0, dtype=np.float64)
    return float(np.log(had.clip(MIN_COVERAGE, 1.0)).sum())


def opened_beams(request: RunningRequest[Key], num_beams: int, text_of: TextOf | None = None) -> list[Beam[Key]]:
    """The beams of a request, none of which has begun. Each draws from numbers of its own, whoever else draws."""
    sampling = request.options.sampling
    if sampling is None:
        return [Beam(request, number, text_of=text_of) for number in range(num_beams)]
    return [
        Beam(request, number, np.random.Generator(np.random.Philox(key=np.array([sampling.seed, number], np.uint64))))
        for number in range(num_beams)
    ]


def _sum_in_order(log_probs: list[float]) -> float:
    """As the search adds them up: `sum` rounds less, to another number."""
    total = 0.0
    for log_prob in log_probs:
        total += log_prob
    return total
