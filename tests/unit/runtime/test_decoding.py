"""Searches and the running batch against their naive twins, on a model that notices every wrong row."""

import random
from dataclasses import replace

import numpy as np
import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.offline import decode_all, score_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.search import Candidates
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.unit.runtime.naive import best_by_brute_force, naive_beam, next_log_probs


def random_source(rng: random.Random) -> list[int]:
    return [rng.randrange(4, 40) for _ in range(rng.randrange(1, 9))]


def random_options(rng: random.Random, beam_size: int) -> DecodingOptions:
    max_length = rng.randrange(0, 9)
    return DecodingOptions(
        beam_size=beam_size,
        num_hypotheses=rng.randrange(1, beam_size + 1),
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        min_length=rng.randrange(0, max_length + 1) if rng.random() < 0.4 else 0,
        max_length=max_length,
        patience=rng.choice([0.5, 1.0, 2.0]),
        suppress_unk=rng.random() < 0.3,
        attention=rng.random() < 0.3,
    )


def test_beam_search_is_the_naive_one() -> None:
    """400 random requests, decoded in one shared batch of 16 rows, against a search that shares nothing."""
    rng = random.Random(7)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(400)]
    options = [random_options(rng, rng.randrange(1, 5)) for _ in sources]
    found = decode_all(stepper, sources, options, SPECIAL_IDS, max_rows=16)
    for source, option, hypotheses in zip(sources, options, found, strict=True):
        expected = naive_beam(stepper, source, option)
        assert [h.token_ids for h in hypotheses] == [e.tokens for e in expected], option
        assert [h.token_log_probs for h in hypotheses] == [e.log_probs for e in expected]
        assert [h.finish_reason is FinishReason.EOS for h in hypotheses] == [e.ended for e in expected]
        assert [h.score for h in hypotheses] == pytest.approx([e.score for e in expected], rel=1e-12)
        assert [h.log_prob for h in hypotheses] == pytest.approx([sum(e.log_probs) for e in expected], rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_that_holds_everything_finds_the_best(alpha: float) -> None:
    """3 symbols and EOS, up to 3 tokens: 40 targets, all of which a beam of 64 with patience to match keeps."""
    stepper = FakeStepper(vocabulary_size=7)
    for seed in range(12):
        options = DecodingOptions(beam_size=64, max_length=3, length_penalty=alpha, patience=4.0)
        (best,) = decode_all(stepper, [[seed + 4, 5]], options, SPECIAL_IDS)[0]
        expected = best_by_brute_force(stepper, [seed + 4, 5], options)
        if best.finish_reason is FinishReason.EOS:
            assert best.token_ids == expected.tokens
            assert best.score == pytest.approx(expected.score, rel=1e-6)
        else:
            assert best.score > expected.score


def test_beam_one_is_argmax() -> None:
    stepper = FakeStepper(vocabulary_size=9)
    options = DecodingOptions(max_length=12)
    for seed in range(40):
        source = [seed + 4]
        tokens: list[int] = []
        while len(tokens) < options.max_length:
            symbol = int(np.argmax(next_log_probs(stepper, source, tokens, options)))
            if symbol == SPECIAL_IDS.eos:
                break
            tokens.append(symbol)
        (hypothesis,) = decode_all(stepper, [source], options, SPECIAL_IDS)[0]
        assert list(hypothesis.token_ids) == tokens


def test_arrivals_and_removals_at_random_change_nobodys_answer() -> None:
    rng = random.Random(3)
    stepper = FakeStepper(vocabulary_size=8)
    sources = {key: random_source(rng) for key in range(60)}
    options = {key: random_options(rng, rng.randrange(1, 5)) for key in sources}
    batch: RunningBatch[int] = RunningBatch(stepper)
    waiting, removed, results = list(sources), set(), {}
    while waiting or batch.keys:
        arriving = [waiting.pop() for _ in range(min(rng.randrange(0, 5), len(waiting)))]
        batch.join([BatchRequest(key, sources[key], BeamSearch.start(options[key], SPECIAL_IDS)) for key in arriving])
        if batch.keys and rng.random() < 0.15:
            gone = {rng.choice(batch.keys)}
            removed |= gone
            num_rows = batch.num_rows
            assert batch.remove(gone) == num_rows - batch.num_rows > 0
        if batch.keys:
            results.update(batch.step().finished)
    assert removed and not removed & results.keys()
    assert results.keys() | removed == sources.keys()
    for key, hypotheses in results.items():
        (alone,) = decode_all(FakeStepper(8), [sources[key]], options[key], SPECIAL_IDS)
        assert_same(hypotheses, alone)


def assert_same(got: tuple[Hypothesis, ...], expected: tuple[Hypothesis, ...]) -> None:
    assert [replace(h, attention=None) for h in got] == [replace(h, attention=None) for h in expected]
    for a, b in zip(got, expected, strict=True):
        assert (a.attention is None) == (b.attention is None)
        if a.attention is not None and b.attention is not None:
            np.testing.assert_array_equal(a.attention, b.attention)


def test_removing_everything_leaves_an_empty_batch_that_goes_on() -> None:
    batch: RunningBatch[str] = RunningBatch(FakeStepper())
    start = BeamSearch.start(DecodingOptions(max_length=3), SPECIAL_IDS)
    batch.join([BatchRequest("a", [4], start)])
    batch.remove({"a", "unknown"})
    assert (batch.num_rows, batch.keys) == (0, [])
    batch.join([BatchRequest("b", [5], start)])
    assert batch.keys == ["b"]


def test_searches_are_values() -> None:
    search = BeamSearch.start(DecodingOptions(beam_size=2, max_length=4), SPECIAL_IDS)
    candidates = Candidates([[5, 3, 4]], [[-0.5, -1.0, -2.0]], [0.0], None)
    before = repr(search)
    assert search.advance(candidates) == search.advance(candidates)
    assert repr(search) == before


def test_an_ended_hypothesis_costs_no_live_one_its_place() -> None:
    search = BeamSearch.start(DecodingOptions(beam_size=2, max_length=4), SPECIAL_IDS)
    after = search.advance(Candidates([[3, 5, 4]], [[-0.1, -3.0, -4.0]], [0.0], None))
    assert len(after.ended) == 1
    assert after.previous_ids == (5, 4)
    assert not after.done


def test_an_improbable_end_does_not_end_a_hypothesis() -> None:
    """EOS behind the first k of the pool is neither an end nor a live hypothesis."""
    search = BeamSearch.start(DecodingOptions(beam_size=2, max_length=4), SPECIAL_IDS)
    after = search.advance(Candidates([[5, 4, 3]], [[-0.1, -3.0, -4.0]], [0.0], None))
    assert not after.ended
    assert after.previous_ids == (5, 4)


def test_at_the_limit_an_end_counts_as_an_end() -> None:
    """max_length doesn't count EOS: a target of exactly that many tokens still ends by EOS."""
    options = DecodingOptions(max_length=1)
    after = BeamSearch.start(options, SPECIAL_IDS).advance(Candidates([[5]], [[-0.5]], [0.0], None))
    (ended,) = after.advance(Candidates([[3]], [[-0.25]], [0.0], None)).hypotheses()
    assert (ended.token_ids, ended.token_log_probs, ended.finish_reason) == ((5,), (-0.5, -0.25), FinishReason.EOS)
    (cut,) = after.advance(Candidates([[6]], [[-0.25]], [0.0], None)).hypotheses()
    assert (cut.token_ids, cut.token_log_probs, cut.finish_reason) == ((5,), (-0.5,), FinishReason.LENGTH)


def test_attention_has_a_row_per_summand_and_a_column_per_source_symbol() -> None:
    stepper = FakeStepper(vocabulary_size=8)
    options = [DecodingOptions(max_length=6, beam_size=3, num_hypotheses=3, attention=flag) for flag in (True, False)]
    kept, dropped = decode_all(stepper, [[5, 6, 7], [5, 6, 7, 8, 9]], options, SPECIAL_IDS)
    for hypothesis in kept:
        assert hypothesis.attention is not None
        assert hypothesis.attention.shape == (len(hypothesis.token_log_probs), 3)
        np.testing.assert_array_equal(hypothesis.attention.sum(1), 1.0)
    assert all(hypothesis.attention is None for hypothesis in dropped)


def test_scoring_reproduces_the_decoder() -> None:
    rng = random.Random(11)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(50)]
    found = [h[0] for h in decode_all(stepper, sources, DecodingOptions(max_length=8), SPECIAL_IDS)]
    pairs = list(zip(sources, [h.token_ids for h in found], strict=True))
    for scored, hypothesis in zip(score_all(stepper, pairs, SPECIAL_IDS, max_rows=7), found, strict=True):
        length = len(hypothesis.token_log_probs)
        assert scored.token_log_probs[:length] == hypothesis.token_log_probs
        assert scored.token_ids == hypothesis.token_ids
    without_end = score_all(stepper, [pair for pair in pairs if pair[1]], SPECIAL_IDS, include_eos=False)
    for scored, hypothesis in zip(without_end, [h for h in found if h.token_ids], strict=True):
        assert scored.token_log_probs == hypothesis.token_log_probs[: len(hypothesis.token_ids)]
    with pytest.raises(ValueError, match="empty target"):
        score_all(stepper, [([5], [])], SPECIAL_IDS, include_eos=False)


def test_greedy_rows_are_not_copied_while_nothing_changes() -> None:
    stepper = FakeStepper()
    batch: RunningBatch[int] = RunningBatch(stepper)
    options = DecodingOptions(max_length=5, min_length=5)
    batch.join([BatchRequest(key, [key + 4], BeamSearch.start(options, SPECIAL_IDS)) for key in range(4)])
    for _ in range(5):
        batch.step()
    assert stepper.num_selects == 0


def test_the_report_counts_padding() -> None:
    batch: RunningBatch[int] = RunningBatch(FakeStepper())
    options = DecodingOptions(max_length=5, min_length=5)
    batch.join([BatchRequest(n, [4] * n, BeamSearch.start(options, SPECIAL_IDS)) for n in (3, 12)])
    report = batch.step()
    assert (report.num_rows, report.useful_cells, report.computed_cells) == (2, 15, 2 * 2 * 16)
    assert report.seconds.keys() == {"step", "search", "select"}
