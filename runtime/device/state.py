"""A decoder state on a device: the buckets of its shapes, its buffers, and the graphs that reorder it there.

Shapes: R rows, B sources, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py). Tensors
are rounded up to buckets: [R', ...] and [B', S', ...]. Entries beyond R and B repeat the first row or source. Positions
that are added begin as zero, which means invalid in a mask. No real row reads results of added entries or positions.

A CUDA graph is a recording of kernels with the addresses and sizes that they were launched with. So shapes are rounded
up to buckets, tensors stay in their buffers, and every combination of buffers that a step reads and writes has a
recording of its own: one recording for two of them would read the state of the step before last
(https://github.com/microsoft/onnxruntime-genai/issues/2446).

The server has no ONNX library, and no bundle needs to carry the reordering graphs: a handful of nodes is written here
in ONNX's own wire format (https://protobuf.dev/programming-guides/encoding/, field numbers of onnx/onnx.proto). For
each state tensor, with P parts:

    part p [n_p, ...] -> Slice to `keep` positions -> Pad by `pads`      only with an axis of positions
    Gather(Concat(parts), rows) [len(rows), ...]

`rows`, `keep` and `pads` are inputs, so one session serves every shape.
"""

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Generic, TypeVar

import numpy as np

from attendant.runtime.bundle.graph_content import message_field, number_field, text_field
from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import Provider, TensorSpec
from attendant.runtime.onnx.session import BoundSession, DeviceTensor
from attendant.runtime.onnx.stepper import narrowed
from attendant.runtime.stepper import Array, Ids

Key = TypeVar("Key", bound=Hashable)
Content = TypeVar("Content")

MAX_CAPTURES: Final = 64
"""onnxruntime keeps a recording until the session ends. Each takes some megabytes of the device's memory."""

CAPTURE_AFTER: Final = 16
"""Steps of one shape in the same buffers before it is recorded: rare shapes are not worth it."""

MAX_COUNTED: Final = 4096
"""Shapes whose steps are counted; beyond that, counting starts again."""

SETS_PER_SHAPE: Final = 3
"""Sets of buffers: a step reads one and writes another while its caller may still hold the state before."""

MAX_FIXED_BYTES: Final = 2 * 2**30
"""Limit of all kept buffers; beyond that, steps allocate their own and are not recorded."""


def bucket_count(count: int) -> int:
    """Rounds up rows or sources: powers of two to 32, then steps of 32 to 256, then of 128."""
    if count <= 32:
        return power_of_two(count)
    return _multiple(count, 32 if count <= 256 else 128)


def bucket_width(width: int) -> int:
    """Rounds up source positions: steps of 8 to 32, of 16 to 64, of 32 to 256, then of 64; always a multiple of 8."""
    step = 8 if width <= 32 else 16 if width <= 64 else 32 if width <= 256 else 64
    return _multiple(width, step)


def power_of_two(count: int) -> int:
    """Returns the least power of two that is not below `count`; 1 for 0."""
    return 1 << max(0, count - 1).bit_length()


