"""Tests of the bigram filter against a plain set of bigrams."""

import random
from itertools import pairwise

import pytest

from attendant.runtime.bundle import bigrams
from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID


def plain_bigrams(source: list[int]) -> list[tuple[int, int]]:
    return list(pairwise([BOS_ID, *source, EOS_ID]))


def random_sources(count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, 100) for _ in range(draw.randrange(1, 7))] for _ in range(count)]


def test_the_unseen_share_is_nearly_that_of_a_plain_set() -> None:
    sources = random_sources(1500, seed=1)
    seen = SeenBigrams.of_sources(sources)
    members = {bigram for source in sources for bigram in plain_bigrams(source)}
    assert all(seen.unseen_share(source) == 0 for source in sources)
    num_unseen = num_reported = 0.0
    for source in random_sources(1500, seed=2):
        own = plain_bigrams(source)
        num_unseen += sum(bigram not in members for bigram in own)
        num_reported += seen.unseen_share(source) * len(own)
    assert 0.98 * num_unseen <= num_reported <= num_unseen + 1e-6 and num_unseen > 1000


def test_kept_memberships_are_bounded_and_change_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigrams, "MAX_KEPT", 50)
    members, others = random_sources(100, seed=5), random_sources(100, seed=6)
    seen = SeenBigrams.of_sources(members)
    shares = [SeenBigrams(seen.content).unseen_share(source) for source in others]
    for _ in range(2):
        assert [seen.unseen_share(source) for source in others] == shares
        assert not any(map(seen.unseen_share, members))
    assert len(seen._is_member) <= 50 + 8


def test_the_format_is_the_documented_one() -> None:
    """Checks that another program or version finds the same members."""
    expected = "baa10e2003f2a95c"
    assert SeenBigrams.of_sources([[5, 6, 7], [8]]).content.hex() == expected
    by_hand = bytearray(len(expected) // 2)
    for first, second in {bigram for source in ([5, 6, 7], [8]) for bigram in plain_bigrams(source)}:
        key = (first * 0x9E3779B97F4A7C15 + second) % 2**64
        key = (key ^ key >> 32) * 0xBF58476D1CE4E5B9 % 2**64
        key ^= key >> 29
        for probe in range(5):
            bit = (key % 2**32 + probe * (key >> 32)) % (8 * len(by_hand))
            by_hand[bit // 8] |= 1 << bit % 8
    assert by_hand.hex() == expected


def test_a_filter_of_no_sources_has_no_member_and_empty_bits_are_refused() -> None:
    assert SeenBigrams.of_sources([]).unseen_share([5]) == 1
    with pytest.raises(ValueError, match="empty"):
        SeenBigrams(b"")
