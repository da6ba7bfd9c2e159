"""Tests of arrays reused by runs, reorderings and sources: arrays in use stay unchanged, and so do the results."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from attendant.runtime.onnx.session import MAX_BINDINGS, MIN_REPEATS, BoundRuns
from attendant.runtime.onnx.stepper import OnnxStepper, SourceBuffers, joined
from attendant.runtime.stepper import Ids, Taken

Array = np.ndarray[Any, Any]


@pytest.fixture
def runs() -> BoundRuns:
    """Returns runs of a graph that doubles: y = 2 x, z = 2 n."""
    values = {"x": TensorProto.FLOAT, "n": TensorProto.INT64, "y": TensorProto.FLOAT, "z": TensorProto.INT64}
    x, n, y, z = (helper.make_tensor_value_info(name, kind, [name]) for name, kind in values.items())
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Add", ["n", "n"], ["z"])]
    model = helper.make_model(
        helper.make_graph(nodes, "double", [x, n], [y, z]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return BoundRuns(session, {"y": "float32", "z": "int64"}, copied=["n"])


def double(runs: BoundRuns, x: Array, n: int) -> Array:
    y, z = runs.run({"y": x.shape, "z": (1,)}, {"x": x, "n": np.array([n])})
    assert z.tolist() == [2 * n]
    return y


def warm_up(runs: BoundRuns, x: Array) -> None:
    """Runs these shapes until the next run binds them."""
    for _ in range(MIN_REPEATS):
        double(runs, x, 0)


def test_arrays_that_are_not_released_are_not_overwritten(runs: BoundRuns) -> None:
    x = np.array([1, 2, 3], np.float32)
    held = [double(runs, x + number, number) for number in range(3 * MAX_BINDINGS + MIN_REPEATS)]
    assert [array.tolist() for array in held] == [
        (2 * (x + number)).tolist() for number in range(3 * MAX_BINDINGS + MIN_REPEATS)
    ]


def test_a_chain_of_runs_alternates_between_two_arrays(runs: BoundRuns) -> None:
    x = np.ones(3, np.float32)
    warm_up(runs, x)
    places = []
    for number in range(8):
        y = double(runs, x, number)
        runs.release(x)
        x = y
        places.append(x.ctypes.data)
    assert x.tolist() == [256] * 3
    assert len(set(places[4:])) == 2


def test_a_new_array_at_a_freed_arrays_address_is_read(runs: BoundRuns) -> None:
    for number in range(50):
        # A small array gets the memory, and the identity, of one that was just freed.
        y = double(runs, np.full(3, number, np.float32), number)
        assert y.tolist() == [2 * number] * 3
        runs.release(y)


def test_alternating_shapes_have_correct_results(runs: BoundRuns) -> None:
    for number in range(4 * MAX_BINDINGS * (MIN_REPEATS + 2)):
        size = 1 + number // (MIN_REPEATS + 2) % (MAX_BINDINGS + 2)
        y = double(runs, np.full(size, number, np.float32), number)
        assert y.tolist() == [2 * number] * size
        runs.release(y)


def test_a_transferred_state_is_stepped_in_place_to_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids = [[4, 5, 3], [6, 7, 8, 9]], np.array([2, 2])
    state, reused = tiny_stepper.encode(sources), tiny_stepper.encode(sources)
    places = set()
    for _ in range(MIN_REPEATS + 6):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, reused = tiny_stepper.step(Taken(reused), ids, num_candidates=2)
        ids = expected.candidate_ids[:, 0]
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(reused.row_tensors[name], tensor)
        places.add(reused.row_tensors["hidden"].ctypes.data)
    assert len(places) <= MIN_REPEATS + 2, "after the first runs, two arrays take turns"


def test_a_kept_state_is_never_changed_by_later_steps(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([[4, 5, 3], [6, 7, 8, 9]])
    ids = np.array([2, 2])
    states, outputs = [state], []
    for _ in range(MIN_REPEATS + 4):
        output, state = tiny_stepper.step(state, ids, num_candidates=2)
        ids = output.candidate_ids[:, 0]
        states.append(state)
        outputs.append(output)
    copies = [{name: tensor.copy() for name, tensor in kept.row_tensors.items()} for kept in states]
    ids = np.array([2, 2])
    for place, before in enumerate(outputs):
        again, after = tiny_stepper.step(states[place], ids, num_candidates=2)
        ids = before.candidate_ids[:, 0]
        assert np.array_equal(again.candidate_log_probs, before.candidate_log_probs)
        for name, tensor in copies[place + 1].items():
            assert np.array_equal(after.row_tensors[name], tensor)
            assert np.array_equal(states[place + 1].row_tensors[name], tensor)


def test_a_reordering_beam_reuses_arrays_with_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids, rows = [[4, 5, 3]], np.array([2, 2, 2]), np.array([2, 0, 0])
    state = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    reused = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    places = set()
    for _ in range(8):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, reused = tiny_stepper.step(Taken(reused), ids, num_candidates=2)
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        ids = expected.candidate_ids[:, 0] + np.arange(3) % 2
        state, reused = tiny_stepper.select(state, rows), tiny_stepper.select(Taken(reused), rows)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(reused.row_tensors[name], tensor)
        places.add(reused.row_tensors["hidden"].ctypes.data)
    assert len(places) == 1, "reordered rows are written to the same arrays each time"


AXES = {"memory": 1, "keys": 2, "summary": None}
NOBODY: Ids = np.empty(0, np.int64)


def sources(*marks: int, width: int = 8) -> tuple[dict[str, np.ndarray], Ids]:
    """Returns tensors filled with each source's mark, with positions on axis 1, on axis 2 and on no axis."""
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


def test_new_sources_take_free_slots_and_then_room_after_the_last() -> None:
    buffers = buffers_with(1, 2, 3, 4)
    before = buffers.tensors()["memory"]
    tensors, lengths = sources(5, 6, 7)
    assert buffers.takes(2, lengths)
    assert buffers.write(tensors, lengths, np.array([1, 2])).tolist() == [1, 2, 4]
    assert marks_of(buffers) == [1, 5, 6, 4, 7]
    assert np.shares_memory(before, buffers.tensors()["memory"])


def test_a_narrow_new_source_overwrites_all_of_a_wide_one() -> None:
    buffers = buffers_with(1, 2, width=16)
    wide, lengths = sources(3, 4, width=16)
    buffers.write(wide, lengths, np.array([0, 1]))
    buffers.write(*sources(5), np.array([1]))
    tensors = buffers.tensors()
    assert (tensors["memory"][1, :8] == 5).all() and (tensors["memory"][1, 8:] == 0).all()
    assert (tensors["keys"][1, :, :8] == 5).all() and (tensors["keys"][1, :, 8:] == 0).all()
    assert (tensors["memory"][0] == 3).all()


def test_there_is_no_room_for_too_many_or_too_long_sources() -> None:
    buffers = buffers_with(1, 2, 3, 4)  # room for six
    assert buffers.takes(0, np.array([8, 8]))
    assert not buffers.takes(0, np.array([8, 8, 8]))
    assert buffers.takes(1, np.array([8, 8, 8]))
    assert not buffers.takes(4, np.array([9]))


def test_joining_pads_and_cuts_positions() -> None:
    narrow, wide = np.ones((1, 2)), np.full((2, 4), 2.0)
    assert joined([narrow, wide], 1, 3).tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]
    assert joined([narrow, narrow], None, 7).tolist() == [[1, 1], [1, 1]]
