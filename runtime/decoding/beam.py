"""Beam search; with one live hypothesis it is greedy search.

This is the definition. Requests that keep no attention are advanced many at a time (beams.py, greedy.py), to the same
result, bit for bit.

Each step pools the candidates of all live rows, ordered by the log-probability of the whole hypothesis (ties: the
lower row, then the row's own order). Of the pool's first k, those that are EOS end a hypothesis; the first k others
live on. An ended hypothesis therefore never costs a live one its place, and k + 1 candidates per row are enough. The
search is over when patience * k hypotheses have ended (Kasai et al. 2022; 1 is the usual first-come rule) or at the
length limit: there each live hypothesis ends, with EOS where that is its most probable next symbol, else cut. With one
live hypothesis there is nothing to be patient for: it ends where its most probable symbol is EOS.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Node
from attendant.runtime.decoding.options import DecodingOptions, length_penalty
from attendant.runtime.decoding.search import Candidates
from attendant.runtime.stepper import Floats

IMPOSSIBLE = -1e8
"""Below this a candidate is banned, not improbable: bans are logits of -1e9, probable ones don't come near."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The state of one request's search; `start` makes the first.

    Attributes:
        live: the last node of each live hypothesis; None before the first symbol.
        ended: the hypotheses that have ended, in order of ending.
        length: tokens of each live hypothesis.
    """

    options: DecodingOptions
    special_ids: SpecialIds
    live: tuple[Node | None, ...]
    rows: tuple[int, ...]
    previous_ids: tuple[int, ...]
    ended: tuple[Hypothesis, ...] = ()
    length: int = 0
    done: bool = False

    @classmethod
    def start(cls, options: DecodingOptions, special_ids: SpecialIds) -> "BeamSearch":
        return cls(options, special_ids, live=(None,), rows=(0,), previous_ids=(special_ids.start,))

    @property
    def num_candidates(self) -> int:
        return self.options.beam_size + 1 if self.options.beam_size > 1 else 1

    @property
    def banned_ids(self) -> tuple[int, ...]:
        banned = (self.special_ids.eos,) if self.length < self.options.min_length else ()
        return (*banned, self.special_ids.unk) if self.options.suppress_unk else banned

    @property
    def forced_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def attention(self) -> bool:
        return self.options.attention

    def advance(self, candidates: Candidates) -> "BeamSearch":
        if self.length >= self.options.max_length:
            return self._cut(candidates)
        if self.options.beam_size == 1:
            return self._advance_greedily(candidates)
        beam_size, eos = self.options.beam_size, self.special_ids.eos
        ids, log_probs, live_before = candidates.ids, candidates.log_probs, self.live
        attention = candidates.attention if self.options.attention else None
        ended = list(self.ended)
        live: list[Node] = []
        rows: list[int] = []
        for place, (negated, row, rank) in enumerate(self._pool(log_probs)):
            token_id = ids[row][rank]
            if token_id == eos and place >= beam_size:
                continue
            weights = None if attention is None else attention[row]
            node = Node(live_before[row], token_id, log_probs[row][rank], -negated, weights)
            if token_id == eos:
                ended.append(self._end(node, FinishReason.EOS))
            else:
                live.append(node)
                rows.append(row)
                if len(live) == beam_size:
                    break
        done = len(ended) >= num_enough(self.options) or not live
        return BeamSearch(
            self.options,
            self.special_ids,
            tuple(live),
            tuple(rows),
            tuple([node.token_id for node in live]),
            tuple(ended),
            self.length + 1,
            done,
        )

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        # Sorting is stable: of equal scores the one that ended first comes first.
        ranked = sorted(self.ended, key=attrgetter("score"), reverse=True)
        return tuple(ranked[: self.options.num_hypotheses])

    def _advance_greedily(self, candidates: Candidates) -> "BeamSearch":
        """The same rules for one row, which need no pool. Those that keep no attention are advanced by greedy.py."""
        token_id = candidates.ids[0][0]
        node = self._extend(candidates, 0, 0)
        if token_id == self.special_ids.eos:
            ended = (self._end(node, FinishReason.EOS),)
            return BeamSearch(self.options, self.special_ids, (), (), (), ended, self.length + 1, True)
        return BeamSearch(self.options, self.special_ids, (node,), (0,), (token_id,), (), self.length + 1)

    def _pool(self, log_probs: list[list[float]]) -> list[tuple[float, int, int]]:
        """(-log_prob of the whole, row, rank within the row) of every possible candidate, in order."""
        totals = [0.0 if node is None else node.log_prob for node in self.live]
        pool = [
            (-(so_far + log_prob), row, rank)
            for row, so_far in enumerate(totals)
            for rank, log_prob in enumerate(log_probs[row])
            if log_prob > IMPOSSIBLE
        ]
        pool.sort()
        return pool

    def _extend(self, candidates: Candidates, row: int, rank: int) -> Node:
        parent = self.live[row]
        log_prob = candidates.log_probs[row][rank]
        so_far = parent.log_prob if parent is not None else 0.0
        weights = candidates.attention[row] if self.options.attention and candidates.attention is not None else None
        return Node(parent, candidates.ids[row][rank], log_prob, so_far + log_prob, weights)

    def _cut(self, candidates: Candidates) -> "BeamSearch":
        ended = list(self.ended)
        for row, node in enumerate(self.live):
            if candidates.ids[row][0] == self.special_ids.eos and candidates.log_probs[row][0] > IMPOSSIBLE:
                ended.append(self._end(self._extend(candidates, row, 0), FinishReason.EOS))
            else:
                ended.append(self._end(node, FinishReason.LENGTH))
        return BeamSearch(self.options, self.special_ids, (), (), (), tuple(ended), self.length, True)

    def _end(self, node: Node | None, reason: FinishReason) -> Hypothesis:
        path = node.path() if node is not None else []
        log_prob = node.log_prob if node is not None else 0.0
        return hypothesis_of(
            [step.token_id for step in path],
            [step.token_log_prob for step in path],
            log_prob,
            reason,
            self.options,
            stack_attention(path),
        )


def num_enough(options: DecodingOptions) -> int:
    """How many hypotheses end before a search with a beam is over."""
    # Options travel in single precision: 1.1 times 10 is 11 hypotheses, not 11.0000002 rounded up.
    patient = math.ceil(options.patience * options.beam_size - 1e-5)
    return max(patient, options.num_hypotheses)


def hypothesis_of(
    tokens: Sequence[int],
    token_log_probs: Sequence[float],
    log_prob: float,
    reason: FinishReason,
    options: DecodingOptions,
    attention: Floats | None = None,
) -> Hypothesis:
    """What has ended, scored.

    Args:
        tokens, token_log_probs: [summands] EOS last, where it ended there.
        log_prob: their sum.
    """
    return Hypothesis(
        token_ids=tuple(tokens[:-1] if reason is FinishReason.EOS else tokens),
        token_log_probs=tuple(token_log_probs),
        log_prob=log_prob,
        score=log_prob / length_penalty(len(tokens), options.length_penalty),
        finish_reason=reason,
        attention=attention,
    )


def stack_attention(path: list[Node]) -> Floats | None:
    """[number of summands, source length], where the search kept attention."""
    rows = [node.attention for node in path if node.attention is not None]
    return np.stack(rows) if rows else None
