"""Requests that are decoded together, one step at a time: the algebra of continuous batching.

The server's engine, training's validation and export's verification all decode through `RunningBatch`. It has no
queues or threads; the caller passes the clock.

Shapes: R rows (live hypotheses of all requests), N bans (runtime/stepper.py).
"""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.beam_search import BeamSearch, Ending
from attendant.runtime.decoding.hypothesis import Hypothesis, Progress, RunningRequest, TextOf
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.decoding.trace import Trace
from attendant.runtime.stepper import NO_ID, DecoderState, Ids, StepOutput, Stepper, Taken, attention_cells, same_ids


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A source (ids as the encoder takes them, including EOS if the model expects it) and its decoding options.

    Attributes:
        streams: each step reports the tokens of the answer that have become certain.
    """

    key: int
    source_ids: Sequence[int]
    options: DecodingOptions
    streams: bool = False


@dataclass(frozen=True, slots=True)
class StepReport:
    """The results of one step.

    Attributes:
        finished: the requests that ended, with their hypotheses; they have left the batch.
        progress: new certain tokens of streaming requests that continue.
        num_rows: rows that were stepped.
        useful_cells, computed_cells: attention cells (row x source position) of valid positions, and all that were
            computed; the rest is padding.
        seconds: phase -> duration; phases are step (the graph), search and select.
        traces: by key, of finished requests that are traced.
    """

    finished: list[Ending]
    progress: list[tuple[int, Progress]]
    num_rows: int
    useful_cells: int
    computed_cells: int
    seconds: dict[str, float] = field(default_factory=dict)
    traces: Mapping[int, Trace] = field(default_factory=dict)


class RunningBatch:
    """Requests in flight. Requests join and leave between any two steps.

    Requests of one beam size are advanced together; all share each step of the model.
    """

    def __init__(
        self,
        stepper: Stepper,
        special_ids: SpecialIds,
        clock: Callable[[], float] = time.perf_counter,
        text_of: TextOf | None = None,
    ) -> None:
        """Starts without requests. Without `text_of`, hypotheses are distinct by their tokens alone."""
        self._stepper = stepper
        self._text_of = text_of
        self._special_ids = special_ids
        self._clock = clock
        # By beam size; empty without requests.
        self._searches: dict[int, BeamSearch] = {}
        self._state: DecoderState | None = None
        self._previous_ids: Ids = np.empty(0, np.int64)
        # The array that a lone search had as its `rows` when they were in order: as long as it is the same array,
        # nothing needs to be selected.
        self._in_order: Ids = self._previous_ids
        # `attention_cells` of the state; None if not computed yet.
        self._cells: tuple[int, int] | None = None

    @property
    def num_rows(self) -> int:
        return len(self._previous_ids)

    @property
    def keys(self) -> list[int]:
        return [key for search in self._searches.values() for key in search.keys]

    def join(self, requests: Sequence[BatchRequest]) -> None:
        """Encodes new requests and adds them after the present rows."""
        if not requests:
            return
        sources = [request.source_ids for request in requests]
        masked = [request.options.masked_source_positions for request in requests]
        newcomers = self._stepper.encode(sources, masked) if any(masked) else self._stepper.encode(sources)
        rows: dict[int, list[int]] = {}
        for row, request in enumerate(requests, self.num_rows):
            rows.setdefault(request.options.beam_size, []).append(row)
        for beam_size, of_size in rows.items():
            if beam_size not in self._searches:
                self._searches[beam_size] = BeamSearch(beam_size, self._special_ids, self._text_of)
            search = self._searches[beam_size]
            joining = [requests[row - self.num_rows] for row in of_size]
            search.join(
                [RunningRequest(r.key, r.options, len(r.source_ids), search.step, r.streams) for r in joining], of_size
            )
        if len(self._searches) == 1:
            (search,) = self._searches.values()
            self._in_order = search.rows
        first = np.full(len(requests), self._special_ids.start, np.int64)
        state = newcomers if self._state is None else self._stepper.concat([Taken(self._state), newcomers])
        self._continue_with(state, np.concatenate([self._previous_ids, first]))

    def step(self) -> StepReport:
        """Steps every row once and advances every search."""
        assert self._state is not None, "a step needs at least one request"
        began = self._clock()
        num_rows = self.num_rows
        if self._cells is None:
            self._cells = attention_cells(self._state)
        useful, computed = self._cells
        searches = list(self._searches.values())
        output, state = self._stepper.step(
            Taken(self._state),
            self._previous_ids,
            num_candidates=max([search.num_candidates for search in searches]),
            forced_ids=self._merged([search.forced_ids() for search in searches]),
            banned_ids=self._merged([search.banned_ids() for search in searches]),
            attention=any(search.attends for search in searches),
        )
        stepped = self._clock()
        finished: list[Ending] = []
        for search in searches:
            # A lone search has all rows, in order.
            finished += search.advance(output if len(searches) == 1 else _of_rows(output, search.rows))
        progress = [certain for search in searches for certain in search.progress()]
        traces: dict[int, Trace] = {}
        if finished:
            for search in searches:
                traces |= search.take_traces()
            self._drop_empty_searches()
        searched = self._clock()
        self._select(state)
        selected = self._clock()
        seconds = {"step": stepped - began, "search": searched - stepped, "select": selected - searched}
        return StepReport(finished, progress, num_rows, useful, computed, seconds, traces)

    def remove(self, keys: Set[int]) -> int:
        """Drops requests and their rows at once; returns the number of rows dropped."""
        if self._state is None or keys.isdisjoint(self.keys):
            return 0
        num_rows = self.num_rows
        for search in self._searches.values():
            search.remove(keys)
        self._drop_empty_searches()
        rows = [search.rows for search in self._searches.values()]
        previous_ids = self._previous_ids[np.concatenate([*rows, np.empty(0, np.int64)])]
        self._select(self._state, previous_ids)
        return num_rows - self.num_rows

    def _drop_empty_searches(self) -> None:
        self._searches = {size: search for size, search in self._searches.items() if len(search.rows)}

    def _select(self, state: DecoderState, previous_ids: Ids | None = None) -> None:
        """Continues with the rows of a state that the searches name; by default, they are fed the searches' choices."""
        searches = list(self._searches.values())
        if len(searches) == 1:
            rows, chosen = searches[0].rows, searches[0].previous_ids
        else:
            none = np.empty(0, np.int64)
            rows = np.concatenate([*(search.rows for search in searches), none])
            chosen = np.concatenate([*(search.previous_ids for search in searches), none])
        previous_ids = chosen if previous_ids is None else previous_ids
        if rows is self._in_order and len(rows) == state.num_rows:
            self._continue_with(state, previous_ids)
            return
        first_row = 0
        for search in searches:
            first_row = search.number_rows(first_row)
        if len(searches) == 1:
            self._in_order = searches[0].rows
        self._continue_with(self._stepper.select(Taken(state), rows) if len(rows) else None, previous_ids)

    def _continue_with(self, state: DecoderState | None, previous_ids: Ids) -> None:
        if state is None or self._state is None or not _has_same_cells(self._state, state):
            self._cells = None
        self._state, self._previous_ids = state, previous_ids

    def _merged(self, of_searches: Sequence[Ids | None]) -> Ids | None:
        """Returns the ids of all searches for all rows, [R] or [R, N], padded with -1; None if no search has any."""
        if len(of_searches) == 1 or all(ids is None for ids in of_searches):
            return of_searches[0]
        widths = [ids.shape[1] for ids in of_searches if ids is not None and ids.ndim > 1]
        merged = np.full((self.num_rows, max(widths)) if widths else self.num_rows, NO_ID, np.int64)
        for search, ids in zip(self._searches.values(), of_searches, strict=True):
            if ids is not None:
                part = merged if ids.ndim == 1 else merged[:, : ids.shape[1]]
                part[search.rows] = ids
        return merged


