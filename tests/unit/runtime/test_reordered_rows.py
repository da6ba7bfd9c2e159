"""Reordered rows in arrays that are used again: what somebody holds stays."""

import numpy as np

from attendant.runtime.onnx.buffers import MAX_KEPT, ReorderedRows

FIRST = {"h": np.arange(6.0).reshape(3, 2), "c": np.arange(3)}
SECOND = {name: 10 + tensor for name, tensor in FIRST.items()}
ROWS = np.array([2, 0, 0])


def test_the_rows_come_in_that_order() -> None:
    taken = ReorderedRows().take(FIRST, ROWS)
    assert taken["h"].tolist() == [[4, 5], [0, 1], [0, 1]]
    assert taken["c"].tolist() == [2, 0, 0]


def test_released_arrays_are_written_to_again() -> None:
    reordered = ReorderedRows()
    first = reordered.take(FIRST, ROWS)
    reordered.release(first["c"])
    second = reordered.take(SECOND, ROWS)
    assert all(second[name] is first[name] for name in FIRST)
    assert second["h"].tolist() == [[14, 15], [10, 11], [10, 11]]


def test_arrays_that_are_held_are_not() -> None:
    reordered = ReorderedRows()
    held = [reordered.take(FIRST, ROWS) for _ in range(3 * MAX_KEPT)]
    reordered.release(np.zeros(3))
    for _ in range(MAX_KEPT):
        reordered.take(SECOND, ROWS)
    assert all(one["c"].tolist() == [2, 0, 0] for one in held)


def test_other_numbers_of_rows_in_turns() -> None:
    reordered = ReorderedRows()
    for number in range(4 * MAX_KEPT):
        rows = np.arange(1 + number % (MAX_KEPT + 1)) % 3
        taken = reordered.take(FIRST, rows)
        assert taken["c"].tolist() == rows.tolist()
        reordered.release(taken["h"])
