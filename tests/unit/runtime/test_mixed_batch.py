"""Requests of different options in one batch, and their progress."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch, decode_all, score_all
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.stepper import DecoderState, Taken
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.unit.runtime.naive import naive_decode, naive_progress
from tests.unit.runtime.test_decoding import random_options, random_source


class Widest(FakeStepper):
    """Remembers the most rows it was given."""

    max_rows = 0

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        state = super().concat(parts)
        self.max_rows = max(self.max_rows, state.num_rows)
        return state

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        self.max_rows = max(self.max_rows, len(sources))
        return super().encode(sources)

    def select(self, before: DecoderState | Taken, rows: np.ndarray) -> DecoderState:
        self.max_rows = max(self.max_rows, len(rows))
        return super().select(before, rows)


@pytest.mark.parametrize("vocabulary_size", [5, 6, 8])
def test_ties_and_tiny_vocabularies(vocabulary_size: int) -> None:
    """With no spread all symbols are equally probable: everything is a tie, and wide beams run out of candidates."""
    stepper = FakeStepper(vocabulary_size, spread=0.0)
    for beam_size in range(1, 7):
        for min_length in (0, 2):
            options = DecodingOptions(
                beam_size=beam_size, num_hypotheses=beam_size, max_length=3, min_length=min_length, suppress_unk=True
            )
            hypotheses = decode_all(stepper, [[4, 5]], options, SPECIAL_IDS)[0]
            assert [h.token_ids for h in hypotheses] == [f.tokens for f in naive_decode(stepper, [4, 5], options)]


def test_forced_targets_share_steps_with_beams() -> None:
    rng = random.Random(5)
    stepper = FakeStepper(vocabulary_size=8)
    options = DecodingOptions(beam_size=3, num_hypotheses=2, max_length=6, min_length=1, suppress_unk=True)
    sources = [[rng.randrange(4, 40) for _ in range(rng.randrange(1, 9))] for _ in range(40)]
    targets = [tuple(rng.choice([1, 4, 5, 6, 7]) for _ in range(rng.randrange(6))) for _ in sources]
    batch: RunningBatch[tuple[str, int]] = RunningBatch(stepper, SPECIAL_IDS)
    results: dict[tuple[str, int], tuple[Hypothesis, ...]] = {}
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        scored = scoring_options(target, SPECIAL_IDS.eos)
        batch.join([BatchRequest(("beam", index), source, options)])
        batch.join([BatchRequest(("score", index), source, scored)])
        results.update(batch.step().finished)
    while batch.keys:
        results.update(batch.step().finished)
    alone = score_all(stepper, list(zip(sources, targets, strict=True)), SPECIAL_IDS, max_rows=1)
    for index, source in enumerate(sources):
        assert results["score", index] == (alone[index],)
        expected = naive_decode(stepper, source, options)
        assert [h.token_log_probs for h in results["beam", index]] == [f.log_probs for f in expected]


def test_attention_follows_its_hypothesis_through_the_beam() -> None:
    """Scoring a hypothesis runs its row alone, and must see the attention that the beam kept for it."""
    stepper = FakeStepper(vocabulary_size=8)
    options = DecodingOptions(beam_size=4, num_hypotheses=4, max_length=7, attention=True)
    for seed in range(20):
        source = [seed + 4, 5, 9, 6, 7, 8, 4]
        for hypothesis in decode_all(stepper, [source], options, SPECIAL_IDS)[0]:
            batch = RunningBatch(stepper, SPECIAL_IDS)
            batch.join(
                [BatchRequest(0, source, scoring_options(hypothesis.token_ids, SPECIAL_IDS.eos, attention=True))]
            )
            finished: list[tuple[int, tuple[Hypothesis, ...]]] = []
            while not finished:
                finished = batch.step().finished
            forced = finished[0][1][0].attention
            assert hypothesis.attention is not None and forced is not None
            np.testing.assert_array_equal(hypothesis.attention, forced[: len(hypothesis.attention)])


def test_rows_stay_within_the_limit_and_progress_counts_sources() -> None:
    stepper = Widest(vocabulary_size=8)
    finished: list[int] = []
    options = [DecodingOptions(max_length=5, beam_size=1 + n % 4) for n in range(60)]
    decode_all(stepper, [[n + 4] for n in range(60)], options, SPECIAL_IDS, max_rows=12, progress=finished.append)
    assert 4 < stepper.max_rows <= 12
    assert sum(finished) == 60


@pytest.mark.parametrize(("beam_sizes", "attention_every"), [((1, 3), 3), ((1, 2, 3, 4), 5)], ids=["greedy", "beams"])
def test_requests_of_one_kind_leave_and_join_among_others(beam_sizes: tuple[int, ...], attention_every: int) -> None:
    """Each kind's rows stand together; nobody's answer depends on that."""
    stepper = FakeStepper(vocabulary_size=8)
    batch = RunningBatch(stepper, SPECIAL_IDS)
    options = [
        DecodingOptions(max_length=6, beam_size=beam_sizes[key % len(beam_sizes)], attention=key % attention_every == 0)
        for key in range(40)
    ]
    results: dict[int, tuple[Hypothesis, ...]] = {}
    for key, option in enumerate(options):
        batch.join([BatchRequest(key, [key + 4, 7], option)])
        results.update(batch.step().finished)
    while batch.keys:
        results.update(batch.step().finished)
    for key, option in enumerate(options):
        alone = RunningBatch(stepper, SPECIAL_IDS)
        alone.join([BatchRequest(key, [key + 4, 7], option)])
        expected: dict[int, tuple[Hypothesis, ...]] = {}
        while alone.keys:
            expected.update(alone.step().finished)
        assert [h.token_log_probs for h in results[key]] == [h.token_log_probs for h in expected[key]]
        assert [h.token_ids for h in results[key]] == [h.token_ids for h in expected[key]]


Tokens = dict[int, list[tuple[int, ...]]]


def stream_progress(
    sources: list[list[int]], options: list[DecodingOptions], streams: list[bool], *, spread: float = 2.0
) -> tuple[Tokens, Tokens]:
    """By request: what it had been told after each step that it went on after, and the targets that it got."""
    batch = RunningBatch(FakeStepper(8, spread), SPECIAL_IDS)
    waiting, answers = list(range(len(sources))), {}
    progress: Tokens = {key: [] for key in waiting}
    while waiting or batch.keys:
        arriving = [waiting.pop() for _ in range(min(3, len(waiting)))]
        batch.join([BatchRequest(key, sources[key], options[key], streams[key]) for key in arriving])
        report = batch.step()
        for key in batch.keys:
            progress[key].append(progress[key][-1] if progress[key] else ())
        for key, (first, token_ids) in report.progress:
            assert token_ids and first == len(progress[key][-1])
            progress[key][-1] += token_ids
        answers |= {key: [hypothesis.token_ids for hypothesis in hypotheses] for key, hypotheses in report.finished}
    return progress, answers


@pytest.mark.parametrize("special", [0.0, 0.3, 0.7], ids=["plain", "some", "many"])
def test_after_each_step_all_is_told_that_every_possible_answer_shares(special: float) -> None:
    """400 random requests of any options that share their steps, against a search that looks at everything anew."""
    rng = random.Random(17)
    sources = [random_source(rng) for _ in range(400)]
    options = [random_options(rng, rng.randrange(1, 5), special) for _ in sources]
    progress, answers = stream_progress(sources, options, [True] * len(sources), spread=3.0)
    early = 0
    for key, (source, option) in enumerate(zip(sources, options, strict=True)):
        assert progress[key] == naive_progress(FakeStepper(8, 3.0), source, option), option
        for certain in progress[key]:
            assert answers[key][0][: len(certain)] == certain
            early += bool(certain) and option.beam_size > 1
    assert early > 50


def test_only_who_streams_is_told() -> None:
    rng = random.Random(5)
    sources = [random_source(rng) for _ in range(20)]
    options = [DecodingOptions(max_length=8, beam_size=1 + key % 2) for key in range(20)]
    progress, _ = stream_progress(sources, options, [key % 3 == 0 for key in range(20)])
    assert {key for key, certain in progress.items() if any(certain)} <= {key for key in range(20) if key % 3 == 0}
    assert any(map(any, progress.values()))
