"""Recording: what is recorded when, and what happens where it can't be. CUDA is played by the CPU provider."""

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.device.state import Captures
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.onnx.session import Binding, BoundSession, OnnxSession
from attendant.runtime.onnx.stepper import OnnxStepper

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
    """Whether decoding gives what the plain stepper gives."""
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


def test_another_thread_records_anew(tiny_bundle_path: Path, numbers: list[int]) -> None:
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
