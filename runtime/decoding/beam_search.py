"""Beam search for many requests at once, as arrays. With a beam of 1 it is greedy search; scoring, prefixes and
sampling are the same search over other candidates (hypothesis.py).

Each step pools the candidates of a request's live hypotheses, ordered by the log-probability of the whole hypothesis
(ties: the lower row, then the row's own order). Among the pool's first k, those that are EOS end a hypothesis; the
first k others live on. So an ended hypothesis never takes the place of a live one, and k + 1 candidates per row are
enough. With k = 1 a hypothesis ends when its most probable symbol is EOS.

The search ends when no live hypothesis can enter the n best any more (Huang et al. 2017): a hypothesis only loses
log-probability, so its score can't exceed the one that it would have at its maximum length without a further loss. With
`patience`, it ends after that number of ended hypotheses instead. At the length limit each live hypothesis ends: with
EOS if that is its next symbol, else cut. If bans leave no symbol to follow any live hypothesis, all of them are cut.

Hypotheses of a request are distinct by their text: of two segmentations of one text the better scored one stays, and
the search continues until it has enough texts. Draws are independent of each other, and may be equal.

Shapes: B beams (a request has one, or several after its prefix), k beam size, R live hypotheses (beam by beam, at most
k each), K candidates of each.
"""

import math
from collections.abc import Sequence, Set
from itertools import compress, groupby
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.hypothesis import (
    LEAST_POSSIBLE,
    Beam,
    Candidates,
    History,
    Hypothesis,
    Progress,
    RunningRequest,
    TextOf,
    best_first,
    change_candidates,
    considered,
    distinct,
    ngram_bans,
    num_candidates,
    opened_beams,
    progress_of,
)
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import Recorder, Trace
from attendant.runtime.stepper import NO_ID, Floats, Ids, StepOutput

Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]


class Ending(NamedTuple):
    """A request that has ended, with its hypotheses, best first."""

    key: int
    hypotheses: tuple[Hypothesis, ...]


class _Step(NamedTuple):
    """The candidates of a step, as the search orders them.

    Attributes:
        ids, log_probs: [R, K].
        scores: [R, K] the order of the candidates: the log-probabilities, unless a request's options change them.
        attention: [R, S]; None if no request needs it.
    """

    ids: Ids
    log_probs: Floats
    scores: Floats | Scores
    attention: Floats | None


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


