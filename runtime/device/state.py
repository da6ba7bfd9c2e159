"""A decoder state that lies on a device, and what moves it about there.

Shapes: R rows, B sources, S source positions (runtime/stepper.py). Tensors are rounded up to buckets: [R', ...] and
[B', S', ...], where what is beyond R and B repeats the first row or source, and what is beyond the positions that there
were began as zero, which for a mask is invalid. Whatever a graph makes of these, no real row reads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import Provider, TensorSpec
from attendant.runtime.device.buckets import MAX_FIXED_BYTES, BufferSets, Lease, bucket_count, bucket_width
from attendant.runtime.device.graphs import ROWS, StateLayout, keep_name, pads_name, part_name, reordering_graph
from attendant.runtime.onnx.session import BoundSession, DeviceTensor
from attendant.runtime.stepper import Array, Ids


class TensorView:
    """A state tensor's real part: [:R] or [:B, :S] of what lies on the device. numpy reads it as an array."""

    def __init__(self, tensor: DeviceTensor, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._tensor.read()[tuple(slice(size) for size in self.shape)]
        return array if dtype is None else array.astype(dtype)


class HeldTensors(Mapping[str, TensorView]):
    """The tensors of one scope, [N', ...] or [N', S', ...]; their buffers are its own for as long as it lives.

    Attributes:
        count, width: N' and S', of the buffers.
        number: of the set of buffers; None: they are in no set.
    """

    def __init__(
        self,
        tensors: Mapping[str, DeviceTensor],
        axes: Mapping[str, int | None],
        lease: Lease,
        size: tuple[int, int],
        real_size: tuple[int, int],
    ) -> None:
        """`size` is (N', S') and `real_size` (N, S)."""
        self.tensors = tensors
        self.count, self.width = size
        self._axes = axes
        self._lease = lease
        self._real_size = real_size

    @property
    def number(self) -> int | None:
        return self._lease.number

    def __getitem__(self, name: str) -> TensorView:
        shape = list(self.tensors[name].shape)
        shape[0] = self._real_size[0]
        if (axis := self._axes[name]) is not None:
            shape[axis] = self._real_size[1]
        return TensorView(self.tensors[name], tuple(shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class StateScope:
    """The state tensors of one scope: allocates them, and reorders, joins and widens them where they lie."""

    def __init__(self, specs: Sequence[TensorSpec], provider: Provider, num_threads: int) -> None:
        """Specs of the step's inputs, whose first axis is N; there may be none."""
        self._specs = tuple(specs)
        self._provider: Provider = provider
        self._num_threads = num_threads
        self._axes = {spec.name: position_axis(spec) for spec in specs}
        self._has_positions = any(axis is not None for axis in self._axes.values())
        # Loaded here and not when first needed: while a session loads, standard error is held back.
        self._sessions = {num_parts: self._load(num_parts) for num_parts in (1, 2)} if specs else {}
        # One half is for the other scope.
        self._sets: BufferSets[tuple[int, int], dict[str, DeviceTensor]] = BufferSets(
            make=self._allocate, size=self._bytes, max_bytes=MAX_FIXED_BYTES // 2
        )

    def fits(self, held: HeldTensors, count: int, width: int) -> bool:
        """Whether the tensors have exactly these sizes."""
        return held.count == count and (held.width == width or not self._has_positions)

    def take(self, count: int, width: int) -> HeldTensors:
        """Tensors for so many entries and positions, rounded up to a bucket, whatever they hold: free ones of a set if
        there are any.
        """
        size = bucket_count(count), bucket_width(width)
        tensors, lease = self._sets.take((size[0], size[1] if self._has_positions else 0))
        return HeldTensors(tensors, self._axes, lease, size, (count, width))

    def new(self, count: int, width: int) -> HeldTensors:
        """Tensors of exactly these sizes, in no set."""
        sizes = (count, width)
        return HeldTensors(self._allocate(sizes), self._axes, Lease(None), sizes, sizes)

    def of_arrays(self, arrays: Mapping[str, Array], width: int) -> HeldTensors:
        """Tensors of a state, [N, ...] or [N, S, ...] by name, copied to the device in exactly these sizes."""
        count = len(next(iter(arrays.values())))
        held = self.new(count, width)
        for name, tensor in held.tensors.items():
            tensor.write(np.ascontiguousarray(arrays[name]))
        return held

    def reordered(self, parts: Sequence[HeldTensors], indices: Ids, width: int) -> HeldTensors:
        """Entries of one part, or of two joined, at `width` positions, in buffers of a bucket's sizes.

        Args:
            indices: [N] int64 into the parts' buffers, one behind another.
        """
        target = self.take(len(indices), width)
        if not self._specs:
            return target
        session = self._sessions[len(parts)]
        rows = np.full(target.count, indices[0], np.int64)
        rows[: len(indices)] = indices
        inputs: dict[str, DeviceTensor] = {}
        host_inputs: dict[str, Array] = {ROWS: rows}
        for place, part in enumerate(parts):
            inputs |= {part_name(name, place): tensor for name, tensor in part.tensors.items()}
            host_inputs |= self._fitting(place, part.width, target.width)
        session.run(session.bind(inputs, target.tensors, host_inputs))
        return target

    def _fitting(self, part: int, given: int, wanted: int) -> dict[str, Array]:
        """How many positions of a part stay, and how many zeros follow them."""
        if not self._has_positions:
            return {}
        keep = min(given, wanted)
        fitting: dict[str, Array] = {keep_name(part): np.array([keep], np.int64)}
        for spec in self._specs:
            if (axis := self._axes[spec.name]) is not None:
                rank = len(spec.shape)
                pads = np.zeros(2 * rank, np.int64)
                pads[rank + axis] = wanted - keep
                fitting[pads_name(rank, axis, part)] = pads
        return fitting

    def _load(self, num_parts: int) -> BoundSession:
        layouts = [
            StateLayout(name=spec.name, dtype=spec.dtype, rank=len(spec.shape), position_axis=self._axes[spec.name])
            for spec in self._specs
        ]
        graph = reordering_graph(layouts, num_parts)
        return BoundSession.of_bytes("reordering", graph, provider=self._provider, num_threads=self._num_threads)

    def _allocate(self, sizes: tuple[int, int]) -> dict[str, DeviceTensor]:
        return {spec.name: DeviceTensor(_sized(spec, *sizes), spec.dtype, self._provider) for spec in self._specs}

    def _bytes(self, sizes: tuple[int, int]) -> int:
        return sum(prod(_sized(spec, *sizes)) * np.dtype(spec.dtype).itemsize for spec in self._specs)


def _sized(spec: TensorSpec, count: int, width: int) -> tuple[int, ...]:
    """The shape with its symbols filled in: R or B, and S."""
    return tuple(size if isinstance(size, int) else width if size == "S" else count for size in spec.shape)
