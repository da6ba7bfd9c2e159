"""Arrays that steps write again and again, on the CPU: outputs of runs, reordered rows, and the sources of a batch.

A step of a small batch takes a fraction of a millisecond. Handing over arrays takes a third of it: each is looked up by
its name, wrapped, and every output copied. A binding remembers the arrays of its last run, and the next run hands over
only those that have changed. While rows neither join nor leave, two bindings alternate: each reads what the other has
written, so only the ids change, which are copied. A run's outputs belong to the caller until the caller releases them.
A beam reorders its rows at every step: into the same arrays each time, so that bindings stay valid.

Shapes of sources: N slots, S source positions. Memory and keys are most of a decoder's state, and never change. Each
source has a slot. A source that leaves frees its slot, and a new one is written into a free slot or into the spare room
after the last. Computation over free slots is wasted: when they, and positions beyond every source's length, exceed a
part of all cells, the remaining sources are moved together.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendant.runtime.stepper import Array, Ids, common_width

Shape = tuple[int, ...]

MAX_BINDINGS = 4
"""Two for each of two batches that are stepped in turns."""

MIN_REPEATS = 4
"""Runs of the same shapes in a row before they are bound. A new binding takes as long as binding saves in two to three
runs, and under load the number of rows changes every few steps."""

MAX_HELD_BYTES = 1 << 20
"""A binding keeps inputs up to this size alive until it gets others: onnxruntime binds an array in a quarter of the
time that it takes to bind an address. Large ones, the sources of a whole batch, are bound by their address."""

MAX_KEPT = 4
"""Sets of reordered rows: one for each of the batches that are stepped in turns, and some while their rows change in
number."""

MIN_USED = 0.75
"""Share of the cells (slots x positions): with less in use, moving together costs less than a few steps over the
waste."""

GROWTH = 1.5
"""Slots of new arrays per source: room that was never written takes no memory."""


@dataclass(slots=True)
class _ArraySet:
    """Arrays of certain shapes, and the object that owns them.

    Attributes:
        array_ids: Python's ids of the arrays, which the owner keeps alive.
    """

    shapes: Any
    array_ids: frozenset[int]
    owner: Any
    is_free: bool = False


class _ArrayPool:
    """The last few sets of arrays. A set is in use until one of its arrays is released."""

    def __init__(self, max_sets: int) -> None:
        self._max_sets = max_sets
        # The set that was used last comes first.
        self._sets: list[_ArraySet] = []

    def release(self, array: Array) -> None:
        """Frees the set that has this array; ignores an array of no set."""
        for each in self._sets:
            if id(array) in each.array_ids:
                each.is_free = True
                return

    def _take(self, shapes: Any) -> Any:
        """Returns the owner of a free set of these shapes, which is in use from now on; None if there is none."""
        for place, each in enumerate(self._sets):
            if each.is_free and each.shapes == shapes:
                if place:  # the set that was not used for longest is dropped first
                    self._sets.insert(0, self._sets.pop(place))
                each.is_free = False
                return each.owner
        return None

    def _add(self, shapes: Any, arrays: Iterable[Array], owner: Any) -> None:
        """Keeps a new set, which is in use."""
        del self._sets[self._max_sets - 1 :]
        self._sets.insert(0, _ArraySet(shapes, frozenset(map(id, arrays)), owner))


class BoundRuns(_ArrayPool):
    """The bindings of one session, for outputs of the shapes that were requested last."""

    def __init__(self, session: Any, dtypes: Mapping[str, str], copied: Collection[str]) -> None:
        """Wraps a session of onnxruntime on the CPU.

        Args:
            dtypes: of the outputs, by name.
            copied: small inputs that are usually other arrays each time; they are copied unless they are read-only. All
                others must be contiguous.
        """
        super().__init__(MAX_BINDINGS)
        self._session = session
        self._dtypes = dtypes
        self._copied = frozenset(copied)
        self._last: Mapping[str, Shape] = {}
        self._num_repeats = 0

    def run(self, shapes: Mapping[str, Shape], inputs: Mapping[str, Array]) -> list[Array]:
        """Returns the outputs of these names, which will have these shapes, in order."""
        binding: _Binding | None = self._take(shapes)
        if binding is None:
            self._num_repeats = self._num_repeats + 1 if shapes == self._last else 0
            self._last = shapes
            if self._num_repeats < MIN_REPEATS:
                return list(self._session.run(list(shapes), inputs))
            binding = _Binding(self._session, shapes, self._dtypes, self._copied)
            self._add(shapes, binding.outputs, binding)
        return binding.run(inputs)


class _Binding:
    """Outputs of fixed shapes, and the inputs of the last run."""

    def __init__(
        self, session: Any, shapes: Mapping[str, Shape], dtypes: Mapping[str, str], copied: frozenset[str]
    ) -> None:
        self.outputs = [np.empty(shape, dtypes[name]) for name, shape in shapes.items()]
        self._session = session
        self._binding = session.io_binding()
        self._copied = copied
        self._inputs: dict[str, Callable[[], Array | None]] = defaultdict(lambda: lambda: None)
        self._copies: dict[str, Array] = {}
        for name, array in zip(shapes, self.outputs, strict=True):
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        bound = self._inputs
        for name, array in inputs.items():
            if name in self._copied and array.flags.writeable:
                array = self._copy(name, array)  # noqa: PLW2901 - the copy is bound from here on
            if bound[name]() is array:
                continue
            assert array.flags.c_contiguous, f"{name} is not contiguous"
            if array.nbytes <= MAX_HELD_BYTES:
                self._binding.bind_cpu_input(name, array)
            else:
                # An address of an array that died is replaced before the next run reads it.
                self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            bound[name] = weakref.ref(array)
        self._session.run_with_iobinding(self._binding)
        return self.outputs.copy()

    def _copy(self, name: str, array: Array) -> Array:
        copy = self._copies.get(name)
        if copy is None or copy.shape != array.shape:
            copy = self._copies[name] = np.empty(array.shape, array.dtype)
        copy[...] = array
        return copy


class ReorderedRows(_ArrayPool):
    """Sets of row tensors, each in use from a reordering until it is released."""

    def __init__(self) -> None:
        super().__init__(MAX_KEPT)

    def take(self, tensors: Mapping[str, Array], rows: Ids) -> Mapping[str, Array]:
        """Copies the rows [R'] of tensors [R, ...], none of which is in a released set, in that order."""
        shapes = [(len(rows), *tensor.shape[1:]) for tensor in tensors.values()]
        taken: Mapping[str, Array] | None = self._take(shapes)
        if taken is None:
            taken = {name: tensor.take(rows, axis=0) for name, tensor in tensors.items()}
            self._add(shapes, taken.values(), taken)
            return taken
        for name, tensor in tensors.items():
            # In any mode except "clip", numpy would write to another array first. All rows are in range.
            tensor.take(rows, axis=0, out=taken[name], mode="clip")
        return taken


class SourceBuffers:
    """Arrays [capacity, S, ...] of which the first `num_slots` are in use or free again.

    Attributes:
        lengths: [capacity] valid positions of each slot; a free slot keeps its last value.
        width: S.
    """

    def __init__(self, like: Mapping[str, Array], axes: Mapping[str, int | None], num_sources: int, width: int) -> None:
        """Allocates arrays with room for `num_sources` and more.

        Args:
            like: tensors of the same names, types and other sizes.
            axes: name -> the axis that runs over positions; None if there is none.
        """
        self._axes = axes
        self.width = width
        self.num_slots = 0
        self._num_shown, self._shown = -1, dict[str, Array]()
        capacity = int(num_sources * GROWTH)
        self.lengths: Ids = np.zeros(capacity, np.int64)
        self._buffers = {
            name: np.empty(self._shape(name, tensor, capacity), tensor.dtype) for name, tensor in like.items()
        }

    def tensors(self) -> dict[str, Array]:
        """Returns the tensors by name [N, S, ...], not copied; the same arrays as before while N stays the same."""
        if self._num_shown != self.num_slots:
            self._num_shown = self.num_slots
            self._shown = {name: buffer[: self.num_slots] for name, buffer in self._buffers.items()}
        return self._shown

    def takes(self, num_free: int, lengths: Ids) -> bool:
        """Returns whether sources of these lengths [number of sources] fit if `num_free` slots are free."""
        num_needed = self.num_slots + len(lengths) - num_free
        return num_needed <= len(self.lengths) and int(lengths.max()) <= self.width

    def write(self, tensors: Mapping[str, Array], lengths: Ids, free: Ids) -> Ids:
        """Copies sources into free slots and after the last; returns their slots [number of sources].

        Positions that the tensors lack are set to zero, which for a mask is invalid.
        """
        num_new = max(0, len(lengths) - len(free))
        slots = np.concatenate([free[: len(lengths)], np.arange(self.num_slots, self.num_slots + num_new)])
        self.num_slots += num_new
        for name, tensor in tensors.items():
            buffer, axis = self._buffers[name], self._axes[name]
            if axis is None:
                buffer[slots] = tensor
                continue
            width = min(self.width, tensor.shape[axis])
            before: tuple[Any, ...] = (slots, *(slice(None),) * (axis - 1))
            buffer[(*before, slice(width))] = narrowed(tensor, axis, width)
            if width < self.width:
                buffer[(*before, slice(width, None))] = 0
        self.lengths[slots] = lengths
        return slots

    def _shape(self, name: str, tensor: Array, capacity: int) -> list[int]:
        shape, axis = [capacity, *tensor.shape[1:]], self._axes[name]
        if axis is not None:
            shape[axis] = self.width
        return shape


def used_part(lengths: Ids, num_slots: int, width: int) -> float:
    """Returns the share of the cells that sources of these lengths [number of sources > 0] use."""
    return len(lengths) * common_width(lengths) / (num_slots * width)


def narrowed(tensor: Array, axis: int | None, width: int) -> Array:
    """Returns the first `width` positions of a tensor [N, ...], not copied; the whole tensor without such an axis."""
    return tensor if axis is None else tensor[(slice(None),) * axis + (slice(width),)]


def joined(tensors: Sequence[Array], axis: int | None, width: int) -> Array:
    """Joins the rows of all tensors [N, ...], at `width` source positions; new ones are zero, invalid for a mask."""
    if axis is None:
        return np.concatenate(tensors)
    ends = np.cumsum([len(tensor) for tensor in tensors]).tolist()
    return in_places(
        tensors, [slice(end - len(tensor), end) for tensor, end in zip(tensors, ends, strict=True)], axis, width
    )


def in_places(tensors: Sequence[Array], places: Sequence[slice | Sequence[int]], axis: int | None, width: int) -> Array:
    """Returns one tensor, in which the rows of each tensor [N, ...] have these places; pads as `joined` does.

    Args:
        places: each row of the result once; those of a single tensor are in order.
    """
    first, num_rows = tensors[0], sum(map(len, tensors))
    if len(tensors) == 1 and (axis is None or first.shape[axis] == width):
        return first
    shape = [num_rows, *first.shape[1:]]
    if axis is not None:
        shape[axis] = width
    rows = np.zeros(shape, first.dtype)
    for tensor, where in zip(tensors, places, strict=True):
        if axis is None:
            rows[where] = tensor
            continue
        kept = narrowed(tensor, axis, width)
        rows[(where, *(slice(None),) * (axis - 1), slice(kept.shape[axis]))] = kept
    return rows
