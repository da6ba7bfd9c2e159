"""Beam search for many requests at once, as arrays. With a beam of 1 it is greedy search; scoring, prefixes and
sampling are the same search over other candidates (candidates.py).

Each step pools the candidates of a request's live hypotheses, ordered by the log-probability of the whole hypothesis
(ties: the lower row, then the row's own order). Of the pool's first k, those that are EOS end a hypothesis; the first k
others live on. An ended hypothesis therefore never costs a live one its place, and k + 1 candidates per row are enough.
With k = 1 a hypothesis ends where its most probable symbol is EOS.

The search is over when no live hypothesis can enter the n best any more (Huang et al. 2017): a hypothesis only loses
log-probability, so its score can't exceed the one that it would have at its maximum length without losing any. With
`patience` that many hypotheses end it instead. At the length limit each live hypothesis ends: with EOS where that is
its next symbol, else cut.

Shapes: B beams (a request has one, or several after its prefix), k beam size, R live hypotheses (beam by beam, at most
k each), K candidates of each.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import compress
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.candidates import IMPOSSIBLE, Candidates, repeated_ngram_ends
from attendant.runtime.decoding.history import History
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.limits import Limits
from attendant.runtime.decoding.nbest import Beam, RunningRequest, opened_beams
from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES, DecodingOptions, length_penalty
from attendant.runtime.stepper import NO_ID, Floats, Ids, StepOutput

Key = TypeVar("Key")
Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Entrant(Generic[Key]):
    """A request that joins: its row in the batch, and its source's valid positions."""

    key: Key
    options: DecodingOptions
    source_length: int
    row: int


class Ending(NamedTuple, Generic[Key]):
    """A request that has ended, with its hypotheses, best first."""

    key: Key
    hypotheses: tuple[Hypothesis, ...]


