"""Runs that read and write arrays where they lie: what a caller holds stays, and what comes out is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attendant.runtime.onnx.bound_runs import MAX_BINDINGS, RunsInPlace
from attendant.runtime.onnx.stepper import OnnxStepper

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

    def bind_input(self, name: str, device: str, number: int, dtype: Any, shape: tuple[int, ...], address: int) -> None:
        self._session.bound.append(name)
        self._at[name] = dtype, shape, address

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
def double(session: DoublingSession) -> Callable[[Array, int], Array]:
    runs = RunsInPlace(session, {"y": "float32", "z": "int64"}, copied=["n"])

    def run(x: Array, n: int) -> Array:
        y, z = runs.run({"y": x.shape, "z": (1,)}, {"x": x, "n": np.array([n])})
        assert z.tolist() == [2 * n]
        return y

    return run


def test_what_is_held_is_not_written_to(double: Callable[[Array, int], Array]) -> None:
    x = np.array([1, 2, 3], np.float32)
    held = [double(x + number, number) for number in range(3 * MAX_BINDINGS)]
    assert [one.tolist() for one in held] == [(2 * (x + number)).tolist() for number in range(3 * MAX_BINDINGS)]


def test_a_view_holds_too(double: Callable[[Array, int], Array]) -> None:
    x = np.array([1, 2, 3], np.float32)
    held = [double(x + number, number)[1:] for number in range(3 * MAX_BINDINGS)]
    assert [one[0] for one in held] == [2 * (x[1] + number) for number in range(3 * MAX_BINDINGS)]


def test_a_chain_goes_to_and_fro_between_two_arrays(
    double: Callable[[Array, int], Array], session: DoublingSession
) -> None:
    x = np.ones(3, np.float32)
    places = []
    for number in range(8):
        x = double(x, number)
        places.append(x.ctypes.data)
    assert x.tolist() == [256] * 3
    assert session.num_plain == 1
    assert len(set(places[4:])) == 2
    # The copied ones keep their place.
    assert session.bound.count("n") == 2


def test_an_array_in_the_place_of_one_that_died_is_read(double: Callable[[Array, int], Array]) -> None:
    for number in range(50):
        # Small arrays get the memory, and the identity, of those that have just died.
        assert double(np.full(3, number, np.float32), number).tolist() == [2 * number] * 3


def test_other_shapes_in_turns(double: Callable[[Array, int], Array]) -> None:
    for number in range(4 * MAX_BINDINGS):
        size = 1 + number // 2 % (MAX_BINDINGS + 2)
        assert double(np.full(size, number, np.float32), number).tolist() == [2 * number] * size


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
