"""The search alone, fed with candidates by hand: what ends, what lives, what is remembered."""

from collections.abc import Sequence

import numpy as np
import pytest

from attendant.runtime.decoding.beam_search import BeamSearch, Entrant
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import StepOutput
from tests.fakes import SPECIAL_IDS


def search_with(*options: DecodingOptions) -> BeamSearch:
    search = BeamSearch(options[0].beam_size, SPECIAL_IDS)
    search.join([Entrant(key, option, 3, key) for key, option in enumerate(options)])
    return search


def advance(
    search: BeamSearch, ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
) -> dict[int, tuple[Hypothesis, ...]]:
    forced = np.zeros(len(ids), np.float32)
    output = StepOutput(np.array(ids, np.int64), np.array(log_probs, np.float32), forced, None)
    return {ending.key: ending.hypotheses for ending in search.advance(output)}


def test_an_ended_hypothesis_costs_no_live_one_its_place() -> None:
    search = search_with(DecodingOptions(beam_size=2, num_hypotheses=2, max_length=4))
    assert not advance(search, [[3, 5, 4]], [[-0.1, -3.0, -4.0]])
    assert search.previous_ids.tolist() == [5, 4]
    assert search.rows.tolist() == [0, 0]


def test_an_improbable_end_does_not_end_a_hypothesis() -> None:
    """EOS behind the first k of the pool is neither an end nor a live hypothesis."""
    search = search_with(DecodingOptions(beam_size=2, max_length=1))
    assert not advance(search, [[5, 4, 3]], [[-0.1, -3.0, -4.0]])
    assert search.previous_ids.tolist() == [5, 4]
    ended = advance(search, [[6, 7, 8]] * 2, [[-1.0, -2.0, -3.0]] * 2)
    assert [hypothesis.token_ids for hypothesis in ended[0]] == [(5,)]


def test_of_equal_candidates_the_lower_row_goes_first() -> None:
    search = search_with(DecodingOptions(beam_size=2, max_length=4))
    advance(search, [[5, 4, 6]], [[-1.0, -1.0, -2.0]])
    advance(search, [[7, 6, 5]] * 2, [[-1.0, -2.0, -3.0]] * 2)
    assert (search.rows.tolist(), search.previous_ids.tolist()) == ([0, 0], [7, 7])


def test_at_the_limit_an_end_counts_as_an_end() -> None:
    """max_length doesn't count EOS: a target of exactly that many tokens still ends by EOS."""
    for beam_size in (1, 3):
        search = search_with(*[DecodingOptions(max_length=1, beam_size=beam_size)] * 2)
        advance(search, [[5]] * 2, [[-0.5]] * 2)
        ended = advance(search, [[3], [6]], [[-0.25], [-0.25]])
        (by_eos,), (cut,) = ended[0], ended[1]
        assert (by_eos.token_ids, by_eos.token_log_probs) == ((5,), (-0.5, -0.25))
        assert (cut.token_ids, cut.token_log_probs) == ((5,), (-0.5,))
        assert (by_eos.finish_reason, cut.finish_reason) == (FinishReason.EOS, FinishReason.LENGTH)


def test_the_search_stops_when_nothing_can_enter_the_n_best() -> None:
    search = search_with(DecodingOptions(beam_size=2, max_length=9))
    # The ended hypothesis has -2; the best live one has -1 and may still end with more than -2.
    assert not advance(search, [[5, 3, 4]], [[-1.0, -2.0, -5.0]])
    assert not advance(search, [[6, 7, 8]] * 2, [[-0.5, -4.0, -5.0]] * 2)
    ended = advance(search, [[6, 7, 8]] * 2, [[-0.5, -4.0, -5.0]] * 2)
    assert [hypothesis.token_ids for hypothesis in ended[0]] == [()]
    assert not search.keys


def test_a_length_penalty_lets_a_search_go_on_as_long_as_length_may_help() -> None:
    plain, lenient = (
        search_with(DecodingOptions(beam_size=2, max_length=20, length_penalty=alpha)) for alpha in (0.0, 1.0)
    )
    for search, ends in ((plain, True), (lenient, False)):
        assert bool(advance(search, [[3, 5, 4]], [[-1.0, -1.5, -2.0]])) is ends


def test_greedy_search_ends_at_its_first_end_whatever_the_patience_and_the_penalty() -> None:
    for patience in (None, 2.0):
        search = search_with(DecodingOptions(max_length=4, patience=patience, length_penalty=1.0))
        ended = advance(search, [[3, 5]], [[-0.1, -3.0]])
        assert ended[0][0].token_log_probs == (pytest.approx(-0.1),)


def test_patience_of_single_precision_counts_as_written() -> None:
    """1.1 arrives over the wire as 1.10000002: times 10 that is 11 hypotheses, not 12."""
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


def test_what_can_only_be_followed_by_banned_symbols_is_cut() -> None:
    for beam_size in (1, 2):
        search = search_with(DecodingOptions(beam_size=beam_size, max_length=9))
        advance(search, [[5, 4, 6]], [[-1.0, -1e9, -1e9]])
        (cut,) = advance(search, [[5, 4, 6]], [[-1e9, -1e9, -1e9]])[0]
        assert (cut.token_ids, cut.finish_reason) == ((5,), FinishReason.LENGTH)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_steps_are_remembered_as_far_back_as_somebody_goes(beam_size: int) -> None:
    search = BeamSearch(beam_size, SPECIAL_IDS)
    answers: dict[int, tuple[Hypothesis, ...]] = {}
    for key, most in enumerate([40, *[3] * 200]):
        search.join([Entrant(key, DecodingOptions(max_length=most, beam_size=beam_size), 3, 0)])
        answers |= advance(search, [[5, 4, 6]] * len(search.rows), [[-1.0, -2.0, -3.0]] * len(search.rows))
        assert search._history.width <= 64
    assert search._history.width == 16
    assert [len(answers[key][0].token_ids) for key in range(190)] == [40, *[3] * 189]


def test_when_all_have_left_others_may_come() -> None:
    search: BeamSearch[str] = BeamSearch(1, SPECIAL_IDS)
    for key, most in (("long", 5000), ("short", 2)):
        search.join([Entrant(key, DecodingOptions(max_length=most), 3, 0)])
        output = StepOutput(np.array([[3]]), np.array([[-0.5]], np.float32), np.zeros(1, np.float32), None)
        ((ended, (hypothesis,)),) = search.advance(output)
        assert (ended, hypothesis.token_ids, hypothesis.token_log_probs) == (key, (), (-0.5,))
