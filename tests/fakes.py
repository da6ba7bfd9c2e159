"""A model small enough to recompute by hand, for tests of everything that decodes.

The next symbol's distribution depends on the source and on the whole history, both through a hash that lives in the
row's state: a wrong row, a wrong source or a lost symbol changes everything after it.
"""

from collections.abc import Sequence

import numpy as np

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.stepper import DecoderState, Floats, Ids, StepOutput, Taken, select_sources, state_of

SPECIAL_IDS = SpecialIds(pad=0, unk=1, bos=2, eos=3, start=2)
MODULUS = 2_147_483_647
MASKED = 1_000_000
"""Symbol that a masked position adds to the history: this number plus the position's."""


def absorb(history: int, symbol: int) -> int:
    """Returns the hash of a history with one more symbol."""
    return (history * 48271 + symbol * 16807 + 11) % MODULUS


def logits_of(history: int, vocabulary_size: int, spread: float = 2.0) -> Floats:
    """Returns pseudo-random logits [V] of a history; PAD and BOS are impossible, as in the real models."""
    logits = np.random.default_rng(history).normal(0.0, spread, vocabulary_size).astype(np.float32)
    logits[[SPECIAL_IDS.pad, SPECIAL_IDS.bos]] = -1e9
    return logits


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)


class FakeStepper:
    """A Stepper whose state is the hash of (source, history). It also checks its callers' arguments.

    Attributes:
        num_selects, num_steps, num_encodes: calls so far.
        fail_at_step: the number of the step from which on steps raise. If None, none raises.
    """

    def __init__(self, vocabulary_size: int = 7, spread: float = 2.0) -> None:
        self.vocabulary_size = vocabulary_size
        self.spread = spread
        self.num_selects = self.num_steps = self.num_encodes = 0
        self.fail_at_step: int | None = None

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        self.num_encodes += 1
        assert all(len(source) for source in sources), "an empty source reached the encoder"
        hashes = []
        for source, positions in zip(sources, masked or [()] * len(sources), strict=True):
            history = 1
            for symbol in (*source, *(MASKED + position for position in positions)):
                history = absorb(history, symbol)
            hashes.append(history)
        return DecoderState(
            row_tensors={"history": np.array(hashes, np.int64), "source_hash": np.array(hashes, np.int64)},
            source_tensors={"source_hash": np.array(hashes, np.int64)},
            source_lengths=np.array([len(source) for source in sources], np.int64),
            row_sources=np.arange(len(sources)),
        )

    def step(
        self,
        before: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        state = state_of(before)
        self.num_steps += 1
        if self.fail_at_step is not None and self.num_steps >= self.fail_at_step:
            raise RuntimeError("the model is broken")
        rows = state.num_rows
        assert previous_ids.shape == (rows,) and previous_ids.dtype == np.int64
        assert set(state.row_sources.tolist()) == set(range(state.num_sources)), "a source without rows stayed"
        of_sources = state.source_tensors["source_hash"][state.row_sources]
        assert np.array_equal(state.row_tensors["source_hash"], of_sources), "a row reads another row's source"
        history = np.array(
            [absorb(int(h), int(p)) for h, p in zip(state.row_tensors["history"], previous_ids, strict=True)]
        )
        log_probs = np.stack([self._log_probs(h, banned_ids, row) for row, h in enumerate(history)])
        order = np.argsort(-log_probs, axis=1, kind="stable")[:, :num_candidates]
        forced = np.zeros(rows, np.float32)
        if forced_ids is not None:
            assert forced_ids.shape == (rows,)
            forced = np.where(forced_ids < 0, 0, log_probs[np.arange(rows), forced_ids.clip(0)]).astype(np.float32)
        output = StepOutput(
            candidate_ids=order,
            candidate_log_probs=np.take_along_axis(log_probs, order, 1),
            forced_log_probs=forced,
            attention=self._attention(state, history) if attention else None,
        )
        tensors = {**state.row_tensors, "history": history}
        return output, DecoderState(tensors, state.source_tensors, state.source_lengths, state.row_sources)

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        state = state_of(before)
        self.num_selects += 1
        kept, row_sources = select_sources(state.row_sources, state.num_sources, rows)
        sources = slice(None) if kept is None else kept
        return DecoderState(
            {name: tensor[rows] for name, tensor in state.row_tensors.items()},
            {"source_hash": state.source_tensors["source_hash"][sources]},
            state.source_lengths[sources],
            row_sources,
        )

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        states = [state_of(part) for part in parts]
        offsets = np.cumsum([0, *(state.num_sources for state in states[:-1])])
        return DecoderState(
            {name: np.concatenate([s.row_tensors[name] for s in states]) for name in states[0].row_tensors},
            {"source_hash": np.concatenate([state.source_tensors["source_hash"] for state in states])},
            np.concatenate([state.source_lengths for state in states]),
            np.concatenate([state.row_sources + offset for state, offset in zip(states, offsets, strict=True)]),
        )

    def _log_probs(self, history: int, banned_ids: Ids | None, row: int) -> Floats:
        logits = logits_of(int(history), self.vocabulary_size, self.spread)
        if banned_ids is not None:
            logits[[i for i in banned_ids[row] if i >= 0]] = -1e9
        return log_softmax(logits)

    def _attention(self, state: DecoderState, history: Ids) -> Floats:
        """Returns weights [R, S], one-hot on a position that the history picks; zero beyond the source's length."""
        weights = np.zeros((state.num_rows, int(state.source_lengths.max()) + 3), np.float32)
        weights[np.arange(state.num_rows), history % state.source_lengths[state.row_sources]] = 1.0
        return weights
