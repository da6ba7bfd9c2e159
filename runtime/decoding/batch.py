"""Requests that are decoded together, one step at a time: the algebra of continuous batching.

The server's engine, training's validation and export's verification all decode through this one class. It knows
nothing of queues, threads or clocks beyond the one it is given.
"""

import time
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.beams import BeamRows
from attendant.runtime.decoding.greedy import GreedyRows
from attendant.runtime.decoding.row_group import Ending, RowGroup, can_share
from attendant.runtime.decoding.search import Candidates, Search
from attendant.runtime.stepper import NO_ID, DecoderState, Ids, StepOutput, Stepper, attention_cells

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

    finished: list[Ending[Key]]
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

    Requests of one beam size are advanced together, as arrays (row_group.py); those that are unlike others, because
    they keep attention or are forced, by their own search, one by one.
    """

    def __init__(self, stepper: Stepper, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stepper = stepper
        self._clock = clock
        # By beam size; none without requests.
        self._groups: dict[int, RowGroup[Key]] = {}
        self._entries: list[_Entry[Key]] = []
        self._state: DecoderState | None = None
        self._previous_ids: Ids = np.empty(0, np.int64)
        # What is known to be 0, 1, 2, ..., as many as there are rows.
        self._in_order: Ids = self._previous_ids
        self._cells = 0, 0

    @property
    def num_rows(self) -> int:
        return len(self._previous_ids)

    @property
    def keys(self) -> list[Key]:
        shared = [key for group in self._groups.values() for key in group.keys]
        return [*shared, *(entry.key for entry in self._entries)]

    def join(self, requests: Sequence[BatchRequest[Key]]) -> None:
        """Encodes newcomers and adds them behind the rows that are there."""
        if not requests:
            return
        newcomers = self._stepper.encode([request.source_ids for request in requests])
        first = [previous for request in requests for previous in request.search.previous_ids]
        sharing: dict[int, list[tuple[Key, BeamSearch, int]]] = {}
        for row, request in enumerate(requests, self.num_rows):
            if can_share(request.search):
                of_size = sharing.setdefault(request.search.options.beam_size, [])
                of_size.append((request.key, request.search, row))
            else:
                self._entries.append(_Entry(request.key, request.search, len(request.source_ids), row))
        for beam_size, joining in sharing.items():
            if beam_size not in self._groups:
                self._groups[beam_size] = GreedyRows() if beam_size == 1 else BeamRows(beam_size)
            keys, searches, rows = zip(*joining, strict=True)
            self._groups[beam_size].join(keys, searches, rows)
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
            num_candidates=self._num_candidates(),
            forced_ids=self._forced_ids(),
            banned_ids=self._banned_ids(),
            attention=any(entry.search.attention for entry in self._entries),
        )
        stepped = self._clock()
        finished = self._advance_groups(output)
        other_rows: list[int] = []
        other_previous: list[int] = []
        if self._entries:
            endings, other_rows, other_previous = self._advance_entries(output)
            finished += endings
        rows, previous_ids = self._joined(other_rows, other_previous)
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
        for group in self._groups.values():
            group.remove(keys)
        self._forget_empty()
        self._entries = [entry for entry in self._entries if entry.key not in keys]
        others = [row for entry in self._entries for row in range(entry.first_row, entry.first_row + entry.num_rows)]
        rows = np.concatenate([*(group.rows for group in self._groups.values()), np.array(others, np.int64)])
        self._keep(self._state, rows, self._previous_ids[rows])
        return num_rows - len(rows)

    def _num_candidates(self) -> int:
        wanted = [group.num_candidates for group in self._groups.values()]
        return max([*wanted, *(entry.search.num_candidates for entry in self._entries)])

    def _advance_groups(self, output: StepOutput) -> list[Ending[Key]]:
        ids, log_probs = output.candidate_ids, output.candidate_log_probs
        finished: list[Ending[Key]] = []
        for group in self._groups.values():
            if len(group.rows) == len(ids):  # then they are all there are, in order
                finished += group.advance(ids, log_probs)
            else:
                finished += group.advance(ids[group.rows], log_probs[group.rows])
        if finished:
            self._forget_empty()
        return finished

    def _forget_empty(self) -> None:
        self._groups = {beam_size: group for beam_size, group in self._groups.items() if group.keys}

    def _joined(self, rows: list[int], previous_ids: list[int]) -> tuple[Ids, Ids]:
        """The rows of a state that go on, and what they are fed: those of the groups, then these others."""
        groups = self._groups.values()
        if len(groups) == 1 and not rows:
            (group,) = groups
            return group.rows, group.previous_ids
        return (
            np.concatenate([*(group.rows for group in groups), np.array(rows, np.int64)]),
            np.concatenate([*(group.previous_ids for group in groups), np.array(previous_ids, np.int64)]),
        )

    def _advance_entries(self, output: StepOutput) -> tuple[list[Ending[Key]], list[int], list[int]]:
        """Advances the other searches; returns who ended, and of the others the rows and what they are fed."""
        # One conversion for the whole batch: walking numpy elements one by one costs more than the search.
        ids, log_probs = output.candidate_ids.tolist(), output.candidate_log_probs.tolist()
        forced = output.forced_log_probs.tolist()
        finished: list[Ending[Key]] = []
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
        """Goes on with these rows of a state: each group's, then the others', in their order.

        Whoever is alone therefore stands at rows 0, 1, 2, ... at any time.
        """
        if (rows is self._in_order and len(rows) == state.num_rows) or np.array_equal(rows, np.arange(state.num_rows)):
            self._in_order = rows
            self._go_on(state, previous_ids)
            return
        first_row = 0
        for group in self._groups.values():
            group.rows = np.arange(first_row, first_row + len(group.rows))
            first_row += len(group.rows)
        for entry in self._entries:
            entry.first_row = first_row
            first_row += entry.num_rows
        self._go_on(self._stepper.select(state, rows) if len(rows) else None, previous_ids)

    def _go_on(self, state: DecoderState | None, previous_ids: Ids) -> None:
        if state is not None and (self._state is None or not _same_cells(self._state, state)):
            self._cells = attention_cells(state)
        self._state, self._previous_ids = state, previous_ids

    def _forced_ids(self) -> Ids | None:
        if not self._entries:
            return None
        forcing = [(entry, ids) for entry in self._entries if (ids := entry.search.forced_ids)]
        if not forcing:
            return None
        forced = np.full(self.num_rows, NO_ID, np.int64)
        for entry, ids in forcing:
            forced[entry.first_row : entry.first_row + entry.num_rows] = ids
        return forced

    def _banned_ids(self) -> Ids | None:
        shared = [(group, found) for group in self._groups.values() if (found := group.banned_ids()) is not None]
        bans = [(entry, ids) for entry in self._entries if (ids := entry.search.banned_ids)]
        width = max([*(found.shape[1] for _, found in shared), *(len(ids) for _, ids in bans)], default=0)
        if not width:
            return None
        banned = np.full((self.num_rows, width), NO_ID, np.int64)
        for group, found in shared:
            banned[group.rows, : found.shape[1]] = found
        for entry, ids in bans:
            banned[entry.first_row : entry.first_row + entry.num_rows, : len(ids)] = ids
        return banned


def _same_cells(before: DecoderState, after: DecoderState) -> bool:
    """Whether the same rows stand over the same sources, which is so while a beam only reorders its own."""
    return after.source_lengths is before.source_lengths and (
        after.row_sources is before.row_sources or np.array_equal(after.row_sources, before.row_sources)
    )
