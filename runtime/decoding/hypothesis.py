"""Hypotheses: ended ones, live ones with the candidates that may follow, and the beams that collect them.

A hypothesis takes the symbols that are most probable by the model, unless a prefix, a repetition penalty, sampling or
alternatives change their order. Each changes the candidates of its own rows only, so all share one search.

Shapes: R live hypotheses, W steps (columns), S source positions, K candidates of each hypothesis.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES, Choice, DecodingOptions, Sampling, choice_after
from attendant.runtime.decoding.trace import Candidate, Fate, Recorder
from attendant.runtime.stepper import NO_ID, Floats, Ids

MIN_WIDTH: Final = 16

TextOf = Callable[[Sequence[int]], str]
"""Decodes tokens to the text by which hypotheses are distinct."""

MIN_COVERAGE: Final = 1e-10
"""Lower bound of a source position's attention: the logarithm of zero would outweigh everything else."""


class FinishReason(Enum):
    EOS = "eos"
    LENGTH = "length"


class Hypothesis(NamedTuple):
    """One target with its probability. A named tuple, because worker processes send it.

    Attributes:
        token_ids: the target, without BOS and EOS.
        token_log_probs: the summands of log_prob in order; EOS's is the last if the hypothesis ended there.
        log_prob: natural-log probability of the target, including EOS if it ended there.
        score: log_prob over the penalties; hypotheses are ranked by it.
        attention: float32 [number of summands, source length], or None unless requested.
        parts: of a text that was decoded in parts, their hypotheses; empty otherwise.
    """

    token_ids: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    log_prob: float
    score: float
    finish_reason: FinishReason
    attention: Floats | None = None
    parts: "tuple[Hypothesis, ...]" = ()

    @property
    def units(self) -> "tuple[Hypothesis, ...]":
        """The hypotheses that were decoded: the parts, or itself if it has none."""
        return self.parts or (self,)


class Progress(NamedTuple):
    """Tokens of a request's best hypothesis that no later step can change.

    Attributes:
        first: the place of the first of them in the target.
    """

    first: int
    token_ids: tuple[int, ...]


