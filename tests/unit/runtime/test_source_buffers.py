"""Room for newcomers: what is written where, and when those that stay are moved."""

import numpy as np
import pytest

from attendant.runtime.onnx.buffers import SourceBuffers, joined, used_part
from attendant.runtime.stepper import Ids

AXES = {"memory": 1, "keys": 2, "summary": None}
NOBODY: Ids = np.empty(0, np.int64)


def sources(*marks: int, width: int = 8) -> tuple[dict[str, np.ndarray], Ids]:
    """Tensors full of each source's mark: positions on the first, on the second and on no axis."""
    filled = np.array(marks, np.float32)[:, None, None]
    tensors = {
        "memory": np.tile(filled, (1, width, 3)),
        "keys": np.tile(filled, (1, 3, width)),
        "summary": np.tile(filled[:, 0], (1, 2)),
    }
    return tensors, np.full(len(marks), width, np.int64)


def buffers_with(*marks: int, width: int = 8, num_sources: int | None = None) -> SourceBuffers:
    tensors, lengths = sources(*marks)
    buffers = SourceBuffers(tensors, AXES, num_sources or len(marks), width)
    assert buffers.write(tensors, lengths, NOBODY).tolist() == list(range(len(marks)))
    return buffers


def marks_of(buffers: SourceBuffers) -> list[float]:
    tensors = buffers.tensors()
    first: list[float] = tensors["memory"][:, 0, 0].tolist()
    assert first == tensors["keys"][:, 0, 0].tolist() == tensors["summary"][:, 0].tolist()
    return first


def test_newcomers_take_free_slots_and_then_the_room_behind_the_last() -> None:
    buffers = buffers_with(1, 2, 3, 4)
    before = buffers.tensors()["memory"]
    tensors, lengths = sources(5, 6, 7)
    assert buffers.takes(2, lengths)
    assert buffers.write(tensors, lengths, np.array([1, 2])).tolist() == [1, 2, 4]
    assert marks_of(buffers) == [1, 5, 6, 4, 7]
    assert np.shares_memory(before, buffers.tensors()["memory"])


def test_free_slots_that_nobody_needs_stay_free() -> None:
    buffers = buffers_with(1, 2, 3)
    assert buffers.write(*sources(9), np.array([0, 2])).tolist() == [0]
    assert marks_of(buffers) == [9, 2, 3]


def test_what_is_passed_on_is_contiguous_and_not_copied() -> None:
    buffers = buffers_with(1, 2)
    for name, tensor in buffers.tensors().items():
        assert tensor.flags.c_contiguous, name
        assert np.shares_memory(tensor, buffers.tensors()[name])


def test_a_narrow_newcomer_leaves_nothing_of_a_wide_one() -> None:
    buffers = buffers_with(1, 2, width=16)
    wide, lengths = sources(3, 4, width=16)
    buffers.write(wide, lengths, np.array([0, 1]))
    buffers.write(*sources(5), np.array([1]))
    tensors = buffers.tensors()
    assert (tensors["memory"][1, :8] == 5).all() and (tensors["memory"][1, 8:] == 0).all()
    assert (tensors["keys"][1, :, :8] == 5).all() and (tensors["keys"][1, :, 8:] == 0).all()
    assert (tensors["memory"][0] == 3).all()


def test_there_is_no_room_for_too_many_or_too_long_ones() -> None:
    buffers = buffers_with(1, 2, 3, 4)  # room for six
    assert buffers.takes(0, np.array([8, 8]))
    assert not buffers.takes(0, np.array([8, 8, 8]))
    assert buffers.takes(1, np.array([8, 8, 8]))
    assert not buffers.takes(4, np.array([9]))


@pytest.mark.parametrize(
    ("lengths", "num_slots", "width", "expected"),
    [([8, 3], 2, 8, 1.0), ([8, 8, 8], 4, 8, 0.75), ([3, 5], 2, 16, 0.5)],
)
def test_cells_in_use_count_slots_and_positions(
    lengths: list[int], num_slots: int, width: int, expected: float
) -> None:
    assert used_part(np.array(lengths), num_slots, width) == expected


def test_joining_pads_and_cuts_positions() -> None:
    narrow, wide = np.ones((1, 2)), np.full((2, 4), 2.0)
    assert joined([narrow, wide], 1, 3).tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]
    assert joined([narrow, narrow], None, 7).tolist() == [[1, 1], [1, 1]]
