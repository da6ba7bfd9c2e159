"""Requests that are decoded together, one step at a time: the algebra of continuous batching.

The server's engine, training's validation and export's verification all decode through this one class. It knows
nothing of queues, threads or clocks beyond the one it is given.
"""

import time
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from runtime.decoding.greedy import NO_ID, GreedyRows, is_greedy
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
    """A request that is advanced by itself.

    Attributes:
        first_row: of its rows, which stand together.
    """

    key: Key
    search: Search
    source_length: int
    first_row: int
    num_rows: int = 1


class RunningBatch(Generic[Key]):
    """Requests in flight. Newcomers join, and the finished leave, between any two steps.

    Greedy requests are advanced together, as arrays (greedy.py); all others by their own search, one by one.
    """

    def __init__(self, stepper: Stepper, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stepper = stepper
        self._clock = clock
        self._greedy: GreedyRows[Key] = GreedyRows()
        self._entries: list[_Entry[Key]] = []
        self._state: DecoderState | None = None
        self._previous_ids: Ids = np.empty(0, np.int64)
        self._cells = 0, 0

    @property
    def num_rows(self) -> int:
        return len(self._previous_ids)

    @property
    def keys(self) -> list[Key]:
        return [*self._greedy.keys, *(entry.key for entry in self._entries)]

    def join(self, requests: Sequence[BatchRequest[Key]]) -> None:
        """Encodes newcomers and adds them behind the rows that are there."""
        if not requests:
            return
        newcomers = self._stepper.encode([request.source_ids for request in requests])
        first = [previous for request in requests for previous in request.search.previous_ids]
        greedy = [
            (row, request.key, request.search)
            for row, request in enumerate(requests, self.num_rows)
            if is_greedy(request.search)
        ]
        self._greedy.join([key for _, key, _ in greedy], [s for _, _, s in greedy], [row for row, _, _ in greedy])
        self._entries += [
            _Entry(request.key, request.search, len(request.source_ids), row)
            for row, request in enumerate(requests, self.num_rows)
            if not is_greedy(request.search)
        ]
        previous_ids = np.concatenate([self._previous_ids, np.array(first, np.int64)])
        self._go_on(newcomers if self._state is None else self._stepper.concat([self._state, newcomers]), previous_ids)

    def step(self) -> StepReport[Key]:
        """Steps every row once and advances every search."""
        assert self._state is not None, "a step needs at least one request"
        began = self._clock()
        num_rows = self.num_rows
        useful, computed = self._cells
        output, state = self._stepper.step(
            self._state,
            self._previous_ids,
            num_candidates=max([entry.search.num_candidates for entry in self._entries], default=1),
            forced_ids=self._forced_ids(),
            banned_ids=self._banned_ids(),
            attention=any(entry.search.attention for entry in self._entries),
        )
        stepped = self._clock()
        finished = self._advance_greedy(output)
        if self._entries:
            others, other_rows, other_previous = self._advance(output)
            finished += others
            rows = np.concatenate([self._greedy.rows, np.array(other_rows, np.int64)])
            previous_ids = np.concatenate([self._greedy.previous_ids, np.array(other_previous, np.int64)])
        else:
            rows, previous_ids = self._greedy.rows, self._greedy.previous_ids
        searched = self._clock()
        self._keep(state, rows, previous_ids)
        selected = self._clock()
        seconds = {"step": stepped - began, "search": searched - stepped, "select": selected - searched}
        return StepReport(finished, num_rows, useful, computed, seconds)

    def remove(self, keys: Set[Key]) -> int:
        """Drops requests, and their rows, at once; returns how many rows that were."""
        if self._state is None or keys.isdisjoint(self.keys):
            return 0
        num_rows = self.num_rows
        self._greedy.remove(keys)
        self._entries = [entry for entry in self._entries if entry.key not in keys]
        others = [row for entry in self._entries for row in range(entry.first_row, entry.first_row + entry.num_rows)]
        rows = np.concatenate([self._greedy.rows, np.array(others, np.int64)])
        self._keep(self._state, rows, self._previous_ids[rows])
        return num_rows - len(rows)

    def _advance_greedy(self, output: StepOutput) -> list[tuple[Key, tuple[Hypothesis, ...]]]:
        greedy = self._greedy
        if not greedy.keys:
            return []
        if not self._entries:  # then their rows are all there are, in order
            return greedy.advance(np.ascontiguousarray(output.candidate_ids[:, 0]), output.candidate_log_probs[:, 0])
        return greedy.advance(output.candidate_ids[greedy.rows, 0], output.candidate_log_probs[greedy.rows, 0])

    def _advance(self, output: StepOutput) -> tuple[list[tuple[Key, tuple[Hypothesis, ...]]], list[int], list[int]]:
        """Advances the other searches; returns who ended, and of the others the rows and what they are fed."""
        # One conversion for the whole batch: walking numpy elements one by one costs more than the search.
        ids, log_probs = output.candidate_ids.tolist(), output.candidate_log_probs.tolist()
        forced = output.forced_log_probs.tolist()
        finished: list[tuple[Key, tuple[Hypothesis, ...]]] = []
        kept: list[_Entry[Key]] = []
        rows: list[int] = []
        previous: list[int] = []
        for entry in self._entries:
            start = entry.first_row
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
        self._entries = kept
        return finished, rows, previous

    def _keep(self, state: DecoderState, rows: Ids, previous_ids: Ids) -> None:
        """Goes on with these rows of a state: those of greedy requests first, then the others', in their order.

        Greedy requests alone therefore stand at rows 0, 1, 2, ... at any time.
        """
        num_rows = state.num_rows
        if len(rows) == num_rows and (not self._entries or np.array_equal(rows, np.arange(num_rows))):
            self._go_on(state, previous_ids)
            return
        num_greedy = len(self._greedy.keys)
        self._greedy.rows = np.arange(num_greedy)
        first_row = num_greedy
        for entry in self._entries:
            entry.first_row = first_row
            first_row += entry.num_rows
        self._go_on(self._stepper.select(state, rows) if len(rows) else None, previous_ids)

    def _go_on(self, state: DecoderState | None, previous_ids: Ids) -> None:
        if state is not None and (self._state is None or state.row_sources is not self._state.row_sources):
            self._cells = attention_cells(state)
        self._state, self._previous_ids = state, previous_ids

    def _forced_ids(self) -> Ids | None:
        forcing = [(entry, ids) for entry in self._entries if (ids := entry.search.forced_ids)]
        if not forcing:
            return None
        forced = np.full(self.num_rows, NO_ID, np.int64)
        for entry, ids in forcing:
            forced[entry.first_row : entry.first_row + entry.num_rows] = ids
        return forced

    def _banned_ids(self) -> Ids | None:
        greedy = self._greedy.banned_ids() if self._greedy.keys else None
        bans = [(entry, ids) for entry in self._entries if (ids := entry.search.banned_ids)]
        width = max([0 if greedy is None else greedy.shape[1], *(len(ids) for _, ids in bans)])
        if not width:
            return None
        banned = np.full((self.num_rows, width), NO_ID, np.int64)
        if greedy is not None:
            banned[self._greedy.rows, : greedy.shape[1]] = greedy
        for entry, ids in bans:
            banned[entry.first_row : entry.first_row + entry.num_rows, : len(ids)] = ids
        return banned