class BeamSearch:
    """The requests of one beam size, and their live hypotheses.

    The model's weights evict our arrays from the caches between two steps. So the time of a step grows with its number
    of numpy calls, for arrays of any size: there are few calls if no request ends and none has special options.

    Attributes:
        rows: [R] each row's place in the batch; after `advance`, the place of the row that it continues.
        previous_ids: [R] the symbol that each row is fed next, after `advance`.
    """

    def __init__(self, beam_size: int, special_ids: SpecialIds, text_of: TextOf | None = None) -> None:
        """Starts without requests. Without `text_of`, hypotheses are distinct by their tokens alone."""
        self.rows: Ids = np.empty(0, np.int64)
        self.previous_ids: Ids = np.empty(0, np.int64)
        self._beam_size = beam_size
        self._special_ids = special_ids
        self._text_of = text_of
        self._beams: list[Beam] = []
        self._limits = Limits(special_ids.eos, special_ids.unk)
        self._history = History()
        # [R] negated log-probabilities of the hypotheses, less their penalties: ready to be sorted.
        self._negated: Scores = np.empty(0, np.float64)
        # [B] live hypotheses of each.
        self._counts: Ids = np.empty(0, np.int64)
        # By key, of requests that have ended and were not taken yet.
        self._traces: dict[int, Trace] = {}
        # Numbers of beams that can't take the fast path, need attention, ban n-grams, or stream.
        self._num_special = self._num_attending = self._num_banning = self._num_streaming = 0
        self._num_tracing = 0

    @property
    def keys(self) -> list[int]:
        """The keys of the requests, in the order of joining."""
        return list(dict.fromkeys(beam.request.key for beam in self._beams))

    @property
    def step(self) -> int:
        return self._history.step

    @property
    def attends(self) -> bool:
        """The next step's attention weights are needed."""
        return self._num_attending > 0

    @property
    def num_candidates(self) -> int:
        """Candidates per row that the next step needs."""
        usual = self._num_ordered
        if not self._num_special:
            return usual
        rows = zip(self._beams, self._rows_of_each(), strict=True)
        return max(usual, *(num_candidates(beam, own, self._history, usual) for beam, own in rows))

    def join(self, requests: Sequence[RunningRequest], rows: Sequence[int]) -> None:
        """Adds requests of this beam size that begin with the next step, and have these rows in the batch."""
        num, eos = len(requests), self._special_ids.eos
        recorders = [Recorder(request.options, eos) if request.options.trace else None for request in requests]
        beams = [
            opened_beams(request, 1, self._text_of, recorder)[0]
            for request, recorder in zip(requests, recorders, strict=True)
        ]
        self._history.join(num, min(self._limits.first_begin, self.step))
        self._limits.join([request.options for request in requests], self.step)
        self._beams += beams
        self._count(beams, 1)
        self.rows = np.concatenate([self.rows, np.array(rows, np.int64)])
        self._negated = np.concatenate([self._negated, np.zeros(num)])
        self._counts = np.concatenate([self._counts, np.ones(num, np.int64)])

    def remove(self, keys: Set[int]) -> None:
        """Drops requests and their rows; ignores unknown keys."""
        self._keep_rows(np.array([beam.request.key not in keys for beam in self._beams], bool))

    def number_rows(self, first_row: int) -> int:
        """Sets `rows` to consecutive places from `first_row`, after the batch was reordered; returns the next place."""
        self.rows = np.arange(first_row, first_row + len(self.rows))
        return first_row + len(self.rows)

    def forced_ids(self) -> Ids | None:
        """Returns the symbol that each row must take next [R], -1 for none; None if no row is forced."""
        if not self._num_special:
            return None
        forced = [beam.forced_id(self.step) for beam in self._beams]
        return None if max(forced) == NO_ID else np.array(forced, np.int64).repeat(self._counts)

    def banned_ids(self) -> Ids | None:
        """Returns the symbols that must not follow each row [R, N], padded with -1; None if there are none."""
        of_beams = self._limits.banned_ids(self.step)
        if of_beams is not None and self._num_special:
            # Bans don't apply to a prefix.
            of_beams[[beam.forced_id(self.step) != NO_ID for beam in self._beams]] = NO_ID
        banned = of_beams if of_beams is None or self._beam_size == 1 else of_beams.repeat(self._counts, axis=0)
        if banned is not None and self._num_special:
            completing = zip(self._beams, self._rows_of_each(), strict=True)
            banned[[row for beam, own in completing for row in own if beam.choice(self._history, row)]] = NO_ID
        if not self._num_banning:
            return banned
        ngrams = ngram_bans(self._beams, self._counts.tolist(), self._history)
        width = max(map(len, ngrams))
        of_rows = np.full((len(ngrams), width), NO_ID, np.int64)
        for row, ids in enumerate(ngrams):
            of_rows[row, : len(ids)] = ids
        return of_rows if banned is None else np.concatenate([banned, of_rows], axis=1)

    def advance(self, output: StepOutput) -> list[Ending]:
        """Takes a step's output for these rows [R, ...]; drops and returns the requests that end with it."""
        if self._num_banning and (stuck := output.candidate_ids[:, 0] == self._special_ids.pad).any():
            # PAD comes first only where every symbol is banned: all are equally improbable then, and it has the
            # lowest id.
            nothing = np.where(stuck[:, None], -math.inf, output.candidate_log_probs).astype(np.float32)
            output = output._replace(candidate_log_probs=nothing)
        if self._num_special:
            step = self._changed(output)
        else:
            ids, log_probs, num = output.candidate_ids, output.candidate_log_probs, self._num_ordered
            if ids.shape[1] > num:
                ids, log_probs = ids[:, :num], log_probs[:, :num]
            step = _Step(ids, log_probs, log_probs, output.attention)
        reached = self._limits.reached(self.step)
        finished = (self._extend_greedily if self._beam_size == 1 else self._extend)(step, reached)
        return finished + self._end_scored() if self._num_special else finished

    def progress(self) -> list[tuple[int, Progress]]:
        """Returns the tokens that became certain in the last step, for streaming requests that have not ended."""
        reports: list[tuple[int, Progress]] = []
        if not self._num_streaming:
            return reports
        sums, beams = (-self._negated).tolist(), zip(self._beams, self._rows_of_each(), strict=True)
        # The beams of a request are neighbours.
        for _, of_request in groupby(beams, key=lambda pair: id(pair[0].request)):
            own, rows = zip(*of_request, strict=True)
            if own[0].request.streams and (progress := progress_of(own, rows, sums, self._history)) is not None:
                reports.append((own[0].request.key, progress))
        return reports

    @property
    def _num_ordered(self) -> int:
        """Candidates per row that the search puts in order."""
        return self._beam_size + 1 if self._beam_size > 1 else 1

    def take_traces(self) -> dict[int, Trace]:
        """Removes and returns the traces of requests that have ended, by key."""
        traces, self._traces = self._traces, {}
        return traces

    def _changed(self, output: StepOutput) -> _Step:
        """Returns the step with the changes that requests' options make to its candidates."""
        banned = self.banned_ids() if self._num_tracing else None
        origin = self._branch(output)
        rows = np.arange(len(self.rows)) if origin is None else origin
        num = self.num_candidates
        changed = Candidates.of_rows(output.candidate_ids[:, :num], output.candidate_log_probs[:, :num], rows)
        forced = output.forced_log_probs[rows].tolist()
        first = 0
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            if beam.request.options.changes_candidates:
                for row in range(first, first + count):
                    change_candidates(changed, row, beam, self._history, forced[row])
            first += count
        attention = output.attention if output.attention is None or origin is None else output.attention[origin]
        if self._num_tracing:
            self._begin_traces(changed, output, rows, None if banned is None else banned[rows], attention)
        num = self._num_ordered
        return _Step(changed.ids[:, :num], changed.log_probs[:, :num], changed.scores[:, :num], attention)

    def _begin_traces(
        self, changed: Candidates, output: StepOutput, origin: Ids, banned: Ids | None, attention: Floats | None
    ) -> None:
        """Records the live hypotheses of traced requests, and their candidates.

        Args:
            changed, banned, attention: [R, ...] of the rows, with the step's changes.
            origin: [R] the row of the step's output that each of them came from.
        """
        first = 0
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            if beam.recorder is not None:
                rows = range(first, first + count)
                totals = (0.0 - self._negated[first : first + count]).tolist()
                candidates = [
                    considered(
                        changed,
                        row,
                        output.candidate_ids[origin[row]],
                        output.candidate_log_probs[origin[row]],
                        total,
                        beam,
                        self._history,
                    )
                    for row, total in zip(rows, totals, strict=True)
                ]
                bans = [() if banned is None else tuple(sorted({*banned[row].tolist()} - {NO_ID})) for row in rows]
                weights = None
                if attention is not None:
                    weights = attention[first : first + count, : beam.request.source_length].copy()
                beam.recorder.begin(first, totals, candidates, bans, weights)
            first += count

    def _extend_traces(self, parents: Ids, tokens: Ids, negated: Scores, lives: Mask | None) -> None:
        """Records which candidates of traced requests live on.

        Args:
            parents, tokens, negated: [B, L] of the first candidates of each beam.
            lives: [B, L]; None if all live.
        """
        for number, beam in enumerate(self._beams):
            if beam.recorder is not None:
                own = slice(None) if lives is None else lives[number]
                totals = (-negated[number, own]).tolist()
                best = beam.best_possible(totals[0]) if totals else math.nan
                beam.recorder.extend(parents[number, own].tolist(), tokens[number, own].tolist(), beam.bound, best)

    def _branch(self, output: StepOutput) -> Ids | None:
        """Splits requests of several beams, whose prefix has been taken, into them; each begins with the same row.

        Returns:
            [R] the row of the step that each of the rows came from; None if no request was split.
        """
        beams: list[Beam] = []
        repeats: list[int] = []
        first = 0
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            request, opened = beam.request, [beam]
            options = request.options
            if options.num_beams > 1 and self.step - request.begin == len(options.target_prefix):
                num_beams = options.num_beams
                if options.alternatives:
                    # Banned symbols begin no alternative.
                    possible = output.candidate_log_probs[first] > LEAST_POSSIBLE
                    if (choice := beam.choice(self._history, first)) is not None:
                        possible &= np.isin(output.candidate_ids[first], choice.ids)
                    num_beams = max(1, min(num_beams, int(possible.sum())))
                opened = opened_beams(request, num_beams, self._text_of, beam.recorder)
                request.num_open = num_beams
                self._count(opened[1:], 1)
            beams += opened
            repeats.append(len(opened))
            first += count
        if len(beams) == len(self._beams):
            self._beams = beams
            return None
        origin = np.arange(len(self.rows)).repeat(np.repeat(repeats, self._counts))
        self._beams = beams
        self._limits.keep(np.arange(len(repeats)).repeat(repeats))
        self._counts = self._counts.repeat(repeats)
        self._history.keep(origin)
        self.rows, self._negated = self.rows[origin], self._negated[origin]
        return origin

    def _extend_greedily(self, step: _Step, reached: Mask | None) -> list[Ending]:
        """Does the same as `_extend` for a beam of 1 with fewer calls: a single candidate needs no order."""
        tokens, log_probs = step.ids[:, 0], step.log_probs[:, 0]
        negated = self._negated - (log_probs if step.scores is step.log_probs else step.scores[:, 0])
        finished: list[Ending] = []
        going_on = None
        # Lists: searching an array takes several calls.
        is_impossible = max(negated.tolist(), default=-math.inf) > -LEAST_POSSIBLE
        if is_impossible or reached is not None or self._special_ids.eos in tokens.tolist():
            ends = (tokens == self._special_ids.eos) | (negated > -LEAST_POSSIBLE)
            if reached is not None:
                ends |= reached
            numbers = ends.nonzero()[0].tolist()
            for number in numbers:
                self._cut_row(number, number, step)
            finished = self._answers(numbers)
            stay = ~ends
            self._keep(stay)
            going_on = stay.nonzero()[0]
            tokens, negated, log_probs = tokens[going_on], negated[going_on], log_probs[going_on]
            self.rows = self.rows[going_on]
        if self._num_tracing:
            parents = np.arange(len(tokens)) if going_on is None else going_on
            self._extend_traces(parents[:, None], tokens[:, None], negated[:, None], None)
        self._history.extend(going_on, tokens, log_probs, step.attention if self._num_attending else None)
        # The stepper may write to its arrays again.
        self.previous_ids, self._negated = tokens.copy(), negated
        return finished

    def _extend(self, step: _Step, reached: Mask | None) -> list[Ending]:
        """Extends all hypotheses by their candidates, and ends those that end; `reached` [B] are at their limit."""
        k, num_candidates = self._beam_size, step.ids.shape[1]
        finished: list[Ending] = []
        stay = None
        if reached is not None:
            stay = ~reached
            finished = self._cut(reached.nonzero()[0].tolist(), step)
        chosen, negated = self._ordered(step.scores, stay)
        counts = self._counts
        if stay is not None:
            self._keep(stay)
        tokens = step.ids.take(chosen, mode="clip")
        lives = going_on = None
        # One banned symbol makes a whole hypothesis impossible: no other sum comes near. Each beam's last sum is its
        # greatest, and lists are searched with fewer calls than arrays.
        are_possible = max(negated[:, k - 1].tolist(), default=-math.inf) < -LEAST_POSSIBLE
        if are_possible and self._special_ids.eos not in tokens[:, :k].ravel().tolist():
            chosen, tokens, negated = chosen[:, :k], tokens[:, :k], negated[:, :k]
            if stay is not None or len(self._negated) != chosen.size:
                self._counts = np.full(len(chosen), k)
            going_on = self._going_on(negated[:, 0])
        else:
            lives = self._end_some(step, tokens, negated, chosen)
            if numbers := np.flatnonzero(~lives.any(axis=1)).tolist():
                rows = np.split(np.arange(len(self.rows)), counts.cumsum()[:-1])
                of_staying = rows if stay is None else list(compress(rows, stay.tolist()))
                for number in numbers:
                    # Bans leave no symbol to follow any of the beam's hypotheses.
                    for row in of_staying[number].tolist() if negated[number, 0] >= -LEAST_POSSIBLE else ():
                        self._beams[number].end(self._history, row, -self._negated.item(row), None, None)
            self._counts = lives.sum(axis=1)
            can = self._going_on(negated[np.arange(len(lives)), lives.argmax(axis=1)])
            going_on = self._counts > 0 if can is None else can & (self._counts > 0)
        if self._num_tracing:
            self._extend_traces(chosen // num_candidates, tokens, negated, lives)
        if going_on is not None and not going_on.all():
            lives = going_on[:, None] & (np.ones(chosen.shape, bool) if lives is None else lives)
            finished += self._answers((~going_on).nonzero()[0].tolist())
            self._keep(going_on)
        if lives is None:
            chosen, tokens, negated = chosen.ravel(), tokens.ravel(), negated.ravel()
        else:
            chosen, tokens, negated = chosen[lives], tokens[lives], negated[lives]
        parents = chosen // num_candidates
        self.rows = self.rows[parents]
        attention = step.attention if self._num_attending else None
        self._history.extend(parents, tokens, step.log_probs.take(chosen), attention)
        self.previous_ids, self._negated = tokens, negated
        return finished

    def _ordered(self, scores: Floats | Scores, stay: Mask | None) -> tuple[Ids, Scores]:
        """Returns the first candidates of each beam that stays, in the search's order.

        Args:
            scores: [R, K].

        Returns:
            [B, up to 2 k] places in the flattened candidates, and the hypotheses' negated log-probabilities. A row has
            EOS at most once, so the first 2 k contain all that live on.
        """
        k, num_beams, num_candidates = self._beam_size, len(self._counts), scores.shape[1]
        pool = self._negated[:, None] - scores
        width = k * num_candidates
        first = first_in_pool = np.arange(0, num_beams * width, width)[:, None]
        if len(pool) < num_beams * k:
            # The hypotheses of each beam take the first of its k places.
            spread = np.full((num_beams * k, num_candidates), math.inf)
            spread[(np.arange(k) < self._counts[:, None]).ravel()] = pool
            pool, first = spread, ((self._counts.cumsum() - self._counts) * num_candidates)[:, None]
        # Stable: of equal ones the lower row first, then the row's own order.
        order = pool.reshape(num_beams, width).argsort(axis=1, kind="stable")[:, : 2 * k]
        if stay is not None:
            order, first, first_in_pool = order[stay], first[stay], first_in_pool[stay]
        places = order + first_in_pool
        return places if first is first_in_pool else order + first, pool.take(places)

    def _going_on(self, negated: Scores) -> Mask | None:
        """Returns which beams can still matter [B], by the negated sum of each best hypothesis; None if all can."""
        if all([beam.bound == -math.inf for beam in self._beams]):  # noqa: C419 - a list is faster
            return None
        bests = negated.tolist()
        going_on = [beam.best_possible(-best) > beam.bound for beam, best in zip(self._beams, bests, strict=True)]
        return np.array(going_on, bool)

    def _end_some(self, step: _Step, tokens: Ids, negated: Scores, chosen: Ids) -> Mask:
        """Ends hypotheses whose next symbol is EOS; returns which candidates live on.

        Args:
            tokens, negated, chosen: [B, up to 2 k] the first candidates; chosen are their places in the flattened
                candidates of all rows.
        """
        num_candidates = step.ids.shape[1]
        possible, is_eos = negated < -LEAST_POSSIBLE, tokens == self._special_ids.eos
        lives: Mask = possible & ~is_eos
        lives &= lives.cumsum(axis=1) <= self._beam_size
        ends = possible & is_eos
        ends[:, self._beam_size :] = False
        places = chosen[ends]
        ending = ends.nonzero()[0], places // num_candidates, -negated[ends], step.log_probs.take(places)
        for number, row, total, end in zip(*(values.tolist() for values in ending), strict=True):
            self._beams[number].end(self._history, row, total, end, step.attention)
        return lives

    def _cut(self, numbers: Sequence[int], step: _Step) -> list[Ending]:
        """Ends the live hypotheses of these beams, with EOS if that is their next symbol."""
        for number in numbers:
            for row in self._rows_of(number):
                self._cut_row(number, row, step)
        return self._answers(numbers)

    def _cut_row(self, number: int, row: int, step: _Step) -> None:
        """Ends one hypothesis of a beam, with EOS if that is its next symbol."""
        # Few hypotheses end: scalars cost less than arrays.
        beam, total, score = self._beams[number], -self._negated.item(row), step.scores[row, 0].item()
        if step.ids[row, 0] == self._special_ids.eos and score > LEAST_POSSIBLE:
            beam.end(self._history, row, total + score, step.log_probs[row, 0].item(), step.attention)
        else:
            beam.end(self._history, row, total, None, step.attention)

    def _rows_of_each(self) -> list[range]:
        ends = self._counts.cumsum().tolist()
        return list(map(range, [0, *ends[:-1]], ends))

    def _rows_of(self, number: int) -> range:
        first = int(self._counts[:number].sum())
        return range(first, first + int(self._counts[number]))

    def _end_scored(self) -> list[Ending]:
        """Ends the requests that only score their prefix, if the step before took the last symbol of it."""
        stay = np.ones(len(self._beams), bool)
        for number, beam in enumerate(self._beams):
            options = beam.request.options
            if options.scores_prefix and self.step - beam.request.begin == len(options.target_prefix):
                (row,) = self._rows_of(number)
                beam.end(self._history, row, -self._negated.item(row), None, None)
                stay[number] = False
        if stay.all():
            return []
        finished = self._answers((~stay).nonzero()[0].tolist())
        self._keep_rows(stay)
        return finished

    def _answers(self, numbers: Sequence[int]) -> list[Ending]:
        """Collects the best hypotheses of these beams; returns the requests that have no beam left."""
        finished: list[Ending] = []
        for number in numbers:
            beam = self._beams[number]
            request = beam.request
            request.best += beam.best()
            request.num_open -= 1
            if beam.recorder is not None:
                beam.recorder.finish(beam.bound)
                request.recorders[beam.number] = beam.recorder
            if not request.num_open:
                hypotheses = best_first(request.best)
                if request.options.alternatives:
                    hypotheses = distinct(hypotheses, self._text_of)
                if recorders := request.recorders:
                    self._traces[request.key] = tuple(recorders[n].searched(hypotheses) for n in sorted(recorders))
                finished.append(Ending(request.key, tuple(hypotheses)))
        return finished

    def _keep_rows(self, stay: Mask) -> None:
        """Keeps these beams [B] and their hypotheses, between two steps."""
        rows = stay.repeat(self._counts)
        # Requests that joined since the last step have no previous symbol yet.
        self.previous_ids = self.previous_ids[rows[: len(self.previous_ids)]]
        self.rows, self._negated = self.rows[rows], self._negated[rows]
        self._history.keep(rows)
        self._keep(stay)

    def _keep(self, stay: Mask) -> None:
        """Keeps the state of these beams [B]."""
        self._count([self._beams[number] for number in (~stay).nonzero()[0].tolist()], -1)
        self._beams = list(compress(self._beams, stay.tolist()))
        self._limits.keep(stay)
        self._counts = self._counts[: len(self._beams)] if self._beam_size == 1 else self._counts[stay]

    def _count(self, beams: Sequence[Beam], sign: int) -> None:
        """Counts the needs of beams that join (1) or leave (-1), so that no step has to search for them."""
        for beam in beams:
            options = beam.request.options
            self._num_special += sign * (options.changes_candidates or options.trace > 0)
            self._num_attending += sign * options.needs_attention
            self._num_banning += sign * (options.no_repeat_ngram_size > 0)
            self._num_streaming += sign * beam.request.streams
            self._num_tracing += sign * (beam.recorder is not None)
