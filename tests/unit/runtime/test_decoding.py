"""Tests of the search and the running batch against naive versions, with a fake model that reveals every wrong row."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from attendant.runtime.decoding.batch import BatchRequest, RunningBatch, decode_all, score_all
from attendant.runtime.decoding.beam_search import BeamSearch
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, RunningRequest
from attendant.runtime.decoding.options import Choice, DecodingOptions, Sampling
from attendant.runtime.stepper import DecoderState, StepOutput, Taken
from tests.fakes import MASKED, SPECIAL_IDS, FakeStepper
from tests.unit.runtime.naive import best_by_brute_force, history_of, naive_decode, naive_progress

SYMBOLS = [1, 4, 5, 6, 7]


def choice(*partial: tuple[int, int], complete: Sequence[int] = ()) -> Choice:
    return Choice(partial, np.array(complete, np.int32).tobytes())


COMPLETIONS = [
    (choice(complete=[5, 6]),),
    (choice((4, 1), (7, 2), complete=[6]), choice((4, 2), complete=[5]), choice(complete=[4, 5])),
]


def random_source(rng: random.Random) -> list[int]:
    return [rng.randrange(4, 40) for _ in range(rng.randrange(1, 9))]


def random_options(rng: random.Random, beam_size: int, special: float = 0.3) -> DecodingOptions:
    """Returns random valid options; each of the rarer ones is set with probability `special`."""

    def rarely(value: object, otherwise: object) -> object:
        return value if rng.random() < special else otherwise

    max_length = rng.randrange(0, 9)
    sampling = Sampling(
        seed=rng.randrange(2**64),
        temperature=rng.choice([0.5, 1.0, 2.0]),
        top_k=rng.choice([0, 2, 4]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
    )
    draws = rng.random() < special
    alternatives = not draws and rng.random() < special
    prefix = tuple(rng.choice(SYMBOLS) for _ in range(rng.randrange(0, max_length + 1)))
    return DecodingOptions(
        beam_size=1 if draws else beam_size,
        num_hypotheses=rng.randrange(1, 5) if draws or alternatives else rng.randrange(1, beam_size + 1),
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        length_penalty_offset=rng.choice([5.0, 5.0, 0.0]),
        coverage_penalty=rarely(0.2, 0.0),
        min_length=rarely(rng.randrange(0, max_length + 1), 0),
        max_length=max_length,
        patience=rng.choice([None, None, 0.5, 1.0, 2.0]),
        no_repeat_ngram_size=rarely(rng.randrange(1, 4), 0),
        repetition_penalty=rarely(rng.choice([1.1, 3.0]), 1.0),
        suppress_unk=rarely(True, False),
        target_prefix=rarely(prefix, ()),
        completion=rarely(rng.choice(COMPLETIONS), ()),
        alternatives=alternatives,
        sampling=sampling if draws else None,
        attention=rarely(True, False),
    )


@pytest.mark.parametrize("special", [0.0, 0.3, 0.7], ids=["plain", "some", "many"])
def test_decoding_with_random_options_equals_a_naive_search(special: float) -> None:
    """Compares 200 random requests in one shared batch of 16 rows with a search that shares nothing."""
    rng = random.Random(7)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(200)]
    options = [random_options(rng, rng.randrange(1, 5), special) for _ in sources]
    answers = decode_all(stepper, sources, options, SPECIAL_IDS, max_rows=16)
    for source, option, hypotheses in zip(sources, options, answers, strict=True):
        expected = naive_decode(stepper, source, option)
        assert [h.token_ids for h in hypotheses] == [e.tokens for e in expected], option
        assert [h.token_log_probs for h in hypotheses] == [e.log_probs for e in expected], option
        assert [h.finish_reason is FinishReason.EOS for h in hypotheses] == [e.ended for e in expected]
        assert [h.score for h in hypotheses] == pytest.approx([e.score for e in expected], rel=1e-9)
        assert [h.log_prob for h in hypotheses] == pytest.approx([sum(e.log_probs) for e in expected], rel=1e-12)
        for hypothesis in hypotheses:
            assert (hypothesis.attention is not None) == option.attention
            if hypothesis.attention is not None:
                prefixes = [hypothesis.token_ids[:length] for length in range(len(hypothesis.token_log_probs))]
                attended = [history_of(source, prefix) % len(source) for prefix in prefixes]
                assert hypothesis.attention.argmax(1).tolist() == attended


def short_text(token_ids: Sequence[int]) -> str:
    """Returns a text that several sequences of tokens share, because some tokens spell two others."""
    return "".join({4: "a", 5: "b", 6: "ab", 7: "aa"}.get(token_id, "") for token_id in token_ids)


@pytest.mark.parametrize("special", [0.0, 0.3])
def test_hypotheses_are_distinct_by_their_text(special: float) -> None:
    """Checks that the better of two segmentations is kept and that the search continues until it has enough texts."""
    rng = random.Random(9)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(160)]
    options = [random_options(rng, rng.randrange(2, 6), special) for _ in sources]
    answers = decode_all(stepper, sources, options, SPECIAL_IDS, max_rows=16, text_of=short_text)
    plain = decode_all(stepper, sources, options, SPECIAL_IDS, max_rows=16)
    num_changed = 0
    for source, option, hypotheses, others in zip(sources, options, answers, plain, strict=True):
        expected = naive_decode(stepper, source, option, short_text)
        assert [h.token_ids for h in hypotheses] == [e.tokens for e in expected], option
        assert hypotheses[0].score >= others[0].score
        if option.sampling is None:
            assert len({short_text(h.token_ids) for h in hypotheses}) == len(hypotheses)
        num_changed += [h.token_ids for h in hypotheses] != [h.token_ids for h in others]
    assert num_changed > 5


@pytest.mark.parametrize("min_length", [4, 5, 6])
@pytest.mark.parametrize("beam_size", [2, 3])
def test_bans_that_leave_nothing_end_every_live_hypothesis(beam_size: int, min_length: int) -> None:
    """Covers 5 symbols, each allowed once, and EOS only after `min_length` tokens."""
    options = DecodingOptions(
        beam_size=beam_size, num_hypotheses=beam_size, max_length=9, no_repeat_ngram_size=1, min_length=min_length
    )
    sources = [[seed + 4] for seed in range(20)]
    for source, hypotheses in zip(sources, decode_all(FakeStepper(8), sources, options, SPECIAL_IDS), strict=True):
        assert len(hypotheses) == beam_size
        assert [h.token_ids for h in hypotheses] == [e.tokens for e in naive_decode(FakeStepper(8), source, options)]
        if min_length == 6:
            assert {(len(h.token_ids), h.finish_reason) for h in hypotheses} == {(5, FinishReason.LENGTH)}


@pytest.mark.parametrize("num_hypotheses", [1, 5])
@pytest.mark.parametrize(("alpha", "offset"), [(0.0, 5.0), (0.6, 5.0), (1.0, 5.0), (0.6, 0.0), (1.0, 0.0)])
def test_a_beam_that_holds_everything_finds_the_n_best_of_all(alpha: float, offset: float, num_hypotheses: int) -> None:
    """Covers 4 symbols and up to 3 tokens: a beam of 125 holds all 85 targets. The search stops by itself."""
    stepper = FakeStepper(vocabulary_size=8)
    for seed in range(4):
        options = DecodingOptions(
            beam_size=125,
            max_length=3,
            length_penalty=alpha,
            length_penalty_offset=offset,
            num_hypotheses=num_hypotheses,
            suppress_unk=True,
        )
        hypotheses = decode_all(stepper, [[seed + 4, 5]], options, SPECIAL_IDS)[0]
        expected = best_by_brute_force(stepper, [seed + 4, 5], options)
        assert [h.token_ids for h in hypotheses] == [e.tokens for e in expected]
        assert [h.finish_reason is FinishReason.EOS for h in hypotheses] == [e.ended for e in expected]
        assert [h.score for h in hypotheses] == pytest.approx([e.score for e in expected], rel=1e-6)


def test_random_arrivals_and_removals_do_not_change_other_answers() -> None:
    rng = random.Random(3)
    stepper = FakeStepper(vocabulary_size=8)
    sources = {key: random_source(rng) for key in range(60)}
    options = {key: random_options(rng, rng.randrange(1, 5)) for key in sources}
    batch = RunningBatch(stepper, SPECIAL_IDS)
    waiting, removed, results = list(sources), set(), {}
    while waiting or batch.keys:
        arriving = [waiting.pop() for _ in range(min(rng.randrange(0, 5), len(waiting)))]
        batch.join([BatchRequest(key, sources[key], options[key]) for key in arriving])
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
    assert [h._replace(attention=None) for h in got] == [h._replace(attention=None) for h in expected]
    for a, b in zip(got, expected, strict=True):
        assert (a.attention is None) == (b.attention is None)
        if a.attention is not None and b.attention is not None:
            np.testing.assert_array_equal(a.attention, b.attention)


def test_an_emptied_batch_accepts_new_requests() -> None:
    batch: RunningBatch[str] = RunningBatch(FakeStepper(), SPECIAL_IDS)
    start = DecodingOptions(max_length=3)
    batch.join([BatchRequest("a", [4], start)])
    batch.remove({"a", "unknown"})
    assert (batch.num_rows, batch.keys) == (0, [])
    batch.join([BatchRequest("b", [5], start)])
    assert batch.keys == ["b"]


def test_attention_may_be_requested_again_after_many_steps_without() -> None:
    """Covers a request with attention that leaves, one without that outlasts the kept steps, and a third that joins."""
    options = [DecodingOptions(max_length=most, min_length=most, attention=most < 40) for most in (2, 40, 5)]
    batch = RunningBatch(FakeStepper(8), SPECIAL_IDS)
    batch.join([BatchRequest(key, [key + 4, 7], options[key]) for key in (0, 1)])
    finished = {}
    for number in range(60):
        if number == 20:
            batch.join([BatchRequest(2, [6, 7], options[2])])
        if batch.keys:
            finished.update(batch.step().finished)
    for key, option in enumerate(options):
        assert_same(finished[key], decode_all(FakeStepper(8), [[key + 4, 7]], option, SPECIAL_IDS)[0])


def test_scoring_reproduces_the_decoder() -> None:
    rng = random.Random(11)
    stepper = FakeStepper(vocabulary_size=8)
    sources = [random_source(rng) for _ in range(50)]
    hypotheses = [h[0] for h in decode_all(stepper, sources, DecodingOptions(max_length=8), SPECIAL_IDS)]
    pairs = list(zip(sources, [h.token_ids for h in hypotheses], strict=True))
    for scored, hypothesis in zip(score_all(stepper, pairs, SPECIAL_IDS, max_rows=7), hypotheses, strict=True):
        length = len(hypothesis.token_log_probs)
        assert scored.token_log_probs[:length] == hypothesis.token_log_probs
        assert scored.token_ids == hypothesis.token_ids
    without_end = score_all(stepper, [pair for pair in pairs if pair[1]], SPECIAL_IDS, include_eos=False)
    for scored, hypothesis in zip(without_end, [h for h in hypotheses if h.token_ids], strict=True):
        assert scored.token_log_probs == hypothesis.token_log_probs[: len(hypothesis.token_ids)]
    with pytest.raises(ValueError, match="empty target"):
        score_all(stepper, [([5], [])], SPECIAL_IDS, include_eos=False)


def test_greedy_rows_are_not_copied_while_nothing_changes() -> None:
    stepper = FakeStepper()
    batch = RunningBatch(stepper, SPECIAL_IDS)
    options = DecodingOptions(max_length=5, min_length=5)
    batch.join([BatchRequest(key, [key + 4], options) for key in range(4)])
    for _ in range(5):
        batch.step()
    assert stepper.num_selects == 0


def test_the_report_counts_padding() -> None:
    batch = RunningBatch(FakeStepper(), SPECIAL_IDS)
    options = DecodingOptions(max_length=5, min_length=5)
    batch.join([BatchRequest(n, [4] * n, options) for n in (3, 12)])
    report = batch.step()
    assert (report.num_rows, report.useful_cells, report.computed_cells) == (2, 15, 2 * 2 * 16)
    assert report.seconds.keys() == {"step", "search", "select"}


def test_masked_positions_reach_the_encoder_in_a_batch() -> None:
    """Relies on the fake, which encodes a masked position as an additional source symbol."""
    stepper = FakeStepper(vocabulary_size=8)
    options = DecodingOptions(beam_size=2, max_length=8)
    masked = replace(options, masked_source_positions=(0, 2))
    actual = decode_all(stepper, [[5, 6, 7], [5, 6, 7], [8]], [options, masked, options], SPECIAL_IDS)
    expected = decode_all(stepper, [[5, 6, 7], [5, 6, 7, MASKED, MASKED + 2], [8]], options, SPECIAL_IDS)
    assert actual == expected and actual[0] != actual[1]


class Widest(FakeStepper):
    """Records the largest number of rows of a state."""

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
def test_ties_and_tiny_vocabularies_decode_as_a_naive_search(vocabulary_size: int) -> None:
    """Covers equally probable symbols (no spread): everything is a tie, and wide beams run out of candidates."""
    stepper = FakeStepper(vocabulary_size, spread=0.0)
    for beam_size in range(1, 7):
        for min_length in (0, 2):
            options = DecodingOptions(
                beam_size=beam_size, num_hypotheses=beam_size, max_length=3, min_length=min_length, suppress_unk=True
            )
            hypotheses = decode_all(stepper, [[4, 5]], options, SPECIAL_IDS)[0]
            assert [h.token_ids for h in hypotheses] == [f.tokens for f in naive_decode(stepper, [4, 5], options)]


def test_rows_stay_within_the_limit_and_progress_counts_sources() -> None:
    stepper = Widest(vocabulary_size=8)
    finished: list[int] = []
    options = [DecodingOptions(max_length=5, beam_size=1 + n % 4) for n in range(60)]
    decode_all(stepper, [[n + 4] for n in range(60)], options, SPECIAL_IDS, max_rows=12, progress=finished.append)
    assert 4 < stepper.max_rows <= 12
    assert sum(finished) == 60


Tokens = dict[int, list[tuple[int, ...]]]


def stream_progress(
    sources: list[list[int]], options: list[DecodingOptions], streams: list[bool], *, spread: float = 2.0
) -> tuple[Tokens, Tokens]:
    """Returns, by request, the streamed tokens after each step except its last, and its targets."""
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
def test_progress_is_the_prefix_that_all_possible_answers_share(special: float) -> None:
    """Compares 200 random requests that share their steps with a search that recomputes everything."""
    rng = random.Random(17)
    sources = [random_source(rng) for _ in range(200)]
    options = [random_options(rng, rng.randrange(1, 5), special) for _ in sources]
    progress, answers = stream_progress(sources, options, [True] * len(sources), spread=3.0)
    early = 0
    for key, (source, option) in enumerate(zip(sources, options, strict=True)):
        assert progress[key] == naive_progress(FakeStepper(8, 3.0), source, option), option
        for certain in progress[key]:
            assert answers[key][0][: len(certain)] == certain
            early += bool(certain) and option.beam_size > 1
    assert early > 25


def search_with(*options: DecodingOptions) -> BeamSearch:
    search = BeamSearch(options[0].beam_size, SPECIAL_IDS)
    search.join(
        [RunningRequest(key, option, 3, search.step) for key, option in enumerate(options)], range(len(options))
    )
    return search


def advance(
    search: BeamSearch, ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
) -> dict[int, tuple[Hypothesis, ...]]:
    forced = np.zeros(len(ids), np.float32)
    output = StepOutput(np.array(ids, np.int64), np.array(log_probs, np.float32), forced, None)
    return {ending.key: ending.hypotheses for ending in search.advance(output)}


def test_patience_of_single_precision_is_rounded_to_its_decimal_value() -> None:
    """Covers 1.1, which arrives over the wire as 1.10000002: times 10, it must give 11 hypotheses, not 12."""
    search = search_with(DecodingOptions(beam_size=10, max_length=99, patience=float(np.float32(1.1))))
    ended: dict[int, tuple[Hypothesis, ...]] = {}
    num_steps = 0
    while not ended:
        rows = len(search.rows)
        ids = [[3, *range(4, 14)] if row == 0 else list(range(4, 15)) for row in range(rows)]
        log_probs = [
            [-0.1 if row == 0 else -5.0 - row, *(-6.0 - row - rank / 8 for rank in range(10))] for row in range(rows)
        ]
        ended = advance(search, ids, log_probs)
        num_steps += 1
    assert num_steps == 11


@pytest.mark.parametrize("beam_size", [1, 2])
def test_the_history_is_as_long_as_the_longest_running_request(beam_size: int) -> None:
    search = BeamSearch(beam_size, SPECIAL_IDS)
    answers: dict[int, tuple[Hypothesis, ...]] = {}
    for key, most in enumerate([40, *[3] * 200]):
        options = DecodingOptions(max_length=most, beam_size=beam_size)
        search.join([RunningRequest(key, options, 3, search.step)], [0])
        answers |= advance(search, [[5, 4, 6]] * len(search.rows), [[-1.0, -2.0, -3.0]] * len(search.rows))
        assert search._history.width <= 64
    assert search._history.width == 16
    assert [len(answers[key][0].token_ids) for key in range(190)] == [40, *[3] * 189]


def test_a_search_without_requests_accepts_new_ones() -> None:
    search = BeamSearch(1, SPECIAL_IDS)
    for key, most in ((0, 5000), (1, 2)):
        search.join([RunningRequest(key, DecodingOptions(max_length=most), 3, search.step)], [0])
        output = StepOutput(np.array([[3]]), np.array([[-0.5]], np.float32), np.zeros(1, np.float32), None)
        ((ended, (hypothesis,)),) = search.advance(output)
        assert (ended, hypothesis.token_ids, hypothesis.token_log_probs) == (key, (), (-0.5,))