class History:
    """Arrays [R, W] of symbols and their log-probabilities, and the attention of each step if it is needed.

    All hypotheses write their symbol of a step into the same column; each began at the column of its own first step.
    Reordering them copies whole rows, which costs less than storing each step's parents and following them at the end.

    Attributes:
        step: the next step.
        attends: the last step kept its attention.
    """

    def __init__(self) -> None:
        self.step = 0
        # The step of column 0.
        self._first = 0
        self._tokens = np.empty((0, MIN_WIDTH), np.int32)
        self._log_probs = np.empty((0, MIN_WIDTH), np.float32)
        # The row that each hypothesis had before each step [R, W], and each step's attention [its rows, S]; kept only
        # while a request needs attention.
        self._places = np.empty((0, MIN_WIDTH), np.int32)
        self._attention: list[Floats | None] = []
        self.attends = False

    @property
    def width(self) -> int:
        """Steps that there is room for."""
        return self._tokens.shape[1]

    def join(self, num_rows: int, first_begin: int) -> None:
        """Adds hypotheses that begin with this step. No hypothesis began before the step `first_begin`."""
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
        """Ends a step: each of the hypotheses `parents`, in this order, takes a symbol.

        Args:
            parents: [R'] into the hypotheses before the step; if None, all of them in order.
            tokens, log_probs: [R'].
            attention: [R, S] of the rows before the step; None if no request needs it.
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
        """Returns the symbols of the hypothesis at `row`, whose first step was `begin`."""
        tokens: list[int] = self._tokens[row, begin - self._first : self.step - self._first].tolist()
        return tokens

    def log_probs(self, row: int, begin: int) -> list[float]:
        log_probs: list[float] = self._log_probs[row, begin - self._first : self.step - self._first].tolist()
        return log_probs

    def attention(self, row: int, begin: int, source_length: int, last: Floats | None) -> Floats:
        """Returns the attention of a hypothesis [L, source_length], a row for each of its tokens.

        Args:
            last: [R, S] of a step that is not in the history yet, which adds a row; None if there is none.
        """
        first, end = begin - self._first, self.step - self._first
        attention = np.zeros((end - first + (last is not None), source_length), np.float32)
        places = self._places[row, first:end].tolist() if end > first else []
        for place, weights, own in zip(places, self._attention[first:end], attention, strict=False):
            assert weights is not None, "attention is kept from the first step of a request that needs it"
            own[:] = weights[place, :source_length]
        if last is not None:
            attention[-1] = last[row, :source_length]
        return attention


@dataclass(slots=True)
class RunningRequest:
    """The state that a request's beams share.

    Attributes:
        begin: the step of its first symbol.
        streams: its tokens are reported as soon as they are certain.
        num_streamed: tokens that have been reported.
        num_open: beams that have not ended.
        best: the best hypotheses of the beams that have ended.
        recorders: of the beams that have ended, by their numbers, if the search is traced.
    """

    key: int
    options: DecodingOptions
    source_length: int
    begin: int
    streams: bool = False
    num_streamed: int = 0
    num_open: int = 1
    best: list[Hypothesis] = field(default_factory=list)
    recorders: dict[int, Recorder] = field(default_factory=dict)


@dataclass(slots=True)
class Beam:
    """One search of a request.

    Attributes:
        number: among its request's beams.
        random: the generator that it draws from; None if it does not draw.
        text_of: decodes hypotheses; if None, they are distinct by their tokens.
        recorder: records the search; None if it is not traced.
        ended: its hypotheses, in order of ending; no two have the same text.
        texts: their texts; empty if only one hypothesis is wanted.
        bound: a live hypothesis matters if its score can exceed this; inf if none does, -inf if all do.
    """

    request: RunningRequest
    number: int = 0
    random: np.random.Generator | None = None
    text_of: TextOf | None = None
    recorder: Recorder | None = None
    ended: list[Hypothesis] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bound: float = -math.inf

    @property
    def num_wanted(self) -> int:
        """Hypotheses that it contributes to the answer."""
        return 1 if self.request.options.num_beams > 1 else self.request.options.num_hypotheses

    def forced_id(self, step: int) -> int:
        """Returns the symbol of its prefix that it must take in this step; -1 if it may choose."""
        prefix, length = self.request.options.target_prefix, step - self.request.begin
        return prefix[length] if length < len(prefix) else NO_ID

    def choice(self, history: History, row: int) -> Choice | None:
        """Returns the tokens that may complete the prefix of the hypothesis at `row`; None if it is complete."""
        request = self.request
        completion, num_forced = request.options.completion, len(request.options.target_prefix)
        # Each token is a character at least.
        if not 0 <= history.step - request.begin - num_forced < len(completion):
            return None
        return choice_after(completion, history.tokens(row, request.begin)[num_forced:])

    def best_possible(self, log_prob: float) -> float:
        """Returns an upper bound of a live hypothesis's score.

        It only loses log-probability, so its score is at most its present sum over the penalty of its maximum length,
        including EOS. The coverage penalty only lowers it.
        """
        options = self.request.options
        return log_prob / options.penalty(options.max_length + 1)

    def end(
        self, history: History, row: int, log_prob: float, end_log_prob: float | None, attention: Floats | None
    ) -> None:
        """Ends the hypothesis at `row`.

        Args:
            log_prob: the sum of its log-probabilities, less the penalties of repetition.
            end_log_prob: EOS's, which is part of the sum; if None, the hypothesis is cut.
            attention: [R, S] of the step that ends it; None if no request needs it.
        """
        request, options = self.request, self.request.options
        token_log_probs = history.log_probs(row, request.begin)
        if end_log_prob is not None:
            token_log_probs.append(end_log_prob)
        score = log_prob / options.penalty(len(token_log_probs))
        weights = None
        # A model without attention returns none, even if it is requested.
        if options.needs_attention and (attention is not None or history.attends):
            last = None if end_log_prob is None else attention
            weights = history.attention(row, request.begin, request.source_length, last)
            if options.coverage_penalty:
                score += options.coverage_penalty * coverage(weights)
        hypothesis = Hypothesis(
            token_ids=tuple(history.tokens(row, request.begin)),
            token_log_probs=tuple(token_log_probs),
            log_prob=_sum_in_order(token_log_probs),
            score=score,
            finish_reason=FinishReason.LENGTH if end_log_prob is None else FinishReason.EOS,
            attention=weights if options.attention else None,
        )
        self._add(hypothesis)
        if self.recorder is not None:
            by_eos = end_log_prob is not None
            self.recorder.end(row, hypothesis.log_prob, hypothesis.score, hypothesis, by_eos=by_eos)
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
        return best_first(self.ended)[: self.num_wanted]


def opened_beams(
    request: RunningRequest, num_beams: int, text_of: TextOf | None = None, recorder: Recorder | None = None
) -> list[Beam]:
    """Returns new beams of a request, each with its own random numbers; `recorder` has the request's steps so far."""
    sampling, beams = request.options.sampling, list[Beam]()
    for number in range(num_beams):
        own = None if recorder is None else recorder.fork()
        if sampling is None:
            beams.append(Beam(request, number, None, text_of, own))
        else:
            random = np.random.Generator(np.random.Philox(key=np.array([sampling.seed, number], np.uint64)))
            # Draws may be equal.
            beams.append(Beam(request, number, random, None, own))
    return beams


