"""The state and steps on a device, tested on the CPU."""

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import TensorSpec
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.device.state import (
    ELEMENTS,
    ROWS,
    BufferSets,
    Captures,
    bucket_count,
    bucket_width,
    keep_name,
    pads_name,
    part_name,
    power_of_two,
    reordering_graph,
)
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.onnx.session import Binding, BoundSession, DeviceTensor, OnnxSession
from attendant.runtime.onnx.stepper import OnnxStepper
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


def test_forgotten_recordings_count() -> None:
    """Another thread starts again: onnxruntime keeps a thread's recordings with the thread, until the session ends."""
    captures = Captures(limit=2, after=0)
    assert captures.number("a") == 1
    captures.forget()
    assert captures.number("a") == 2
    captures.forget()
    assert captures.number("a") is None


def test_a_set_that_is_held_is_not_reused() -> None:
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


SPECS = [
    TensorSpec(name="cell", dtype="float32", shape=("R", 2, 3)),
    TensorSpec(name="memory", dtype="float16", shape=("B", "S", 4)),
    TensorSpec(name="mask", dtype="bool", shape=("B", "S")),
]


@pytest.mark.parametrize("num_parts", [1, 2])
def test_the_wire_format_is_onnx(num_parts: int) -> None:
    model = onnx.load_from_string(reordering_graph(SPECS, num_parts))
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["cell", "memory", "mask"]
    assert {node.op_type for node in model.graph.node} == {"Slice", "Pad", "Gather"} | (
        {"Concat"} if num_parts > 1 else set()
    )
    elements = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ELEMENTS}
    assert elements == ELEMENTS


@pytest.mark.parametrize("width", [2, 5, 9])
def test_parts_are_cut_padded_joined_and_gathered(width: int) -> None:
    random = np.random.default_rng(width)
    counts, widths, rows = (3, 4), (5, 3), np.array([6, 0, 0, 3])
    parts = [
        {
            "cell": random.normal(size=(count, 2, 3)).astype(np.float32),
            "memory": random.normal(size=(count, positions, 4)).astype(np.float16),
            "mask": random.random((count, positions)) < 0.5,
        }
        for count, positions in zip(counts, widths, strict=True)
    ]
    inputs: dict[str, DeviceTensor] = {}
    host: dict[str, np.ndarray] = {ROWS: rows}
    for number, part in enumerate(parts):
        keep = min(width, widths[number])
        host[keep_name(number)] = np.array([keep])
        for name, array in part.items():
            inputs[part_name(name, number)] = DeviceTensor(array.shape, str(array.dtype), "cpu")
            inputs[part_name(name, number)].write(array)
        for rank in (2, 3):
            pads = np.zeros(2 * rank, np.int64)
            pads[rank + 1] = width - keep
            host[pads_name(rank, 1, number)] = pads
    shapes = {"cell": (4, 2, 3), "memory": (4, width, 4), "mask": (4, width)}
    outputs = {name: DeviceTensor(shape, str(parts[0][name].dtype), "cpu") for name, shape in shapes.items()}
    session = BoundSession.of_bytes("reordering", reordering_graph(SPECS, 2), provider="cpu", num_threads=1)
    session.run(session.bind(inputs, outputs, host))
    for name, output in outputs.items():
        fitted = []
        for part in parts:
            array = part[name]
            if name != "cell":
                padding = [(0, 0), (0, max(0, width - array.shape[1])), *[(0, 0)] * (array.ndim - 2)]
                array = np.pad(array[:, :width], padding)
            fitted.append(array)
        assert np.array_equal(output.read(), np.concatenate(fitted)[rows]), name


def test_a_tensor_of_another_shape_is_our_own_mistake(tiny_stepper: OnnxStepper) -> None:
    with pytest.raises(AssertionError, match=r"int64\(3,\) is not int64\[2\]"):
        DeviceTensor((2,), "int64", "cpu").write(np.zeros(3, np.int64))


OPTIONS = DecodingOptions(max_length=12)
SOURCES = [[4, 5, 6, 7], [8, 9], [10, 4, 4]]


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the runs that were recorded or replayed, in order."""
    seen: list[int] = []
    run = BoundSession.run

    def watched(session: BoundSession, binding: Binding, capture: int | None = None) -> None:
        if capture is not None:
            seen.append(capture)
        run(session, binding, capture)

    monkeypatch.setattr(BoundSession, "run", watched)
    return seen


def decoded(path: Path, stepper: DeviceStepper) -> bool:
    """Returns True if decoding gives the plain stepper's answers."""
    bundle = open_bundle(path)
    ids = bundle.manifest.special_ids
    return decode_all(stepper, SOURCES, OPTIONS, ids) == decode_all(OnnxStepper(bundle), SOURCES, OPTIONS, ids)