def _multiple(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of one step, rounded up, for which its recording is valid.

    Attributes:
        rows, sources, width, queries, candidates, bans: R, B, S, M, K and N.
    """

    rows: int
    sources: int
    width: int
    queries: int
    candidates: int
    bans: int


class Captures:
    """The numbers of steps' recordings, at most `limit`, forgotten ones too: each is kept until the session ends.

    A key contains everything on which a recording depends: the shape, and each set of buffers.
    """

    def __init__(self, limit: int = MAX_CAPTURES, after: int = CAPTURE_AFTER) -> None:
        self._limit, self._after = limit, after
        self._num_made = 0
        self._known: dict[Hashable, int] = {}
        self._uses: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def number(self, key: Hashable) -> int | None:
        """Returns the number of the key's recording, to record or to replay; None to run without one."""
        if key in self._known:
            return self._known[key]
        if self._num_made >= self._limit:
            return None
        if len(self._uses) >= MAX_COUNTED:
            self._uses.clear()
        self._uses[key] += 1
        if self._uses[key] <= self._after:
            return None
        del self._uses[key]
        self._num_made += 1
        self._known[key] = self._num_made
        return self._num_made

    def forget(self) -> None:
        """Forgets all recordings, which belong to a thread. No number is used twice."""
        self._known.clear()
        self._uses.clear()


class Lease:
    """Holds a set of buffers as long as the lease is referenced.

    Attributes:
        number: of the set, unique; None if the buffers belong to no set, and are freed with the lease.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int | None) -> None:
        self.number = number


@dataclass(slots=True)
class _Set(Generic[Content]):
    content: Content
    number: int
    holder: weakref.ref[Lease] | None = None

    @property
    def free(self) -> bool:
        return self.holder is None or self.holder() is None


@dataclass(slots=True)
class BufferSets(Generic[Key, Content]):
    """Sets of buffers by shape. Free ones are used again.

    A state that is still referenced is never overwritten: its lease keeps its set.

    Attributes:
        make: allocates a set of a shape.
        size: the bytes of a set of a shape.
    """

    make: Callable[[Key], Content]
    size: Callable[[Key], int]
    max_bytes: int = MAX_FIXED_BYTES
    sets_per_shape: int = SETS_PER_SHAPE
    _sets: dict[Key, list[_Set[Content]]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _bytes: int = 0

    def take(self, key: Key) -> tuple[Content, Lease]:
        """Returns a free set, the first of its shape, or a new one.

        If there are enough sets of the shape, or in total, the buffers belong to no set.
        """
        sets = self._sets.get(key, [])
        taken = next((each for each in sets if each.free), None)
        if taken is None:
            size = self.size(key)
            if len(sets) >= self.sets_per_shape or self._bytes + size > self.max_bytes:
                return self.make(key), Lease(None)
            taken = _Set(self.make(key), next(self._numbers))
            self._sets.setdefault(key, []).append(taken)
            self._bytes += size
        lease = Lease(taken.number)
        taken.holder = weakref.ref(lease)
        return taken.content, lease


ROWS: Final = "rows"
IR_VERSION: Final = 10
OPSET: Final = 20

FLOAT, BOOL, UINT8, INT64, FLOAT16 = 1, 9, 2, 7, 10
ELEMENTS: Final = {"float32": FLOAT, "float16": FLOAT16, "bool": BOOL, "int64": INT64, "uint8": UINT8}
"""numpy's name -> TensorProto.DataType."""

INTEGER_ATTRIBUTE: Final = 2
"""AttributeProto.AttributeType.INT."""


def part_name(name: str, part: int) -> str:
    return f"{name}.{part}"


def keep_name(part: int) -> str:
    """Returns the name of the number of positions of a part that are kept [1]."""
    return f"keep.{part}"


def pads_name(rank: int, axis: int, part: int) -> str:
    """Returns the name of the zeros before and after each axis of a part's tensors [2 * rank], as Pad takes them."""
    return f"pads.{rank}.{axis}.{part}"


def reordering_graph(specs: Sequence[TensorSpec], num_parts: int) -> bytes:
    """Returns an ONNX model for these tensors; its inputs are `rows`, the parts, and `keep` and `pads` if needed."""
    shapes = sorted({(len(spec.shape), axis) for spec in specs if (axis := position_axis(spec)) is not None})
    inputs, nodes = [_value(ROWS, INT64, 1)], list[bytes]()
    for part in range(num_parts):
        inputs += [_value(part_name(spec.name, part), ELEMENTS[spec.dtype], len(spec.shape)) for spec in specs]
        inputs += [_value(keep_name(part), INT64, 1)] if shapes else []
        inputs += [_value(pads_name(rank, axis, part), INT64, 1) for rank, axis in shapes]
    for spec in specs:
        parts, axis = [part_name(spec.name, part) for part in range(num_parts)], position_axis(spec)
        for part, name in enumerate(parts):
            if axis is not None:
                cut, padded = f"{name}.cut", f"{name}.padded"
                nodes.append(_node("Slice", [name, "zero", keep_name(part), _axis_name(axis)], cut))
                nodes.append(_node("Pad", [cut, pads_name(len(spec.shape), axis, part)], padded))
                parts[part] = padded
        joined = parts[0]
        if num_parts > 1:
            joined = f"{spec.name}.joined"
            nodes.append(_node("Concat", parts, joined, axis=0))
        nodes.append(_node("Gather", [joined, ROWS], spec.name, axis=0))
    axes = sorted({axis for _, axis in shapes})
    constants = [_constant("zero", 0), *(_constant(_axis_name(axis), axis) for axis in axes)] if axes else []
    outputs = [_value(spec.name, ELEMENTS[spec.dtype], len(spec.shape)) for spec in specs]
    return _model(nodes, constants, inputs, outputs)


def _axis_name(axis: int) -> str:
    return f"axis.{axis}"


def _model(
    nodes: Sequence[bytes], constants: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]
) -> bytes:
    graph = b"".join(
        [
            *(message_field(1, node) for node in nodes),
            text_field(2, "reordering"),
            *(message_field(5, constant) for constant in constants),
            *(message_field(11, value) for value in inputs),
            *(message_field(12, value) for value in outputs),
        ]
    )
    opset = message_field(8, text_field(1, "") + number_field(2, OPSET))
    return number_field(1, IR_VERSION) + message_field(7, graph) + opset


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> bytes:
    """Returns a NodeProto: input 1, output 2, name 3, op_type 4, attribute 5."""
    described = [
        message_field(5, text_field(1, name) + number_field(3, value) + number_field(20, INTEGER_ATTRIBUTE))
        for name, value in attributes.items()
    ]
    named = [text_field(2, output), text_field(3, output), text_field(4, operator)]
    return b"".join([*(text_field(1, name) for name in inputs), *named, *described])


