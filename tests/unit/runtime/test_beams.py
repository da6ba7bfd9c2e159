"""Beam requests as arrays, against the search that they stand for."""

import random

import numpy as np
import pytest

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.beams import BeamRows
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.search import Candidates
from attendant.runtime.stepper import Floats, Ids
from tests.fakes import SPECIAL_IDS

VOCABULARY_SIZE = 9


def random_options(rng: random.Random, beam_size: int) -> DecodingOptions:
    max_length = rng.randrange(0, 9)
    return DecodingOptions(
        beam_size=beam_size,
        num_hypotheses=rng.randrange(1, beam_size + 1),
        max_length=max_length,
        min_length=rng.randrange(0, max_length + 1) if rng.random() < 0.4 else 0,
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        patience=rng.choice([0.5, 1.0, 1.1, 2.0]),
        suppress_unk=rng.random() < 0.3,
    )


def random_candidates(numbers: np.random.Generator, num_rows: int, num_candidates: int) -> tuple[Ids, Floats]:
    """[R, K] symbols of which none comes twice in a row, on so coarse a scale that many are equal, some banned."""
    ids = np.argsort(numbers.random((num_rows, VOCABULARY_SIZE)), axis=1)[:, :num_candidates]
    log_probs = -numbers.integers(0, 8, ids.shape).astype(np.float32) / 3
    log_probs[numbers.random(ids.shape) < 0.05] = -1e9
    return ids, -np.sort(-log_probs, axis=1)


@pytest.mark.parametrize(
    ("beam_size", "num_candidates"),
    [(2, 3), (3, 4), (4, 5), (4, 7), (4, 2), (8, 9)],
    ids=["2", "3", "4", "wider than asked", "tiny vocabulary", "8"],
)
def test_every_step_is_that_of_the_search(beam_size: int, num_candidates: int) -> None:
    """Random candidates for many requests that come and go, each advanced in both ways, to the last bit."""
    rng, numbers = random.Random(beam_size), np.random.default_rng(beam_size)
    beams: BeamRows[int] = BeamRows(beam_size)
    searches: dict[int, BeamSearch] = {}
    finished: dict[int, tuple[Hypothesis, ...]] = {}
    for key in range(300):
        searches[key] = BeamSearch.start(random_options(rng, beam_size), SPECIAL_IDS)
        beams.join([key], [searches[key]], [len(beams.rows)])
        if rng.random() < 0.6:
            continue
        beams.remove({other for other in beams.keys if rng.random() < 0.02})
        # Wherever the batch has put the rows.
        num_rows = len(beams.rows) + 3
        beams.rows = numbers.permutation(num_rows)[: len(beams.rows)]
        banned = beams.banned_ids()
        expected = [searches[other].banned_ids for other in beams.keys for _ in searches[other].rows]
        assert [() if banned is None else tuple(i for i in banned[row] if i >= 0) for row in range(len(expected))] == (
            expected
        )
        ids, log_probs = random_candidates(numbers, num_rows, num_candidates)
        before, rows = list(beams.keys), beams.rows.tolist()
        ended = dict(beams.advance(ids[beams.rows], log_probs[beams.rows]))
        expected_rows: list[int] = []
        for other in before:
            own = [rows.pop(0) for _ in searches[other].rows]
            search = searches[other].advance(Candidates(ids[own].tolist(), log_probs[own].tolist(), [], None))
            searches[other] = search
            assert search.done == (other in ended)
            if search.done:
                assert ended[other] == search.hypotheses()
            else:
                expected_rows += [own[row] for row in search.rows]
        assert beams.keys == [other for other in before if other not in ended]
        assert beams.rows.tolist() == expected_rows
        fed = [symbol for other in beams.keys for symbol in searches[other].previous_ids]
        assert beams.previous_ids.tolist() == fed
        finished |= ended
    assert len(finished) > 200


def test_records_are_kept_as_far_back_as_somebody_goes() -> None:
    beams: BeamRows[int] = BeamRows(2)
    ids, log_probs = np.array([[5, 4, 6]]), np.array([[-1.0, -2.0, -3.0]], np.float32)
    for key, most in enumerate([3, *[1] * 40]):
        beams.join([key], [BeamSearch.start(DecodingOptions(max_length=most, beam_size=2), SPECIAL_IDS)], [0])
        beams.advance(ids.repeat(len(beams.rows), 0), log_probs.repeat(len(beams.rows), 0))
        assert len(beams._records) <= 3
    beams.remove(set(beams.keys))
    assert not beams._records
