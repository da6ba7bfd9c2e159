"""What texts show without a tokenizer: scripts, and signs that something went wrong."""

from itertools import pairwise

import pytest

from attendant.training.data.pairs import Pair
from attendant.training.recipe_choice import (
    NUM_SAMPLED,
    EvenSample,
    are_symbols,
    sample_of,
    script_shares,
    shortened,
    suspicions,
)


@pytest.mark.parametrize("count", [3, NUM_SAMPLED, NUM_SAMPLED + 1, 5 * NUM_SAMPLED])
def test_a_sample_is_spread_over_all_pairs(count: int) -> None:
    sample = sample_of(Pair(str(number), "x") for number in range(count))
    numbers = [int(pair.source) for pair in sample.pairs]
    assert sample.num_seen == count and NUM_SAMPLED / 2 <= max(len(numbers), NUM_SAMPLED / 2) <= NUM_SAMPLED
    (step,) = {later - earlier for earlier, later in pairwise(numbers)}
    assert numbers[0] == 0 and numbers[-1] > count - 1 - step
    assert len(EvenSample().pairs) == 0


def test_scripts_are_shares_of_the_letters() -> None:
    assert script_shares(["abc 123", "Жж!", "漢", "ｱ"]) == {
        "Latin": 3 / 7, "Cyrillic": 2 / 7, "Han": 1 / 7, "Halfwidth": 1 / 7,
    }  # fmt: skip
    assert script_shares(["12", "?"]) == {}


def test_signs_of_broken_pairs_are_told_with_an_example() -> None:
    good = [Pair("hello", "привет"), Pair("cat", "кот"), Pair("dog", "пёс")]
    assert suspicions(good) == []
    bad = [
        Pair("мышь", "mouse"),
        Pair("same", "same"),
        Pair("cafÃ©", "кафе"),
        Pair("a <b>c</b>", "вот"),
        Pair("x&amp;y", "и"),
    ]
    lines = suspicions(good + bad)
    assert [line.split("% of the pairs ")[1].split(" ")[1:3] for line in lines] == [
        ["the", "same"], ["source", "and"], ["broken", "characters,"], ["markup", "(HTML"],
    ]  # fmt: skip
    assert "e.g. мышь → mouse" in lines[1] and lines[3].startswith("25.0%")


def test_a_task_that_copies_is_not_suspicious() -> None:
    assert suspicions([Pair("a", "a"), Pair("b", "b")]) == []


def test_a_pair_is_shown_on_one_line() -> None:
    assert shortened(Pair("a\nb", "c" * 10**7)) == "a b → " + "c" * 59 + "…"
    assert "\x1b" not in shortened(Pair("\x1b[2Jclear", "x"))


@pytest.mark.parametrize(
    ("texts", "are"),
    [
        (["F EY S", "K AE T", "AH0 B AW1 T"], True),
        (["house", "cat"], False),
        (["the house is old", "an old book"], False),
        (["", "a b c"], True),
        ([], False),
        ([f"{first} {second}" for first in range(20) for second in range(1000, 1020)], True),
        ([f"{number} {number + 1}" for number in range(100, 900)], False),
    ],
)
def test_lists_of_symbols_are_short_symbols_of_few_kinds(texts: list[str], are: bool) -> None:
    assert are_symbols(texts) == are
