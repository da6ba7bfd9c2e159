"""Requests that are decoded together, one step at a time: the algebra of continuous batching.

The server's engine, training's validation and export's verification all decode through this one class. It knows
nothing of queues, threads or clocks beyond the one it is given.
"""

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from runtime.decoding.hypothesis import Hypothesis
from runtime.decoding.search import Candidates, Search
from runtime.stepper import DecoderState, Ids, StepOutput, Stepper, attention_cells

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class BatchRequest(Generic[Key]):
    """A source (ids as the encoder takes them, EOS included where the model wants it) and its search."""

    key: Key
    source_ids: Sequence[int]
    search: Search


@dataclass(frozen=True, slots=True)
class StepReport(Generic[Key]):
    """What one step did.

    Attributes:
        finished: the requests that ended, with their hypotheses; they have left the batch.
        num_rows: rows that were stepped.
        useful_cells, computed_cells: attention cells (row x source position) that meant something, and that were
            computed: their ratio is the waste of padding.
        seconds: phase -> duration; phases are step (the graph), search and select.
    """

    finished: list[tuple[Key, tuple[Hypothesis, ...]]]
    num_rows: int
    useful_cells: int
    computed_cells: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Entry(Generic[Key]):
    key: Key
    search: Search
    source_length: int
    num_rows: int


class RunningBatch(Generic[Key]):
    """Requests in flight. Newcomers join, and the finished leave, between any two steps."""

    def __init__(self, stepper: Stepper, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stepper = stepper
        self._clock = clock
        self._entries: list[_Entry[Key]] = []
        self._state: DecoderState | None = None
        self._previous_ids: Ids = np.empty(0, np.int64)

    @property
    def num_rows(self) -> int:
        return len(self._previous_ids)

    @property
    def keys(self) -> list[Key]:
        return [entry.key for entry in self._entries]

    def join(self, requests: Sequence[BatchRequest[Key]]) -> None:
        """Encodes newcomers and adds them behind the rows that are there."""
        if not requests:
            return
        newcomers = self._stepper.encode([request.source_ids for request in requests])
        self._state = newcomers if self._state is None else self._stepper.concat([self._state, newcomers])
        self._entries += [_Entry(r.key, r.search, len(r.source_ids), 1) for r in requests]
        first = [previous for request in requests for previous in request.search.previous_ids]
        self._previous_ids = np.concatenate([self._previous_ids, np.array(first, np.int64)])

    def step(self) -> StepReport[Key]:
        """Steps every row once and advances every search."""
        assert self._state is not None, "a step needs at least one request"
        began = self._clock()
        num_rows = self.num_rows
        useful, computed = attention_cells(self._state)
        output, state = self._stepper.step(
            self._state,
            self._previous_ids,
            num_candidates=max(entry.search.num_candidates for entry in self._entries),
            forced_ids=self._forced_ids(),
            banned_ids=self._banned_ids(),
            attention=any(entry.search.attention for entry in self._entries),
        )
        stepped = self._clock()
        finished, rows, previous = self._advance(output)
        searched = self._clock()
        self._keep(state, rows, previous)
        selected = self._clock()
        seconds = {"step": stepped - began, "search": searched - stepped, "select": selected - searched}
        return StepReport(finished, num_rows, useful, computed, seconds)

    def remove(self, keys: Collection[Key]) -> int:
        """Drops requests, and their rows, at once; returns how many rows that were."""
        if self._state is None or not any(entry.key in keys for entry in self._entries):
            return 0
        kept: list[_Entry[Key]] = []
        rows: list[int] = []
        start = 0
        for entry in self._entries:
            if entry.key not in keys:
                kept.append(entry)
                rows += range(start, start + entry.num_rows)
            start += entry.num_rows
        self._entries = kept
        self._keep(self._state, rows, self._previous_ids[rows])
        return start - len(rows)

    def _advance(self, output: StepOutput) -> tuple[list[tuple[Key, tuple[Hypothesis, ...]]], list[int], list[int]]:
        # One conversion for the whole batch: walking numpy elements one by one costs more than the search.
        ids, log_probs = output.candidate_ids.tolist(), output.candidate_log_probs.tolist()
        forced = output.forced_log_probs.tolist()
        finished: list[tuple[Key, tuple[Hypothesis, ...]]] = []
        kept: list[_Entry[Key]] = []
        rows: list[int] = []
        previous: list[int] = []
        start = 0
        for entry in self._entries:
            end = start + entry.num_rows
            attention = None
            if entry.search.attention and output.attention is not None:
                # Copied: a view would keep the whole batch's attention alive for as long as the hypothesis.
                attention = output.attention[start:end, : entry.source_length].copy()
            candidates = Candidates(ids[start:end], log_probs[start:end], forced[start:end], attention)
            search = entry.search.advance(candidates)
            if search.done:
                finished.append((entry.key, search.hypotheses()))
            else:
                entry.search, entry.num_rows = search, len(search.rows)
                kept.append(entry)
                rows += [start + row for row in search.rows]
                previous += search.previous_ids
            start = end
        self._entries = kept
        return finished, rows, previous

    def _keep(self, state: DecoderState, rows: list[int], previous: Sequence[int] | Ids) -> None:
        self._previous_ids = np.asarray(previous, np.int64)
        if not rows:
            self._state = None
        elif len(rows) == state.num_rows and rows == list(range(state.num_rows)):
            self._state = state
        else:
            self._state = self._stepper.select(state, np.array(rows, np.int64))

    def _forced_ids(self) -> Ids | None:
        if not any(entry.search.forced_ids for entry in self._entries):
            return None
        return np.array([i for e in self._entries for i in (e.search.forced_ids or (-1,) * e.num_rows)], np.int64)

    def _banned_ids(self) -> Ids | None:
        bans = [entry.search.banned_ids for entry in self._entries]
        width = max(map(len, bans))
        if not width:
            return None
        padded = np.array([ids + (-1,) * (width - len(ids)) for ids in bans], np.int64)
        return np.repeat(padded, [entry.num_rows for entry in self._entries], axis=0)