def test_steps_are_recorded_when_their_shape_comes_back(tiny_bundle_path: Path, numbers: list[int]) -> None:
    stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu", captures=Captures(after=2))
    state = stepper.encode(SOURCES)
    ran = []
    for _ in range(10):
        numbers.clear()
        _, state = stepper.step(state, np.array([4, 5, 6]), num_candidates=1)
        ran.append(list(numbers))
    # Two sets of buffers take turns: each way is recorded by itself, and replayed at once to be checked.
    assert ran == [[], [], [], [], [1, 1], [2, 2], [1], [2], [1], [2]]


def test_nothing_is_recorded_when_it_is_switched_off(tiny_bundle_path: Path, numbers: list[int]) -> None:
    stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu", cuda_graphs=False)
    assert decoded(tiny_bundle_path, stepper)
    assert numbers == []


@pytest.mark.parametrize("fault", ["raises", "gives other values"])
def test_a_graph_that_can_not_be_recorded_is_run_as_it_is(
    fault: str, tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = BoundSession.run

    def faulty(session: BoundSession, binding: Binding, capture: int | None = None) -> None:
        if capture is not None and fault == "raises":
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing\nmore")
        run(session, binding, capture)
        if capture is not None:
            for tensor in binding.tensors:
                if tensor.dtype == "float32" and tensor.shape[-1] == 1 and len(tensor.shape) == 2:
                    tensor.write(tensor.read() + 1)

    monkeypatch.setattr(BoundSession, "run", faulty)
    stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu", captures=Captures(after=1))
    with caplog.at_level(logging.WARNING):
        assert decoded(tiny_bundle_path, stepper)
        assert decoded(tiny_bundle_path, stepper)
    (record,) = caplog.records
    reason = "CUDA failure 900" if fault == "raises" else "a replay gave other values"
    assert record.getMessage().startswith(f"CUDA graphs are off: {reason}")
    assert "more" not in record.getMessage()


def test_a_session_that_can_not_record_is_loaded_without(
    tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, numbers: list[int]
) -> None:
    """onnxruntime refuses at loading where a node has no CUDA kernel."""
    bound, calls = OnnxSession.bound, []

    def refusing(session: OnnxSession) -> BoundSession:
        calls.append(session.spec.file)
        if calls.count("fp32/decoder_step.onnx") == 1 and session.spec.file == "fp32/decoder_step.onnx":
            raise RuntimeError("This session cannot use the graph capture feature as requested by the user")
        return bound(session)

    monkeypatch.setattr(OnnxSession, "bound", refusing)
    with caplog.at_level(logging.WARNING):
        stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu", captures=Captures(after=0))
    assert [record.getMessage()[:20] for record in caplog.records] == ["CUDA graphs are off:"]
    assert decoded(tiny_bundle_path, stepper)
    assert numbers == []


def test_another_thread_records_again(tiny_bundle_path: Path, numbers: list[int]) -> None:
    """A server loads a model on one thread and decodes on another; onnxruntime keeps recordings by thread."""
    stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu", captures=Captures(after=0))
    assert decoded(tiny_bundle_path, stepper)
    here = set(numbers)
    numbers.clear()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(decoded(tiny_bundle_path, stepper)))
    thread.start()
    thread.join()
    assert results == [True]
    assert numbers and not here & set(numbers)


def test_ids_go_up_only_when_they_change(tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attendant.runtime.onnx.session import DeviceTensor

    written: list[tuple[int, ...]] = []
    write = DeviceTensor.write
    monkeypatch.setattr(DeviceTensor, "write", lambda self, array: (written.append(array.shape), write(self, array)))
    stepper = DeviceStepper(open_bundle(tiny_bundle_path), provider="cpu")
    state = stepper.encode(SOURCES)
    _, state = stepper.step(state, np.array([4, 5, 6]), num_candidates=1)
    written.clear()
    _, state = stepper.step(state, np.array([5, 5, 6]), num_candidates=1)
    assert written == [(4,)], "the previous ids, in the bucket of three rows"
