"""Shapes, recordings and buffers, without a device."""

import pytest

from attendant.runtime.device.state import BufferSets, Captures, bucket_count, bucket_width, power_of_two
from attendant.runtime.stepper import SOURCE_WIDTH_MULTIPLE


@pytest.mark.parametrize("bucket", [bucket_count, bucket_width, power_of_two])
def test_a_bucket_holds_what_is_put_in_and_is_its_own_bucket(bucket) -> None:  # type: ignore[no-untyped-def]
    for count in range(1, 2000):
        assert bucket(count) >= count
        assert bucket(bucket(count)) == bucket(count)
        assert bucket(count) <= bucket(count + 1)


def test_buckets_are_few_and_waste_little() -> None:
    assert [bucket_count(count) for count in (1, 2, 3, 5, 17, 33, 64, 65, 257, 1024)] == [
        1, 2, 4, 8, 32, 64, 64, 96, 384, 1024]  # fmt: skip
    assert len({bucket_count(count) for count in range(1, 1025)}) < 24
    assert max(bucket_count(count) / count for count in range(64, 1025)) <= 1.5
    assert all(bucket_width(width) % SOURCE_WIDTH_MULTIPLE == 0 for width in range(1, 1000))
    assert power_of_two(0) == 1


def test_a_shape_is_recorded_when_it_has_come_back_often_enough() -> None:
    captures = Captures(limit=2, after=3)
    assert [captures.number("a") for _ in range(5)] == [None, None, None, 1, 1]
    assert [captures.number("b") for _ in range(4)] == [None, None, None, 2]
    assert [captures.number("c") for _ in range(9)] == [None] * 9, "no more than the limit"
    assert len(captures) == 2


def test_numbers_are_never_given_twice() -> None:
    """Another thread starts anew: onnxruntime keeps a thread's recordings with the thread."""
    captures = Captures(limit=1, after=0)
    assert captures.number("a") == 1
    captures.forget()
    assert captures.number("a") == 2


def test_a_set_that_is_held_is_not_given_away() -> None:
    made: list[int] = []
    sets: BufferSets[int, list[int]] = BufferSets(make=lambda size: made.append(size) or made, size=lambda size: size)
    _, first = sets.take(8)
    _, second = sets.take(8)
    assert first.number != second.number
    number = first.number
    del first
    _, third = sets.take(8)
    assert (third.number, len(made)) == (number, 2), "the free one again"
    _, other = sets.take(4)
    assert other.number not in (third.number, second.number)


def test_what_does_not_fit_belongs_to_its_holder_alone() -> None:
    made: list[int] = []
    sets: BufferSets[int, None] = BufferSets(make=made.append, size=lambda size: size, max_bytes=20, sets_per_shape=2)
    leases = [sets.take(8)[1] for _ in range(3)]
    assert [lease.number is None for lease in leases] == [False, False, True], "two of a shape"
    assert sets.take(8)[1].number is None
    assert sets.take(5)[1].number is None, "21 bytes in all"
    assert sets.take(4)[1].number is not None
    del leases
    assert sets.take(8)[1].number is not None
