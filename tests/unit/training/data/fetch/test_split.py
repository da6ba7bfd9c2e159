"""Splits by key: whole groups, no pair twice, no source of the training split elsewhere."""

from attendant.training.data.fetch.splits import split_by_key, split_of
from attendant.training.data.pairs import Pair


def keys_of(split: str, count: int) -> list[str]:
    return [key for key in map(str, range(1000)) if split_of(key) == split][:count]


def test_the_parts_are_those_of_the_published_counts() -> None:
    splits = [split_of(str(number)) for number in range(10_000)]
    assert 350 < splits.count("test") < 450
    assert 350 < splits.count("validation") < 450
    assert split_of("lo:shared/find_toolbar.html") == "train"
    assert split_of("lo:shared/optionen/01020000.html") == "test"


def test_a_group_stays_together_and_a_pair_counts_once() -> None:
    first, second = keys_of("train", 2)
    (test,) = keys_of("test", 1)
    pairs = [Pair("a", "1"), Pair("b", "2")]
    assert split_by_key([(first, pairs), (second, [*pairs, Pair("c", "3")]), (test, [Pair("d", "4")])]) == {
        "train": [*pairs, Pair("c", "3")],
        "validation": [],
        "test": [Pair("d", "4")],
    }


def test_the_first_group_has_a_shared_pair_and_training_its_sources() -> None:
    (train,), (validation,), (test,) = keys_of("train", 1), keys_of("validation", 1), keys_of("test", 1)
    splits = split_by_key(
        [
            (test, [Pair("shared", "1"), Pair("SAME", "3"), Pair("own", "5")]),
            (train, [Pair("shared", "1"), Pair("same", "4")]),
            (validation, [Pair("shared", "1"), Pair("Same", "6")]),
        ]
    )
    assert splits == {
        "train": [Pair("same", "4")],
        "validation": [],
        "test": [Pair("shared", "1"), Pair("own", "5")],
    }
