"""Greedy requests as arrays, against the search that they stand for."""

import random

import numpy as np

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.greedy import GreedyRows
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.search import Candidates
from attendant.runtime.stepper import Ids
from tests.fakes import SPECIAL_IDS


def random_options(rng: random.Random) -> DecodingOptions:
    max_length = rng.randrange(0, 9)
    return DecodingOptions(
        max_length=max_length,
        min_length=rng.randrange(0, max_length + 1) if rng.random() < 0.4 else 0,
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        patience=rng.choice([0.5, 2.0]),
        suppress_unk=rng.random() < 0.3,
    )


def test_every_step_is_that_of_the_search() -> None:
    """Random candidates for many requests that come and go, each advanced in both ways, to the last bit."""
    rng, numbers = random.Random(2), np.random.default_rng(2)
    greedy: GreedyRows[int] = GreedyRows()
    searches: dict[int, BeamSearch] = {}
    finished: dict[int, tuple[Hypothesis, ...]] = {}
    for key in range(300):
        searches[key] = BeamSearch.start(random_options(rng), SPECIAL_IDS)
        greedy.join([key], [searches[key]], [len(greedy.keys)])
        if rng.random() < 0.6:
            continue
        gone = {other for other in greedy.keys if rng.random() < 0.02}
        greedy.remove(gone)
        # Wherever the batch has put the rows.
        greedy.rows = numbers.permutation(len(greedy.keys) + 3)[: len(greedy.keys)]
        expected_bans = [searches[other].banned_ids for other in greedy.keys]
        banned = greedy.banned_ids()
        found = [()] * len(greedy.keys) if banned is None else [tuple(ids[ids >= 0].tolist()) for ids in banned]
        assert found == expected_bans
        ids: Ids = numbers.integers(3, 8, (len(greedy.keys) + 3, 2))
        log_probs = -numbers.random((len(greedy.keys) + 3, 2), np.float32)
        before = dict(zip(greedy.keys, greedy.rows.tolist(), strict=True))
        ended = dict(greedy.advance(ids[greedy.rows], log_probs[greedy.rows]))
        for other, row in before.items():
            one = Candidates([ids[row].tolist()], [log_probs[row].tolist()], [0.0], None)
            search = searches[other] = searches[other].advance(one)
            assert search.done == (other in ended)
            if search.done:
                assert ended[other] == search.hypotheses()
        assert greedy.keys == [other for other in before if other not in ended]
        fed = [searches[other].previous_ids for other in greedy.keys]
        assert greedy.keys == [] or [(symbol,) for symbol in greedy.previous_ids.tolist()] == fed
        finished |= ended
    assert len(finished) > 200


def test_when_all_have_left_others_may_come() -> None:
    greedy: GreedyRows[str] = GreedyRows()
    for key, most in (("long", 5000), ("short", 2)):
        greedy.join([key], [BeamSearch.start(DecodingOptions(max_length=most), SPECIAL_IDS)], [0])
        ((ended, (hypothesis,)),) = greedy.advance(np.array([[3]]), np.array([[-0.5]], np.float32))
        assert (ended, hypothesis.token_ids, hypothesis.token_log_probs) == (key, (), (-0.5,))
