"""Numbers and days in words; and splits by length, of which none shares a value with another."""

from collections.abc import Callable

import pytest

from attendant.training.data.fetch import numbers
from attendant.training.data.fetch.numbers import build_numbers, cardinal, num_spoken_words, ordinal, year
from attendant.training.data.pairs import Pair


@pytest.mark.parametrize(
    ("said", "number", "words"),
    [
        (cardinal, 0, "zero"),
        (cardinal, 14, "fourteen"),
        (cardinal, 20, "twenty"),
        (cardinal, 21, "twenty-one"),
        (cardinal, 100, "one hundred"),
        (cardinal, 715, "seven hundred fifteen"),
        (cardinal, 1_000, "one thousand"),
        (cardinal, 40_007, "forty thousand seven"),
        (cardinal, 3_000_000_110, "three billion one hundred ten"),
        (cardinal, 10**14, "one hundred trillion"),
        (
            cardinal,
            10**9 - 1,
            "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred ninety-nine",
        ),
        (ordinal, 1, "first"),
        (ordinal, 12, "twelfth"),
        (ordinal, 20, "twentieth"),
        (ordinal, 31, "thirty-first"),
        (ordinal, 105, "one hundred fifth"),
        (ordinal, 1_000, "one thousandth"),
        (ordinal, 2_000_089, "two million eighty-ninth"),
        (year, 1600, "sixteen hundred"),
        (year, 1905, "nineteen oh five"),
        (year, 1998, "nineteen ninety-eight"),
        (year, 2000, "two thousand"),
        (year, 2009, "two thousand nine"),
        (year, 2012, "twenty twelve"),
        (year, 2100, "twenty-one hundred"),
    ],
)
def test_how_a_number_is_said(said: Callable[[int], str], number: int, words: str) -> None:
    assert said(number) == words


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Pair]]:
    folder = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "SPLITS", {name: (lengths, 400) for name, (lengths, _) in numbers.SPLITS.items()})
        build_numbers(folder, print)
    return {
        name: [Pair(*line.split("\t")) for line in (folder / f"{name}.tsv").read_text().splitlines()]
        for name in numbers.SPLITS
    }


def in_words(pair: Pair) -> str:
    return next(text for text in (pair.source, pair.target) if not any(character.isdigit() for character in text))


def test_every_pair_has_figures_and_words_in_both_directions(splits: dict[str, list[Pair]]) -> None:
    to_words = 0
    for pairs in splits.values():
        for pair in pairs:
            assert any(character.isdigit() for character in pair.source + pair.target)
            to_words += in_words(pair) == pair.target
    assert 0.4 < to_words / sum(map(len, splits.values())) < 0.6


def test_lengths_beyond_those_of_training_are_held_out(splits: dict[str, list[Pair]]) -> None:
    # As read, a number may have an `and` for each of its hundreds.
    lengths = {
        name: [num_spoken_words(in_words(pair).replace(" and ", " ")) for pair in splits[name]] for name in splits
    }
    assert max(lengths["train"] + lengths["short"]) == 20
    assert set(lengths["validation"]) == {21}
    assert min(lengths["test"]) == 22 and max(lengths["test"]) > 26


def test_no_value_is_in_two_splits(splits: dict[str, list[Pair]]) -> None:
    figures = [
        {(pair.source if in_words(pair) == pair.target else pair.target).replace(",", "") for pair in pairs}
        for pairs in splits.values()
    ]
    assert len(set().union(*figures)) == sum(map(len, figures)) == 4 * 400


def test_what_is_read_comes_in_several_forms(splits: dict[str, list[Pair]]) -> None:
    sources = [pair.source for pair in splits["train"]]
    for form in ("hundred and ", "the ", "-", ",", "th"):
        assert any(form in source for source in sources)
    assert any(source.isdigit() and len(source) > 4 for source in sources)
