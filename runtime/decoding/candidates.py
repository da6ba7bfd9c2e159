"""Changes a step's candidates as options require: bans, forced symbols, penalties, draws, and limits of length.

A hypothesis takes the symbols that are most probable by the model, unless a prefix, a repetition penalty, sampling or
alternatives change their order. Each changes the lists of its own rows only, so all share one search.

Shapes: B searches (beams), R rows, K candidates of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.decoding.hypothesis import Beam, History
from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES, DecodingOptions, Sampling
from attendant.runtime.decoding.trace import Candidate, Fate
from attendant.runtime.stepper import NO_ID, Floats, Ids

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
        """Leaves a row only this symbol."""
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


EVERY_CANDIDATE: Final = 2**31 - 1
"""A number of candidates that means all: no vocabulary is larger."""


def num_candidates(beam: Beam, rows: range, history: History, num_ordered: int) -> int:
    """Returns the candidates per row that a beam needs in this step, of which the search orders `num_ordered`.

    Args:
        rows: the beam's.
    """
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
    """Returns for each row the symbols that would repeat an n-gram.

    Args:
        counts: rows of each beam.
    """
    bans: list[list[int]] = []
    for beam, count in zip(beams, counts, strict=True):
        size, begin = beam.request.options.no_repeat_ngram_size, beam.request.begin
        bans_here = size and beam.forced_id(history.step) == NO_ID
        for row in range(len(bans), len(bans) + count):
            is_free = bans_here and beam.choice(history, row) is None
            bans.append(repeated_ngram_ends(history.tokens(row, begin), size) if is_free else [])
    return bans


def change(candidates: Candidates, row: int, beam: Beam, history: History, forced_log_prob: float) -> None:
    """Changes the candidates of one of a beam's rows as its options require.

    Args:
        forced_log_prob: of the symbol that the row must take, if there is one.
    """
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
        candidates: after `change`: without those that a forced symbol or a draw has excluded.
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


NEVER: Final = 1 << 62


class Limits:
    """The lengths of searches and their bans of UNK. They are checked only in steps in which they can matter."""

    def __init__(self, eos: int, unk: int) -> None:
        self._eos, self._unk = eos, unk
        # [B, 4] the step of a search's first symbol, the last step in which it must end, the first step in which it
        # may end; and UNK if it is banned, else -1.
        self._facts: Ids = np.empty((0, 4), np.int64)
        # No search reaches its limit before the first of these steps. All may end from the second step on.
        self._cut_from, self._end_banned_until = NEVER, 0
        self._bans_unk = False

    @property
    def first_begin(self) -> int:
        """The first step of the search that began first; NEVER without searches."""
        return int(self._facts[0, 0]) if len(self._facts) else NEVER

    def join(self, options: Sequence[DecodingOptions], step: int) -> None:
        """Adds searches that begin with this step."""
        facts = [
            (step, step + o.max_length, step + o.min_length, self._unk if o.suppress_unk else NO_ID) for o in options
        ]
        self._facts = np.concatenate([self._facts, np.array(facts, np.int64)])
        self._cut_from = min(self._cut_from, *(cut for _, cut, _, _ in facts))
        self._end_banned_until = max(self._end_banned_until, *(free for _, _, free, _ in facts))
        self._bans_unk |= any(unk != NO_ID for _, _, _, unk in facts)

    def keep(self, beams: Ids | NDArray[np.bool_]) -> None:
        """Keeps these searches: a mask [B], or places in order of their beginning, which may be repeated."""
        self._facts = self._facts[beams]
        if self._bans_unk:
            self._bans_unk = bool((self._facts[:, 3] != NO_ID).any())

    def reached(self, step: int) -> NDArray[np.bool_] | None:
        """Returns which searches have their maximum length before this step [B]; None if none has."""
        if step < self._cut_from:
            return None
        reached: NDArray[np.bool_] = self._facts[:, 1] <= step
        if reached.any():
            return reached
        self._cut_from = int(self._facts[:, 1].min(initial=NEVER))
        return None

    def banned_ids(self, step: int) -> Ids | None:
        """Returns the symbols that each must not generate in this step [B, N], padded with -1; None if none."""
        if self._bans_unk:
            end = np.where(step < self._facts[:, 2], self._eos, NO_ID)
            return np.stack([end, self._facts[:, 3]], axis=1)
        if step < self._end_banned_until:
            return np.where(step < self._facts[:, 2:3], self._eos, NO_ID)
        return None