class BeamSearch(Generic[Key]):
    """The requests of one beam size, and their live hypotheses.

    The model's weights evict our arrays from the caches between two steps, so a step costs what its number of numpy
    calls is, not their size: hence few of them where nobody ends and nobody has special options.

    Attributes:
        rows: [R] where each row stands in the batch: after `advance`, what it goes on from. Whoever reorders the batch
            sets it.
        previous_ids: [R] what each is fed next, after `advance`.
    """

    def __init__(self, beam_size: int, special_ids: SpecialIds) -> None:
        self.rows: Ids = np.empty(0, np.int64)
        self.previous_ids: Ids = np.empty(0, np.int64)
        self._beam_size = beam_size
        self._special_ids = special_ids
        self._beams: list[Beam[Key]] = []
        self._limits = Limits(special_ids.eos, special_ids.unk)
        self._history = History()
        self._step = 0
        # [R] log-probabilities of the hypotheses, less their penalties, with the other sign: the way they are sorted.
        self._negated: Scores = np.empty(0, np.float64)
        # [B] live hypotheses of each; the score that a newcomer to its n best must exceed; and what a live one's
        # log-probability is divided by at its maximum length.
        self._counts: Ids = np.empty(0, np.int64)
        self._to_exceed: Scores = np.empty(0, np.float64)
        self._divisors: Scores = np.empty(0, np.float64)
        # Whether anybody's candidates are changed, attention is kept, n-grams are banned, or a beam's n best are full.
        self._changes = self._attends = self._bans_ngrams = self._closes = False

    @property
    def keys(self) -> list[Key]:
        """Of the requests, in the order of joining."""
        return list(dict.fromkeys(beam.request.key for beam in self._beams))

    @property
    def num_steps_kept(self) -> int:
        """Steps that are remembered: as many as the request that joined first has taken."""
        return self._history.num_steps

    @property
    def attends(self) -> bool:
        """Whether the next step's attention weights are needed."""
        return self._attends

    @property
    def num_candidates(self) -> int:
        """How many candidates of a row are looked at in the next step."""
        usual = self._num_ordered
        return max([usual, *map(self._num_wanted_by, self._beams)]) if self._changes else usual

    def join(self, entrants: Sequence[Entrant[Key]]) -> None:
        """Adds requests of this beam size."""
        for one in entrants:
            request = RunningRequest(one.key, one.options, one.source_length, self._step)
            self._beams += opened_beams(request, 1)
        options = [one.options for one in entrants]
        self._limits.join(options, self._step)
        divisors = [length_penalty(one.max_length + 1, one.length_penalty) for one in options]
        num = len(entrants)
        self.rows = np.concatenate([self.rows, np.array([one.row for one in entrants], np.int64)])
        self._negated = np.concatenate([self._negated, np.zeros(num)])
        self._counts = np.concatenate([self._counts, np.ones(num, np.int64)])
        self._to_exceed = np.concatenate([self._to_exceed, np.full(num, -math.inf)])
        self._divisors = np.concatenate([self._divisors, divisors])
        self._note_options()

    def remove(self, keys: Set[Key]) -> None:
        """Drops requests, and their rows; keys that are not here are ignored."""
        self._keep_rows(np.array([beam.request.key not in keys for beam in self._beams], bool))

    def forced_ids(self) -> Ids | None:
        """[R] what each row must take next, -1: whatever it likes; None: nobody is forced."""
        if not self._changes:
            return None
        forced = [beam.forced_id(self._step) for beam in self._beams]
        return None if max(forced) == NO_ID else np.array(forced, np.int64).repeat(self._counts)

    def banned_ids(self) -> Ids | None:
        """[R, N] what must not follow each row, -1: nothing; None: nobody is forbidden anything."""
        of_beams = self._limits.banned_ids(self._step)
        if of_beams is not None and self._changes:
            # A prefix is taken as it is given.
            of_beams[[beam.forced_id(self._step) != NO_ID for beam in self._beams]] = NO_ID
        banned = None if of_beams is None else of_beams.repeat(self._counts, axis=0)
        if not self._bans_ngrams:
            return banned
        ngrams = self._ngram_bans()
        width = max(map(len, ngrams))
        of_rows = np.full((len(ngrams), width), NO_ID, np.int64)
        for row, ids in enumerate(ngrams):
            of_rows[row, : len(ids)] = ids
        return of_rows if banned is None else np.concatenate([banned, of_rows], axis=1)

    def advance(self, output: StepOutput) -> list[Ending[Key]]:
        """Takes a step's output for these rows [R, ...]; returns the requests that end with it, who leave."""
        self._history.begin_step(output.attention if self._attends else None)
        num = self._num_ordered
        ids, log_probs = output.candidate_ids[:, :num], output.candidate_log_probs[:, :num]
        scores: Floats | Scores = log_probs
        origin: Ids | None = None
        if self._changes:
            changed, origin = self._changed(output)
            ids, log_probs, scores = changed.ids[:, :num], changed.log_probs[:, :num], changed.scores[:, :num]
        finished: list[Ending[Key]] = []
        stay = None
        if (reached := self._limits.reached(self._step)) is not None:
            finished = self._cut(reached, ids, log_probs, scores, origin)
            stay = ~reached
        finished += self._extend(ids, log_probs, scores, stay, origin)
        return finished + self._end_scored() if self._changes else finished

    @property
    def _num_ordered(self) -> int:
        """Candidates of a row that the search puts in order."""
        return self._beam_size + 1 if self._beam_size > 1 else 1

    def _num_wanted_by(self, beam: Beam[Key]) -> int:
        """Candidates of a row that this beam's options look at in the next step."""
        options, length = beam.request.options, self._step - beam.request.begin
        num = self._num_ordered
        if options.alternatives and length == len(options.target_prefix):
            num = max(num, options.num_hypotheses)
        if options.sampling is not None:
            num = options.sampling.top_k or MAX_SAMPLED_CANDIDATES
        # Penalized symbols, of which there are no more than tokens, may all have stood before those that come first.
        return num + length if options.repetition_penalty != 1.0 else num

    def _ngram_bans(self) -> list[list[int]]:
        """For each row, the symbols that would repeat an n-gram; at least one row has the option."""
        bans: list[list[int]] = []
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            size = beam.request.options.no_repeat_ngram_size
            for row in range(len(bans), len(bans) + count):
                looks = size and beam.forced_id(self._step) == NO_ID
                bans.append(repeated_ngram_ends(self._tokens(beam, row), size) if looks else [])
        return bans

    def _tokens(self, beam: Beam[Key], row: int) -> list[int]:
        return self._history.path(self._step, row, self._step - beam.request.begin).tokens

    def _changed(self, output: StepOutput) -> tuple[Candidates, Ids | None]:
        """The candidates as the options of some make them; and the row that each came from, if any was repeated."""
        origin = self._branch(output)
        rows = np.arange(len(self.rows)) if origin is None else origin
        num = self.num_candidates
        changed = Candidates.of_rows(output.candidate_ids[:, :num], output.candidate_log_probs[:, :num], rows)
        first = 0
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            if beam.request.options.changes_candidates:
                for row in range(first, first + count):
                    self._change(changed, row, int(rows[row]), beam, output.forced_log_probs)
            first += count
        return changed, origin

    def _change(self, changed: Candidates, row: int, origin: int, beam: Beam[Key], forced: Floats) -> None:
        """Changes the candidates of one row, which came from the row `origin` of the step."""
        options, length = beam.request.options, self._step - beam.request.begin
        if length < len(options.target_prefix):
            changed.force(row, options.target_prefix[length], float(forced[origin]))
            return
        if options.repetition_penalty != 1.0:
            changed.penalize(row, self._tokens(beam, origin), options.repetition_penalty)
        if beam.random is not None and options.sampling is not None:
            changed.draw(row, options.sampling, beam.random)
        elif options.alternatives and length == len(options.target_prefix):
            changed.choose(row, beam.number)

    def _branch(self, output: StepOutput) -> Ids | None:
        """Splits requests of several beams, whose prefix has been taken, into them; each begins with the same row.

        Returns:
            [R'] the row that each of the rows came from; None: nobody was split.
        """
        beams: list[Beam[Key]] = []
        repeats: list[int] = []
        first = 0
        for beam, count in zip(self._beams, self._counts.tolist(), strict=True):
            request, opened = beam.request, [beam]
            options, length = request.options, self._step - request.begin
            if options.num_beams > 1 and length == len(options.target_prefix):
                num_beams = options.num_beams
                if options.alternatives:
                    # Symbols that there are not begin none.
                    possible = int((output.candidate_log_probs[first] > IMPOSSIBLE).sum())
                    num_beams = max(1, min(num_beams, possible))
                opened = opened_beams(request, num_beams)
                request.num_open = num_beams
            beams += opened
            repeats.append(len(opened))
            first += count
        if len(beams) == len(self._beams):
            self._beams = beams
            return None
        origin = np.arange(len(self.rows)).repeat(np.repeat(repeats, self._counts))
        places = np.arange(len(self._beams)).repeat(repeats)
        self._beams = beams
        self._limits.keep(places)
        self.rows, self._negated = self.rows[origin], self._negated[origin]
        self._keep_facts(places)
        return origin

    def _extend(
        self, ids: Ids, log_probs: Floats, scores: Floats | Scores, stay: Mask | None, origin: Ids | None
    ) -> list[Ending[Key]]:
        """Extends all hypotheses by their candidates [R, K]; those of beams that don't stay [B] come to nothing."""
        k, num_candidates = self._beam_size, ids.shape[1]
        chosen, negated = self._ordered(scores, stay)
        if stay is not None:
            self._keep(stay)
        tokens = ids.take(chosen, mode="clip")
        lives = going_on = None
        # One banned symbol makes a whole hypothesis impossible: sums of others don't come near either.
        if negated[:, :k].max(initial=-math.inf) < -IMPOSSIBLE and not (tokens[:, :k] == self._special_ids.eos).any():
            chosen, tokens, negated = chosen[:, :k], tokens[:, :k], negated[:, :k]
            if stay is not None or len(self._negated) != chosen.size:
                self._counts = np.full(len(chosen), k)
            if self._closes:
                going_on = self._going_on(-negated[:, 0])
        else:
            lives = self._end_some(tokens, negated, chosen, num_candidates, log_probs, origin)
            self._counts = lives.sum(axis=1)
            best = -negated[np.arange(len(lives)), lives.argmax(axis=1)]
            going_on = self._going_on(best) & (self._counts > 0)
        if going_on is not None and not going_on.all():
            lives = going_on[:, None] & (np.ones(chosen.shape, bool) if lives is None else lives)
            chosen, tokens, negated = chosen[lives], tokens[lives], negated[lives]
        elif lives is not None:
            chosen, tokens, negated = chosen[lives], tokens[lives], negated[lives]
        else:
            chosen, tokens, negated = chosen.ravel(), tokens.ravel(), negated.ravel()
        parents = chosen // num_candidates
        if k > 1 or len(parents) != len(self.rows):
            self.rows = self.rows[parents]
        self.previous_ids, self._negated = tokens, negated
        self._history.end_step(tokens, log_probs.take(chosen), parents if origin is None else origin[parents])
        self._step += 1
        if going_on is None or going_on.all():
            return []
        finished = self._ended([beam for beam, goes in zip(self._beams, going_on.tolist(), strict=True) if not goes])
        self._keep(going_on)
        return finished

    def _ordered(self, scores: Floats | Scores, stay: Mask | None) -> tuple[Ids, Scores]:
        """The first candidates of each beam that stays, in the search's order.

        Args:
            scores: [R, K].

        Returns:
            [B, up to 2 k] places in the flattened candidates, and the hypotheses' log-probabilities with the other
            sign. A row has EOS once at most: among the first 2 k are all that live on.
        """
        k, num_beams, num_candidates = self._beam_size, len(self._counts), scores.shape[1]
        pool = self._negated[:, None] - scores
        if k == 1:
            first = np.arange(num_beams)[:, None]
            return (first, pool) if stay is None else (first[stay], pool[stay])
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
        return order + first, pool.take(order + first_in_pool)

    def _going_on(self, best: Scores) -> Mask:
        """[B] which beams have a live hypothesis that can still enter the n best, given their best ones' sums [B]."""
        going_on: Mask = best / self._divisors > self._to_exceed
        return going_on

    def _end_some(
        self, tokens: Ids, negated: Scores, chosen: Ids, num_candidates: int, log_probs: Floats, origin: Ids | None
    ) -> Mask:
        """Ends those whose next symbol is EOS; returns which candidates live on.

        Args:
            tokens, negated, chosen: [B, up to 2 k] the first candidates; chosen are their places in the flattened
                candidates of all rows.
        """
        possible, is_eos = negated < -IMPOSSIBLE, tokens == self._special_ids.eos
        lives: Mask = possible & ~is_eos
        lives &= lives.cumsum(axis=1) <= self._beam_size
        ends = possible & is_eos
        ends[:, self._beam_size :] = False
        places = chosen[ends]
        found = ends.nonzero()[0], places // num_candidates, -negated[ends], log_probs.take(places)
        for number, row, total, end in zip(*(values.tolist() for values in found), strict=True):
            self._end(number, row if origin is None else int(origin[row]), total, end)
        for number in np.flatnonzero(~possible[:, 0]).tolist():
            # Nothing may follow: what there is of the best hypothesis is the answer, unless others have ended.
            if not self._beams[number].ended:
                row = int(chosen[number, 0]) // num_candidates
                self._end(number, row if origin is None else int(origin[row]), -float(self._negated[row]), None)
        return lives

    def _cut(
        self, reached: Mask, ids: Ids, log_probs: Floats, scores: Floats | Scores, origin: Ids | None
    ) -> list[Ending[Key]]:
        """Ends what lives of these beams [B], with EOS where that is the next symbol [R, K]."""
        rows = reached.repeat(self._counts).nonzero()[0]
        numbers = reached.nonzero()[0]
        by_eos = (ids[rows, 0] == self._special_ids.eos) & (scores[rows, 0] > IMPOSSIBLE)
        so_far = -self._negated[rows]
        total = np.where(by_eos, so_far + scores[rows, 0], so_far)
        places = rows if origin is None else origin[rows]
        found = numbers.repeat(self._counts[numbers]), places, total, log_probs[rows, 0], by_eos
        for number, row, log_prob, end, is_eos in zip(*(values.tolist() for values in found), strict=True):
            self._end(number, row, log_prob, end if is_eos else None)
        return self._ended([self._beams[number] for number in numbers.tolist()])

    def _end_scored(self) -> list[Ending[Key]]:
        """Ends the requests that ask for nothing behind their prefix, where the step before took the last of it."""
        stay = np.ones(len(self._beams), bool)
        for number, beam in enumerate(self._beams):
            options = beam.request.options
            if options.scores_prefix and self._step - beam.request.begin == len(options.target_prefix):
                row = int(self._counts[:number].sum())
                self._end(number, row, -float(self._negated[row]), None)
                stay[number] = False
        if stay.all():
            return []
        finished = self._ended([beam for beam, stays in zip(self._beams, stay.tolist(), strict=True) if not stays])
        self._keep_rows(stay)
        return finished

    def _end(self, number: int, row: int, log_prob: float, end_log_prob: float | None) -> None:
        """Ends the hypothesis of a beam that stood at `row` before this step; see `Beam.end`."""
        bound = self._beams[number].end(self._history, self._step, row, log_prob, end_log_prob)
        if bound > -math.inf:
            self._to_exceed[number], self._closes = bound, True

    def _ended(self, beams: Sequence[Beam[Key]]) -> list[Ending[Key]]:
        """Spells out what these beams have found; returns the requests of which none is left."""
        finished: list[Ending[Key]] = []
        for beam in beams:
            request = beam.request
            request.found += beam.best(self._history)
            request.num_open -= 1
            if not request.num_open:
                finished.append(Ending(request.key, request.ranked()))
        return finished

    def _keep_rows(self, stay: Mask) -> None:
        """Keeps these beams [B] and their hypotheses, between two steps."""
        rows = stay.repeat(self._counts)
        # Those who joined since the last step have not been fed a symbol of their own yet.
        self.previous_ids = self.previous_ids[rows[: len(self.previous_ids)]]
        self.rows, self._negated = self.rows[rows], self._negated[rows]
        self._history.keep_rows(rows)
        self._keep(stay)

    def _keep(self, stay: Mask) -> None:
        """Keeps what is known of these beams [B], and no step that only the others went back to."""
        self._beams = list(compress(self._beams, stay.tolist()))
        self._limits.keep(stay)
        self._keep_facts(stay)
        self._history.forget(min(self._limits.first_begin, self._step))
        self._note_options()

    def _keep_facts(self, beams: Ids | Mask) -> None:
        """Keeps the arrays' entries of these beams, by a mask or by place."""
        self._counts, self._to_exceed = self._counts[beams], self._to_exceed[beams]
        self._divisors = self._divisors[beams]

    def _note_options(self) -> None:
        """Looks up what anybody's options need, so that a step need not."""
        # Requests of the same options share them as one object, mostly.
        options = {id(beam.request.options): beam.request.options for beam in self._beams}.values()
        self._changes = any(one.changes_candidates for one in options)
        self._attends = any(one.needs_attention for one in options)
        self._bans_ngrams = any(one.no_repeat_ngram_size > 0 for one in options)
        self._closes = bool((self._to_exceed > -math.inf).any())
