"""Counts: exact for the versions that were counted, about right for others."""

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.fetch.splits import Expected

EXPECTED = Expected(versions={"toy": "1", "other": "7"}, counts={"train": 100, "test": 10})


def check(versions: dict[str, str], train: int, test: int) -> list[str]:
    said: list[str] = []
    EXPECTED.check("toys", versions, {"train": [None] * train, "test": [None] * test}, said.append)
    return said


def test_the_same_versions_must_give_the_same_counts() -> None:
    assert check({"toy": "1", "other": "7"}, 100, 10) == []
    with pytest.raises(UserError, match=r"toys: 100 / 11 pairs, expected 100 / 10 from these versions"):
        check({"toy": "1", "other": "7"}, 100, 11)


def test_other_versions_are_told_and_may_differ_a_little() -> None:
    assert check({"toy": "2", "other": "7"}, 101, 12) == [
        "toys: 101 / 12 pairs from toy 2; figures given elsewhere are for 100 / 10 pairs"
    ]
    assert check({"toy": "1", "new": "3"}, 100, 10) == [
        "toys: 100 / 10 pairs from new 3; figures given elsewhere are for 100 / 10 pairs"
    ]
    with pytest.raises(UserError, match=r"toys: 60 / 10 pairs from toy 2, expected about 100 / 10"):
        check({"toy": "2", "other": "7"}, 60, 10)