def _of_rows(output: StepOutput, rows: Ids) -> StepOutput:
    attention = None if output.attention is None else output.attention[rows]
    return StepOutput(
        output.candidate_ids[rows], output.candidate_log_probs[rows], output.forced_log_probs[rows], attention
    )


def _has_same_cells(before: DecoderState, after: DecoderState) -> bool:
    """Returns whether rows and sources are the same, as when a beam only reorders its own rows."""
    return after.source_lengths is before.source_lengths and same_ids(after.row_sources, before.row_sources)


def decode_all(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions | Sequence[DecodingOptions],
    special_ids: SpecialIds,
    *,
    max_rows: int = 256,
    progress: Callable[[int], None] | None = None,
    text_of: TextOf | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """Decodes a whole list and returns the hypotheses of every source, in the sources' order.

    Args:
        sources: ids as the encoder takes them.
        options: for all sources, or one per source.
        max_rows: rows stepped together at most.
        progress: called with the number of sources that have just finished.
        text_of: decodes hypotheses, which are distinct by their text; if None, by their tokens.
    """
    each = [options] * len(sources) if isinstance(options, DecodingOptions) else options
    # Longest first: neighbours have similar lengths, so there is little padding, and the last ones are short.
    waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batch = RunningBatch(stepper, special_ids, text_of=text_of)
    results: list[tuple[Hypothesis, ...]] = [()] * len(sources)
    reserved = 0
    while waiting or batch.num_rows:
        # Refill in groups: each join runs the encoder and copies the source tensors.
        if waiting and reserved <= max_rows * 3 // 4:
            newcomers = []
            while waiting and (not reserved or reserved + each[waiting[-1]].max_rows <= max_rows):
                index = waiting.pop()
                reserved += each[index].max_rows
                newcomers.append(BatchRequest(index, sources[index], each[index]))
            batch.join(newcomers)
        report = batch.step()
        for index, hypotheses in report.finished:
            results[index] = hypotheses
            reserved -= each[index].max_rows
        if progress is not None and report.finished:
            progress(len(report.finished))
    return results


def score_all(
    stepper: Stepper,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    special_ids: SpecialIds,
    *,
    include_eos: bool = True,
    max_rows: int = 256,
) -> list[Hypothesis]:
    """Returns log P(target | source) of every (source ids, target ids), each as the hypothesis of the target."""
    options = [scoring_options(target, special_ids.eos, include_eos=include_eos) for _, target in pairs]
    results = decode_all(stepper, [source for source, _ in pairs], options, special_ids, max_rows=max_rows)
    return [hypotheses[0] for hypotheses in results]