def _constant(name: str, value: int) -> bytes:
    """Returns a TensorProto of one int64: dims 1, data_type 2, int64_data 7, name 8."""
    return number_field(1, 1) + number_field(2, INT64) + number_field(7, value) + text_field(8, name)


def _value(name: str, element: int, rank: int) -> bytes:
    """Returns a ValueInfoProto: name 1, type 2 {tensor_type 1 {elem_type 1, shape 2 {dim 1, each without a size}}}."""
    shape = b"".join(message_field(1, b"") for _ in range(rank))
    return text_field(1, name) + message_field(2, message_field(1, number_field(1, element) + message_field(2, shape)))


class HeldTensors(Mapping[str, Array]):
    """The tensors of one scope, [N', ...] or [N', S', ...], whose buffers it holds.

    As a mapping, it reads the real part of each tensor: [:N] or [:N, :S].

    Attributes:
        count, width: N' and S', of the buffers.
        number: of the set of buffers; None if they are in no set.
    """

    def __init__(
        self,
        tensors: Mapping[str, DeviceTensor],
        axes: Mapping[str, int | None],
        lease: Lease,
        size: tuple[int, int],
        real_size: tuple[int, int],
    ) -> None:
        """Holds the tensors. `size` is (N', S') and `real_size` (N, S)."""
        self.tensors = tensors
        self.count, self.width = size
        self._axes = axes
        self._lease = lease
        self._real_size = real_size

    @property
    def number(self) -> int | None:
        return self._lease.number

    def __getitem__(self, name: str) -> Array:
        count, width = self._real_size
        return narrowed(self.tensors[name].read()[:count], self._axes[name], width)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class StateScope:
    """The state tensors of one scope: allocates them, and reorders, joins and widens them on the device."""

    def __init__(self, specs: Sequence[TensorSpec], provider: Provider, num_threads: int) -> None:
        """Specs of the step's inputs, whose first axis is N; there may be none."""
        self._specs = tuple(specs)
        self._provider: Provider = provider
        self._num_threads = num_threads
        self._axes = {spec.name: position_axis(spec) for spec in specs}
        self._has_positions = any(axis is not None for axis in self._axes.values())
        # Loaded now and not when first needed: loading a session captures standard error.
        self._sessions = {num_parts: self._load(num_parts) for num_parts in (1, 2)} if specs else {}
        # The other half is for the other scope.
        self._sets: BufferSets[tuple[int, int], dict[str, DeviceTensor]] = BufferSets(
            make=self._allocate, size=self._bytes, max_bytes=MAX_FIXED_BYTES // 2
        )

    def fitted(self, held: HeldTensors, count: int, width: int) -> HeldTensors:
        """Returns the tensors in buffers of the bucket of `count` entries and `width` positions."""
        if held.count == bucket_count(count) and (held.width == bucket_width(width) or not self._has_positions):
            return held
        return self.reordered([held], np.arange(count, dtype=np.int64), width)

    def take(self, count: int, width: int) -> HeldTensors:
        """Returns uninitialized tensors for `count` entries and `width` positions, rounded up to a bucket."""
        size = bucket_count(count), bucket_width(width)
        tensors, lease = self._sets.take((size[0], size[1] if self._has_positions else 0))
        return HeldTensors(tensors, self._axes, lease, size, (count, width))

    def new(self, count: int, width: int) -> HeldTensors:
        """Returns tensors of exactly these sizes, in no set."""
        sizes = (count, width)
        return HeldTensors(self._allocate(sizes), self._axes, Lease(None), sizes, sizes)

    def of_arrays(self, arrays: Mapping[str, Array], width: int) -> HeldTensors:
        """Copies a state's arrays, [N, ...] or [N, S, ...] by name, to the device in exactly these sizes."""
        count = len(next(iter(arrays.values())))
        held = self.new(count, width)
        for name, tensor in held.tensors.items():
            tensor.write(np.ascontiguousarray(arrays[name]))
        return held

    def reordered(self, parts: Sequence[HeldTensors], indices: Ids, width: int) -> HeldTensors:
        """Returns entries of one part, or of two joined, at `width` positions, in buffers of a bucket's sizes.

        Args:
            indices: [N] int64 into the parts' buffers, one after the other.
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

    def _fitting(self, part: int, width: int, wanted: int) -> dict[str, Array]:
        """Returns the inputs that cut or pad a part from `width` to `wanted` positions."""
        if not self._has_positions:
            return {}
        keep = min(width, wanted)
        fitting: dict[str, Array] = {keep_name(part): np.array([keep], np.int64)}
        for spec in self._specs:
            if (axis := self._axes[spec.name]) is not None:
                rank = len(spec.shape)
                pads = np.zeros(2 * rank, np.int64)
                pads[rank + axis] = wanted - keep
                fitting[pads_name(rank, axis, part)] = pads
        return fitting

    def _load(self, num_parts: int) -> BoundSession:
        graph = reordering_graph(self._specs, num_parts)
        return BoundSession.of_bytes("reordering", graph, provider=self._provider, num_threads=self._num_threads)

    def _allocate(self, sizes: tuple[int, int]) -> dict[str, DeviceTensor]:
        return {spec.name: DeviceTensor(_sized(spec, *sizes), spec.dtype, self._provider) for spec in self._specs}

    def _bytes(self, sizes: tuple[int, int]) -> int:
        return sum(prod(_sized(spec, *sizes)) * np.dtype(spec.dtype).itemsize for spec in self._specs)


def _sized(spec: TensorSpec, count: int, width: int) -> tuple[int, ...]:
    """Returns the shape with its symbols replaced: R or B, and S."""
    return tuple(size if isinstance(size, int) else width if size == "S" else count for size in spec.shape)
