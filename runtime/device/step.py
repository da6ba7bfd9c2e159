"""One step of the decoder on a device: its buffers, and the recording of its kernels (CUDA graphs).

Shapes: R rows, B sources, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py), all
rounded up to a bucket.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.manifest import Provider, TensorSpec
from attendant.runtime.device.buckets import BufferSets, Captures, StepShape
from attendant.runtime.device.state import HeldTensors
from attendant.runtime.onnx.session import Binding, BoundSession, DeviceTensor
from attendant.runtime.stepper import NO_ID, Array, Ids

log = logging.getLogger(__name__)

FIRST_REPLAY_TOLERANCE = 2e-2
"""A recording's first replay against the same step without one: two roundings of fp16, never another buffer's state."""

MAX_STEP_BYTES = 2**28
"""Of all steps' inputs and outputs beside the state."""

Sets = tuple[int | None, int | None, int | None, int | None]
"""The sets of buffers of the step's own tensors, the sources, the rows that are read, and those that are written."""


class UploadedIds:
    """An input of ids on the device, which is written only when they change."""

    def __init__(self, shape: tuple[int, ...], fill: int, provider: Provider) -> None:
        self.tensor = DeviceTensor(shape, "int64", provider)
        self._there = np.full(shape, fill, np.int64)
        self._fill = fill
        self.tensor.write(self._there)

    def write(self, ids: Ids | None) -> None:
        """Takes ids int64 of at most the tensor's shape, along each axis; the rest is filled. None: all is filled."""
        wanted = np.full(self._there.shape, self._fill, np.int64)
        if ids is not None:
            wanted[tuple(slice(size) for size in ids.shape)] = ids
        if not np.array_equal(wanted, self._there):
            self._there = wanted
            self.tensor.write(wanted)


@dataclass(slots=True)
class StepBuffers:
    """What a step of one shape reads and writes beside the state."""

    ids: dict[str, UploadedIds]
    host_inputs: dict[str, Array]
    outputs: dict[str, DeviceTensor]
    bindings: dict[Sets, Binding] = field(default_factory=dict)