def progress_of(
    beams: Sequence[Beam], rows: Sequence[range], sums: Sequence[float], history: History
) -> Progress | None:
    """Returns the tokens of a request's best hypothesis that have become certain since the last call; None if none.

    They are the tokens that all hypotheses share that can still be the best: the best ended one, and live ones whose
    score can reach the best ended one's.

    Args:
        beams: those of the request that have not ended.
        rows: of each of them.
        sums: by row, the log-probability of the hypothesis before it is divided by the length penalty.
    """
    request = beams[0].request
    first, prefix = request.num_streamed, request.options.target_prefix
    if not first and prefix:
        certain = prefix
    else:
        ended = [*request.best, *(hypothesis for beam in beams for hypothesis in beam.ended)]
        best = max([hypothesis.score for hypothesis in ended], default=-math.inf)
        rivals = [hypothesis.token_ids[first:] for hypothesis in ended if hypothesis.score == best]
        for beam, of_beam in zip(beams, rows, strict=True):
            able = [row for row in of_beam if beam.best_possible(sums[row]) >= best]
            rivals += [tuple(history.tokens(row, request.begin + first)) for row in able]
        certain = _common_prefix(rivals)
    request.num_streamed += len(certain)
    return Progress(first, certain) if certain else None


def best_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Sorts by score; of equal scores, the hypothesis that ended first comes first."""
    return hypotheses if len(hypotheses) == 1 else sorted(hypotheses, key=attrgetter("score"), reverse=True)


def distinct(hypotheses: list[Hypothesis], text_of: TextOf | None) -> list[Hypothesis]:
    """Returns the first hypothesis of each text; without `text_of`, of each sequence of tokens."""
    first: dict[Hashable, Hypothesis] = {}
    for hypothesis in hypotheses:
        first.setdefault((text_of or tuple)(hypothesis.token_ids), hypothesis)
    return list(first.values())


def coverage(attention: Floats) -> float:
    """Returns the sum over source positions of log min(sum of the position's attention, 1) (Wu et al. 2016, eq. 14)."""
    total = attention.sum(axis=0, dtype=np.float64)  # of [summands, source length]
    return float(np.log(total.clip(MIN_COVERAGE, 1.0)).sum())


def _sum_in_order(log_probs: list[float]) -> float:
    """Adds them as the search does: `sum` rounds less, to another number."""
    total = 0.0
    for log_prob in log_probs:
        total += log_prob
    return total


def _common_prefix(sequences: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    # All sequences share the common prefix of the first and the last in sorted order.
    lowest, highest = min(sequences), max(sequences)
    for place, (a, b) in enumerate(zip(lowest, highest, strict=False)):
        if a != b:
            return lowest[:place]
    return lowest


def _moved(array: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Copies the array into the corner of a larger one."""
    enlarged = np.empty(shape, array.dtype)
    enlarged[: array.shape[0], : array.shape[1]] = array
    return enlarged


LEAST_POSSIBLE: Final = -1e8
"""A lower log-probability belongs to a banned symbol, whose logit is -1e9. No other symbol's comes near."""


@dataclass(slots=True)
class Candidates:
    """The candidates of all rows, best first, in arrays that may be written to.

    Attributes:
        ids: int64 [R, K].
        log_probs: float32 [R, K] the model's.
        scores: float64 [R, K] the order: the log-probabilities, less the penalties.
    """

    ids: Ids
    log_probs: Floats
    scores: NDArray[np.float64]

    @classmethod
    def of_rows(cls, ids: Ids, log_probs: Floats, rows: Ids) -> "Candidates":
        """Copies the candidates [R, K] of rows [R'], which may be repeated."""
        log_probs = log_probs[rows]
        return cls(ids[rows], log_probs, log_probs.astype(np.float64))

    def force(self, row: int, token_id: int, log_prob: float) -> None:
        self.ids[row, 0], self.log_probs[row, 0], self.scores[row, 0] = token_id, log_prob, log_prob
        self.scores[row, 1:] = -math.inf

    def choose(self, row: int, rank: int) -> None:
        """Leaves a row only the candidate of this rank."""
        self.ids[row, 0] = self.ids[row, rank]
        self.log_probs[row, 0] = self.log_probs[row, rank]
        self.scores[row, 0] = self.scores[row, rank]
        self.scores[row, 1:] = -math.inf

    def restrict(self, row: int, token_ids: Ids) -> None:
        """Leaves a row only these symbols, in the model's order."""
        self.scores[row, ~np.isin(self.ids[row], token_ids)] = -math.inf
        self._order(row)

    def penalize(self, row: int, token_ids: Sequence[int], penalty: float) -> None:
        """Divides the probability of symbols that the row's hypothesis already has, and sorts its candidates again.

        Keskar et al. (2019), section 4.1, divide the logits. Dividing probabilities needs no logits, and also affects
        symbols of high probability.
        """
        self.scores[row, np.isin(self.ids[row], token_ids)] -= math.log(penalty)
        self._order(row)

    def _order(self, row: int) -> None:
        # Stable: of equal scores, the one that the model prefers.
        order = np.argsort(-self.scores[row], kind="stable")
        for values in (self.ids, self.log_probs, self.scores):
            values[row] = values[row, order]

    def draw(self, row: int, sampling: Sampling, random: np.random.Generator) -> None:
        """Leaves a row one candidate, drawn at random. Always draws exactly one number."""
        number = random.random()
        scores = self.scores[row]
        scores = scores[scores > LEAST_POSSIBLE][: sampling.top_k or MAX_SAMPLED_CANDIDATES]
        if not len(scores):
            return
        weights = np.exp((scores - scores[0]) / sampling.temperature)
        below = np.cumsum(weights)
        if sampling.top_p < 1:
            # Candidates before the one that reaches the probability, and that one.
            kept = int(((below - weights) < sampling.top_p * below[-1]).sum())
            below = below[:kept]
        self.choose(row, int(np.searchsorted(below, number * below[-1], side="right").clip(0, len(below) - 1)))


def repeated_ngram_ends(token_ids: Sequence[int], size: int) -> list[int]:
    """Returns the symbols that would complete an n-gram of `size` tokens that `token_ids` already has; each once."""
    start = len(token_ids) - size + 1
    if start < 0:
        return []
    last = tuple(token_ids[start:])
    return list({token_ids[i + size - 1]: None for i in range(start) if tuple(token_ids[i : i + size - 1]) == last})


EVERY_CANDIDATE: Final = 2**31 - 1  # A number of candidates that means all: no vocabulary is larger.


def num_candidates(beam: Beam, rows: range, history: History, num_ordered: int) -> int:
    """Returns the candidates per row that a beam needs in this step, of which the search orders `num_ordered`."""
    options, length = beam.request.options, history.step - beam.request.begin
    num = max(num_ordered, options.trace)
    if options.completion and any(beam.choice(history, row) is not None for row in rows):
        return EVERY_CANDIDATE
    if options.alternatives and length == len(options.target_prefix):
        num = max(num, options.num_hypotheses)
    if options.sampling is not None:
        num = max(num, options.sampling.top_k or MAX_SAMPLED_CANDIDATES)
    # All penalized symbols, at most one per token, may have ranked before those that come first now.
    return num + length if options.repetition_penalty != 1.0 else num


def ngram_bans(beams: Sequence[Beam], counts: Sequence[int], history: History) -> list[list[int]]:
    """Returns for each row the symbols that would repeat an n-gram; `counts` are the numbers of rows of the beams."""
    bans: list[list[int]] = []
    for beam, count in zip(beams, counts, strict=True):
        size, begin = beam.request.options.no_repeat_ngram_size, beam.request.begin
        bans_here = size and beam.forced_id(history.step) == NO_ID
        for row in range(len(bans), len(bans) + count):
            is_free = bans_here and beam.choice(history, row) is None
            bans.append(repeated_ngram_ends(history.tokens(row, begin), size) if is_free else [])
    return bans


def change_candidates(candidates: Candidates, row: int, beam: Beam, history: History, forced_log_prob: float) -> None:
    """Changes a row's candidates as its beam's options require; `forced_log_prob` is that of a symbol it must take."""
    options, begin = beam.request.options, beam.request.begin
    if (forced := beam.forced_id(history.step)) != NO_ID:
        candidates.force(row, forced, forced_log_prob)
        return
    if (choice := beam.choice(history, row)) is not None:
        candidates.restrict(row, choice.ids)
    elif options.repetition_penalty != 1.0:
        candidates.penalize(row, history.tokens(row, begin), options.repetition_penalty)
    if beam.random is not None and options.sampling is not None:
        candidates.draw(row, options.sampling, beam.random)
    elif options.alternatives and history.step - begin == len(options.target_prefix):
        candidates.choose(row, beam.number)


def considered(
    candidates: Candidates, row: int, ids: Ids, log_probs: Floats, total: float, beam: Beam, history: History
) -> list[Candidate]:
    """Returns the candidates of one of a beam's rows, best first, for its trace.

    Args:
        candidates: after `change_candidates`: without those that a forced symbol or a draw has excluded.
        ids, log_probs: [K] the model's.
        total: the log-probability of the row's hypothesis, less the penalties of repetition.
    """
    options = beam.request.options
    num = max(options.beam_size + 1, options.trace)
    columns = (values[row, :num].tolist() for values in (candidates.ids, candidates.log_probs, candidates.scores))
    possible = [
        Candidate(token_id, log_prob, total + score)
        for token_id, log_prob, score in zip(*columns, strict=True)
        if score > LEAST_POSSIBLE
    ]
    is_forced, choice = beam.forced_id(history.step) != NO_ID, beam.choice(history, row)
    fate, allowed_ids = Fate.RANK, None
    if is_forced or choice is not None:
        allowed_ids = set() if choice is None else set(choice.ids.tolist())
    if not is_forced and beam.random is not None:
        fate = Fate.NOT_DRAWN
    elif not is_forced and options.alternatives and history.step - beam.request.begin == len(options.target_prefix):
        fate = Fate.ALTERNATIVE
    if fate is Fate.RANK and allowed_ids is None:
        return possible
    penalized: list[int] = []
    if options.repetition_penalty != 1.0 and allowed_ids is None:
        penalized = history.tokens(row, beam.request.begin)
    penalty = math.log(options.repetition_penalty)
    # Each token of the hypothesis may have ranked before those that come first now.
    width = options.trace + len(penalized)
    of_model = [
        Candidate(
            token_id,
            log_prob,
            total + (log_prob - penalty if token_id in penalized else log_prob),
            fate if allowed_ids is None or token_id in allowed_ids else Fate.PREFIX,
        )
        for token_id, log_prob in zip(ids[:width].tolist(), log_probs[:width].tolist(), strict=True)
        if log_prob > LEAST_POSSIBLE
    ]
    shown = sorted(of_model, key=lambda each: -each.total)[: options.trace]
    left = {each.token_id: each for each in possible}
    return [left.pop(each.token_id, each) for each in shown] + list(left.values())
