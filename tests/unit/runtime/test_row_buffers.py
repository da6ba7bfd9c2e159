"""Rows that are moved: into which arrays, and what stands in them."""

import numpy as np

from attendant.runtime.onnx.row_buffers import RowBuffers

AXES = {"hidden": None, "coverage": 1}


def rows(*marks: int, width: int = 4) -> dict[str, np.ndarray]:
    """Tensors full of each row's mark."""
    filled = np.array(marks, np.float32)[:, None]
    return {"hidden": np.tile(filled, (1, 3)), "coverage": np.tile(filled, (1, width))}


def test_rows_are_reordered_repeated_and_dropped() -> None:
    found = RowBuffers().reordered(rows(5, 6, 7), np.array([2, 0, 0]))
    assert found["hidden"].tolist() == [[7] * 3, [5] * 3, [5] * 3]
    assert found["coverage"][:, 0].tolist() == [7, 5, 5]


def test_joining_pads_and_cuts_positions() -> None:
    found = RowBuffers().joined([rows(1, width=2), rows(2, 3)], AXES, 3)
    assert found["coverage"].tolist() == [[1, 1, 0], [2, 2, 2], [3, 3, 3]]
    assert found["hidden"].tolist() == [[1] * 3, [2] * 3, [3] * 3]


def test_only_what_was_released_is_written_to_again() -> None:
    buffers, order = RowBuffers(), np.array([1, 0])
    first = buffers.reordered(rows(1, 2), order)
    second = buffers.reordered(rows(3, 4), order)
    buffers.release(rows(1, 2))
    third = buffers.reordered(rows(5, 6), order)
    assert len({id(one["hidden"]) for one in (first, second, third)}) == 3
    buffers.release(first)
    fourth = buffers.reordered(rows(7, 8), order)
    assert fourth["hidden"] is first["hidden"]
    assert (second["hidden"][0, 0], third["hidden"][0, 0], fourth["hidden"][0, 0]) == (4, 6, 8)


def test_padding_of_arrays_that_are_used_again_is_zero() -> None:
    buffers = RowBuffers()
    full = buffers.joined([rows(9), rows(9)], AXES, 4)
    buffers.release(full)
    again = buffers.joined([rows(1, width=2), rows(2, width=1)], AXES, 4)
    assert again["coverage"] is full["coverage"]
    assert again["coverage"].tolist() == [[1, 1, 0, 0], [2, 0, 0, 0]]


def test_arrays_of_states_that_are_dropped_without_a_word_do_not_pile_up() -> None:
    buffers = RowBuffers()
    for _ in range(100):
        buffers.reordered(rows(1, 2), np.array([1, 0]))
    assert len(buffers._held) <= 4