class DeviceStep:
    """Runs the step's graph in buffers that stay, and records and replays it where it may."""

    def __init__(
        self,
        load: Callable[[bool], BoundSession],
        inputs: tuple[TensorSpec, ...],
        following: Mapping[str, str],
        provider: Provider,
        captures: Captures | None,
    ) -> None:
        """Loads the graph.

        Args:
            load: the session, given whether its runs can be recorded.
            inputs: of the step graph.
            following: a row tensor's name -> the name under which the step returns it.
            captures: None: record nothing.
        """
        self._load = load
        self._inputs = {spec.name for spec in inputs}
        self._following = following
        self._provider: Provider = provider
        self._captures = captures
        self._checked: set[int] = set()
        self._thread = threading.get_ident()
        self._session = self._first_session()
        self._sets = self._new_sets()

    def run(
        self, shape: StepShape, ids: Mapping[str, Ids | None], sources: HeldTensors, rows: HeldTensors, to: HeldTensors
    ) -> dict[str, DeviceTensor]:
        """One step from `rows` to `to`.

        Args:
            ids: the inputs of ids by name, of at most the shape's sizes.

        Returns:
            The outputs beside the state; another step of the same shape writes over them.
        """
        buffers, lease = self._sets.take(shape)
        for name, uploaded in buffers.ids.items():
            uploaded.write(ids[name])
        key = (lease.number, sources.number, rows.number, to.number)
        captures = None if None in key else self._captures
        if captures is not None and self._thread != threading.get_ident():
            # onnxruntime keeps recordings by thread.
            self._thread = threading.get_ident()
            self._checked.clear()
            captures.forget()
        number = None if captures is None else captures.number(key)
        if number is None:
            self._session.run(self._binding(buffers, key, sources, rows, to))
        elif number in self._checked:
            self._session.run(self._binding(buffers, key, sources, rows, to), number)
        elif (reason := self._record(number, buffers, key, sources, rows, to)) is None:
            self._checked.add(number)
        else:
            self._stop_recording(reason)
            return self.run(shape, ids, sources, rows, to)
        return buffers.outputs

    def _record(
        self,
        number: int,
        buffers: StepBuffers,
        key: Sets,
        sources: HeldTensors,
        rows: HeldTensors,
        to: HeldTensors,
    ) -> str | None:
        """Records a step and replays it; returns why that can't be trusted, or None."""
        binding = self._binding(buffers, key, sources, rows, to)
        written = [*buffers.outputs.values(), *(to.tensors[name] for name in self._following)]

        def floats() -> list[Array]:
            return [tensor.read() for tensor in written if tensor.dtype.startswith("float")]

        self._session.run(binding)
        expected = floats()
        try:
            self._session.run(binding, number)
            self._session.run(binding, number)
        # onnxruntime's exceptions have no common base of their own.
        except Exception as error:
            return str(error).partition("\n")[0][:300]
        tolerance = FIRST_REPLAY_TOLERANCE
        for replayed, plain in zip(floats(), expected, strict=True):
            if not np.allclose(replayed, plain, rtol=tolerance, atol=tolerance, equal_nan=True):
                return "a replay gave other values than the step that was recorded"
        return None

    def _stop_recording(self, reason: str) -> None:
        """From now on every step is run as it is, by a session that never recorded."""
        log.warning("CUDA graphs are off: %s", reason)
        self._captures = None
        self._session = self._load(False)
        self._sets = self._new_sets()

    def _first_session(self) -> BoundSession:
        if self._captures is not None:
            try:
                return self._load(True)
            # Whatever it is: if it isn't the recording that can't be had, loading without says so again.
            except Exception as error:
                log.warning("CUDA graphs are off: %s", error)
                self._captures = None
        return self._load(False)

    def _binding(
        self, buffers: StepBuffers, key: Sets, sources: HeldTensors, rows: HeldTensors, to: HeldTensors
    ) -> Binding:
        if key in buffers.bindings:
            return buffers.bindings[key]
        inputs = {name: uploaded.tensor for name, uploaded in buffers.ids.items()}
        outputs = {**buffers.outputs, **{output: to.tensors[name] for name, output in self._following.items()}}
        binding = self._session.bind({**inputs, **sources.tensors, **rows.tensors}, outputs, buffers.host_inputs)
        if None not in key:
            buffers.bindings[key] = binding
        return binding

    def _new_sets(self) -> BufferSets[StepShape, StepBuffers]:
        return BufferSets(make=self._allocate, size=_bytes, max_bytes=MAX_STEP_BYTES, sets_per_shape=1)

    def _allocate(self, shape: StepShape) -> StepBuffers:
        shapes = {
            graph_io.PREVIOUS_IDS: ((shape.rows,), 0),
            graph_io.FORCED_IDS: ((shape.rows,), NO_ID),
            graph_io.BANNED_IDS: ((shape.rows, shape.bans), NO_ID),
            graph_io.SOURCE_ROWS: ((shape.sources, shape.queries), 0),
            graph_io.ROW_SLOTS: ((shape.rows,), 0),
        }
        provider = self._provider
        outputs = {
            graph_io.CANDIDATE_LOG_PROBS: DeviceTensor((shape.rows, shape.candidates), "float32", provider),
            graph_io.CANDIDATE_IDS: DeviceTensor((shape.rows, shape.candidates), "int64", provider),
            graph_io.FORCED_LOG_PROBS: DeviceTensor((shape.rows,), "float32", provider),
        }
        if graph_io.SOURCE_ROWS in self._inputs:
            outputs[graph_io.ATTENTION] = DeviceTensor((shape.rows, shape.width), "float32", provider)
        return StepBuffers(
            ids={
                name: UploadedIds(sizes, fill, provider)
                for name, (sizes, fill) in shapes.items()
                if name in self._inputs
            },
            host_inputs={graph_io.NUM_CANDIDATES: np.array([shape.candidates], np.int64)},
            outputs=outputs,
        )


def _bytes(shape: StepShape) -> int:
    """All inputs and outputs of a step beside the state."""
    per_row = 8 * (4 + shape.bans) + 12 * shape.candidates + 4 * shape.width
    return shape.rows * per_row + 8 * shape.sources * shape.queries
