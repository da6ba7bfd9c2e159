"""Runs that read and write arrays where they lie: what a caller holds stays, and what comes out is the same."""

from typing import Any

import numpy as np
import pytest

from attendant.runtime.onnx.buffers import MAX_BINDINGS, BoundRuns
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Taken

Array = np.ndarray[Any, Any]


class DoublingSession:
    """A session of onnxruntime, which doubles: y = 2 x, z = 2 n."""

    def __init__(self) -> None:
        self.bound: list[str] = []
        self.num_plain = 0

    def run(self, names: list[str], inputs: dict[str, Array]) -> list[Array]:
        self.num_plain += 1
        return [2 * inputs["x"], 2 * inputs["n"]]

    def io_binding(self) -> "DoublingBinding":
        return DoublingBinding(self)

    def run_with_iobinding(self, binding: "DoublingBinding") -> None:
        for name, source in (("y", "x"), ("z", "n")):
            binding.at(name)[...] = 2 * binding.at(source)


class DoublingBinding:
    """Knows addresses only, as the real one."""

    def __init__(self, session: DoublingSession) -> None:
        self._session = session
        self._at: dict[str, tuple[Any, tuple[int, ...], int]] = {}
        self._held: dict[str, Array] = {}

    def bind_input(self, name: str, device: str, number: int, dtype: Any, shape: tuple[int, ...], address: int) -> None:
        self._session.bound.append(name)
        self._at[name] = dtype, shape, address

    def bind_cpu_input(self, name: str, array: Array) -> None:
        self._held[name] = array
        self.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def bind_output(
        self, name: str, device: str, number: int, dtype: Any, shape: tuple[int, ...], address: int
    ) -> None:
        self._at[name] = dtype, shape, address

    def at(self, name: str) -> Array:
        dtype, shape, address = self._at[name]
        interface = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (address, False), "version": 3}
        return np.asarray(type("Memory", (), {"__array_interface__": interface})())


@pytest.fixture
def session() -> DoublingSession:
    return DoublingSession()


@pytest.fixture
def runs(session: DoublingSession) -> BoundRuns:
    return BoundRuns(session, {"y": "float32", "z": "int64"}, copied=["n"])


def double(runs: BoundRuns, x: Array, n: int) -> Array:
    y, z = runs.run({"y": x.shape, "z": (1,)}, {"x": x, "n": np.array([n])})
    assert z.tolist() == [2 * n]
    return y


def test_what_is_not_released_is_not_written_to(runs: BoundRuns) -> None:
    x = np.array([1, 2, 3], np.float32)
    held = [double(runs, x + number, number) for number in range(3 * MAX_BINDINGS)]
    assert [one.tolist() for one in held] == [(2 * (x + number)).tolist() for number in range(3 * MAX_BINDINGS)]


def test_what_came_with_a_released_array_is_released_too(runs: BoundRuns, session: DoublingSession) -> None:
    x = np.array([1, 2, 3], np.float32)
    double(runs, x, 1)
    first = double(runs, x, 2)
    second = double(runs, x + 1, 3)
    runs.release(np.zeros(3))
    runs.release(first)
    third = double(runs, x + 2, 4)
    assert third is first and second is not first
    assert second.tolist() == (2 * (x + 1)).tolist()


def test_a_chain_goes_to_and_fro_between_two_arrays(runs: BoundRuns, session: DoublingSession) -> None:
    x = np.ones(3, np.float32)
    places = []
    for number in range(8):
        y = double(runs, x, number)
        runs.release(x)
        x = y
        places.append(x.ctypes.data)
    assert x.tolist() == [256] * 3
    assert session.num_plain == 1
    assert len(set(places[4:])) == 2
    # The copied ones keep their place.
    assert session.bound.count("n") == 2


def test_an_array_in_the_place_of_one_that_died_is_read(runs: BoundRuns) -> None:
    for number in range(50):
        # Small arrays get the memory, and the identity, of those that have just died.
        y = double(runs, np.full(3, number, np.float32), number)
        assert y.tolist() == [2 * number] * 3
        runs.release(y)


