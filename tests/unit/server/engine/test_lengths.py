"""How long answers will be, learned from answers that the test makes up."""

import pytest

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.server.engine.estimates import Lengths

FREE = DecodingOptions(max_length=100)
BEAM = DecodingOptions(max_length=100, beam_size=4)


def test_the_first_is_taken_for_as_long_as_its_source() -> None:
    assert Lengths().expected(7, FREE) == 7


def test_means_by_width_and_beam() -> None:
    lengths = Lengths()
    for _ in range(1000):
        lengths.note(5, FREE, 10)
        lengths.note(6, BEAM, 14)
        lengths.note(20, FREE, 40)
    assert lengths.expected(8, FREE) == pytest.approx(10)
    assert lengths.expected(3, BEAM) == pytest.approx(14)
    assert lengths.expected(17, FREE) == pytest.approx(40)
    assert lengths.expected(30, BEAM) == pytest.approx(30 * 2.1, rel=0.1), "in proportion, like the others"


def test_it_follows_what_changes() -> None:
    lengths = Lengths()
    for steps in (5, 50):
        for _ in range(500):
            lengths.note(8, FREE, steps)
    assert lengths.expected(8, FREE) == pytest.approx(50, rel=0.01)


def test_within_the_lengths_that_were_asked_for() -> None:
    lengths = Lengths()
    lengths.note(8, FREE, 30)
    assert lengths.expected(8, DecodingOptions(max_length=9)) == 10, "the last step decides whether it ends"
    assert lengths.expected(8, DecodingOptions(max_length=90, min_length=50)) == 51
    assert lengths.expected(8, scoring_options([5, 6, 7], eos=3)) == 4


def test_lengths_that_callers_have_chosen_teach_nothing() -> None:
    lengths = Lengths()
    lengths.note(8, FREE, 30)
    lengths.note(8, DecodingOptions(max_length=3), 4)
    lengths.note(8, DecodingOptions(max_length=90, min_length=80), 81)
    lengths.note(8, scoring_options([5], eos=3), 2)
    assert lengths.expected(8, FREE) == 30
    lengths.note(8, DecodingOptions(max_length=60), 61)
    assert lengths.expected(8, FREE) > 30, "cut, but longer than was expected"