def test_other_shapes_in_turns(runs: BoundRuns) -> None:
    for number in range(4 * MAX_BINDINGS):
        size = 1 + number // 2 % (MAX_BINDINGS + 2)
        y = double(runs, np.full(size, number, np.float32), number)
        assert y.tolist() == [2 * number] * size
        runs.release(y)


def test_a_state_that_is_given_away_is_stepped_in_place_to_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids = [[4, 5, 3], [6, 7, 8, 9]], np.array([2, 2])
    state, given = tiny_stepper.encode(sources), tiny_stepper.encode(sources)
    places = set()
    for _ in range(8):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, given = tiny_stepper.step(Taken(given), ids, num_candidates=2)
        ids = expected.candidate_ids[:, 0]
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(given.row_tensors[name], tensor)
        places.add(given.row_tensors["hidden"].ctypes.data)
    assert len(places) <= 4, "after two runs of their own, two arrays take turns"


def test_a_state_that_is_kept_stays_as_it_is(tiny_stepper: OnnxStepper) -> None:
    state = tiny_stepper.encode([[4, 5, 3], [6, 7, 8, 9]])
    ids = np.array([2, 2])
    states, outputs = [state], []
    for _ in range(6):
        output, state = tiny_stepper.step(state, ids, num_candidates=2)
        ids = output.candidate_ids[:, 0]
        states.append(state)
        outputs.append(output)
    copies = [{name: tensor.copy() for name, tensor in one.row_tensors.items()} for one in states]
    ids = np.array([2, 2])
    for place, before in enumerate(outputs):
        again, after = tiny_stepper.step(states[place], ids, num_candidates=2)
        ids = before.candidate_ids[:, 0]
        assert np.array_equal(again.candidate_log_probs, before.candidate_log_probs)
        for name, tensor in copies[place + 1].items():
            assert np.array_equal(after.row_tensors[name], tensor)
            assert np.array_equal(states[place + 1].row_tensors[name], tensor)


def test_an_input_that_nobody_can_write_to_is_read_where_it_lies(runs: BoundRuns, session: DoublingSession) -> None:
    x, fixed = np.ones(3, np.float32), np.array([5])
    fixed.flags.writeable = False
    double(runs, x, 0)
    session.bound.clear()
    for number in (1, 2, 3):
        y, z = runs.run({"y": (3,), "z": (1,)}, {"x": x, "n": fixed})
        assert z.tolist() == [10]
        runs.release(y)
        y, z = runs.run({"y": (3,), "z": (1,)}, {"x": x, "n": fixed})
        runs.release(y)
        # Another one in between is copied, and does not stay in its place.
        runs.release(double(runs, x, number))
    assert session.bound.count("n") == 6, "twice for each change, and not for what stays"


def test_a_beam_that_reorders_goes_to_and_fro_to_the_same_bits(tiny_stepper: OnnxStepper) -> None:
    sources, ids, rows = [[4, 5, 3]], np.array([2, 2, 2]), np.array([2, 0, 0])
    state = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    given = tiny_stepper.select(tiny_stepper.encode(sources), np.zeros(3, np.int64))
    places = set()
    for _ in range(8):
        expected, state = tiny_stepper.step(state, ids, num_candidates=2)
        output, given = tiny_stepper.step(Taken(given), ids, num_candidates=2)
        assert np.array_equal(output.candidate_log_probs, expected.candidate_log_probs)
        ids = expected.candidate_ids[:, 0] + np.arange(3) % 2
        state, given = tiny_stepper.select(state, rows), tiny_stepper.select(Taken(given), rows)
        for name, tensor in state.row_tensors.items():
            assert np.array_equal(given.row_tensors[name], tensor)
        places.add(given.row_tensors["hidden"].ctypes.data)
    assert len(places) == 1, "reordered rows are written to the same arrays each time"
