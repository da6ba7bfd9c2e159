"""Arrays that steps write again and again, on the CPU: outputs of runs, reordered rows, and the sources of a batch.

A step of a small batch takes a fraction of a millisecond, of which handing arrays over takes a third: each is looked up
by its name, wrapped, and every output copied. A binding knows what was handed over, and a run hands over anew only what
has changed since its last. While rows neither join nor leave, two bindings take turns: what the one wrote the other
reads, so nothing changes but the ids, which are copied. What a run has written is the caller's until the caller
releases it. A beam reorders its rows at every step: into the same arrays each time, so that bindings stay valid.

Shapes of sources: N slots, S source positions. Memory and keys are most of a decoder's state, and never change. Each
source has a slot; one that leaves leaves its slot free, a newcomer is written into a free slot or into the spare room
after the last. What is computed over free slots is wasted: when they, and positions that no source is long enough for,
make up more than a part of all, those that stay are moved together.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from attendant.runtime.stepper import Array, Ids, common_width


class Reusable:
    """Arrays that somebody needs, from when they were written until they are released.

    Attributes:
        shapes: what tells whether these arrays are the wanted ones.
        is_free: nobody needs what is in them.
    """

    def __init__(self, shapes: Any, arrays: Iterable[Array]) -> None:
        self.shapes = shapes
        self.is_free = False
        # Of arrays that live as long as this.
        self._ids = frozenset(map(id, arrays))

    def has(self, array: Array) -> bool:
        return id(array) in self._ids


Item = TypeVar("Item", bound=Reusable)


class Kept(Generic[Item]):
    """The last few that were used."""

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._items: list[Item] = []

    def take(self, shapes: Any) -> Item | None:
        """One of these shapes that is free, and is not from now on. None: there is none."""
        for place, one in enumerate(self._items):
            if one.is_free and one.shapes == shapes:
                if place:  # the one that has not been used for longest is given up first
                    self._items.insert(0, self._items.pop(place))
                one.is_free = False
                return one
        return None

    def add(self, item: Item) -> Item:
        """Keeps a new one, which is in use."""
        del self._items[self._max_kept - 1 :]
        self._items.insert(0, item)
        return item

    def release(self, array: Array) -> None:
        """Frees what has this array; one that is in none is ignored."""
        for one in self._items:
            if one.has(array):
                one.is_free = True
                return


Shape = tuple[int, ...]

MAX_BINDINGS = 4
"""Two for each of two batches that are stepped in turns."""

MAX_HELD_BYTES = 1 << 20
"""A binding keeps inputs of this size alive until it gets others: onnxruntime binds an array in a quarter of the time
that it takes to bind an address. Of large ones, which are the sources of a whole batch, it gets the address."""


class BoundRuns:
    """The bindings of one session, for outputs of the shapes that were asked for last."""

    def __init__(self, session: Any, dtypes: Mapping[str, str], copied: Collection[str]) -> None:
        """Wraps a session of onnxruntime on the CPU.

        Args:
            dtypes: of the outputs, by name.
            copied: the inputs that are small and mostly other arrays each time; those that can't be written to are not
                copied. All others must be contiguous.
        """
        self._session = session
        self._dtypes = dtypes
        self._copied = frozenset(copied)
        self._bindings: Kept[_Binding] = Kept(MAX_BINDINGS)
        self._last: Mapping[str, Shape] = {}

    def run(self, shapes: Mapping[str, Shape], inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, which will have these shapes, in order."""
        if (binding := self._bindings.take(shapes)) is not None:
            return binding.run(inputs)
        again, self._last = self._last == shapes, shapes
        if not again:  # it may be the only run of these shapes: then binding would cost more than it saves
            return list(self._session.run(list(shapes), inputs))
        return self._bindings.add(_Binding(self._session, shapes, self._dtypes, self._copied)).run(inputs)

    def release(self, array: Array) -> None:
        """Frees the binding that wrote this array; one that no binding wrote is ignored."""
        self._bindings.release(array)


class _Binding(Reusable):
    """Outputs of fixed shapes, and the inputs of the last run."""

    def __init__(
        self, session: Any, shapes: Mapping[str, Shape], dtypes: Mapping[str, str], copied: frozenset[str]
    ) -> None:
        self.outputs = [np.empty(shape, dtypes[name]) for name, shape in shapes.items()]
        super().__init__(shapes, self.outputs)
        self._session = session
        self._binding = session.io_binding()
        self._copied = copied
        self._inputs: dict[str, Callable[[], Array | None]] = defaultdict(lambda: _nothing)
        self._copies: dict[str, Array] = {}
        self._bind_outputs()

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        bound = self._inputs
        for name, array in inputs.items():
            if name in self._copied and array.flags.writeable:
                array = self._copy(name, array)  # noqa: PLW2901 - what is read from here on
            if bound[name]() is not array:
                # Where it is not kept alive: an array that has died is bound to no longer, and is not read again.
                self._bind(name, array)
                bound[name] = weakref.ref(array)
        self._session.run_with_iobinding(self._binding)
        return self.outputs.copy()

    def _bind_outputs(self) -> None:
        for name, array in zip(self.shapes, self.outputs, strict=True):
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _copy(self, name: str, array: Array) -> Array:
        copy = self._copies.get(name)
        if copy is None or copy.shape != array.shape:
            copy = self._copies[name] = np.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def _bind(self, name: str, array: Array) -> None:
        assert array.flags.c_contiguous, f"{name} is not contiguous"
        if array.nbytes <= MAX_HELD_BYTES:
            self._binding.bind_cpu_input(name, array)
            return
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _nothing() -> None:
    """As a reference to an array that has died."""


MAX_KEPT = 4
"""Sets of arrays: one for each of the batches that are stepped in turns, and some for a while in which their rows
change in number."""


class ReorderedRows:
    """Sets of arrays, each in use from a reordering until it is released."""

    def __init__(self) -> None:
        self._sets: Kept[_Set] = Kept(MAX_KEPT)

    def take(self, tensors: Mapping[str, Array], rows: Ids) -> Mapping[str, Array]:
        """Copies the rows [R'] of tensors [R, ...], which no released set is among, in that order."""
        shapes = [(len(rows), *tensor.shape[1:]) for tensor in tensors.values()]
        found = self._sets.take(shapes)
        if found is None:
            taken = {name: tensor.take(rows, axis=0) for name, tensor in tensors.items()}
            return self._sets.add(_Set(taken, shapes)).tensors
        for name, tensor in tensors.items():
            # Any mode but "clip" would make numpy write to another array first. The rows are all there.
            tensor.take(rows, axis=0, out=found.tensors[name], mode="clip")
        return found.tensors

    def release(self, array: Array) -> None:
        """Frees the set that has this array; one that is in none is ignored."""
        self._sets.release(array)


class _Set(Reusable):
    """Arrays of one reordering, by the tensors' names."""

    def __init__(self, tensors: Mapping[str, Array], shapes: list[tuple[int, ...]]) -> None:
        super().__init__(shapes, tensors.values())
        self.tensors = tensors


MIN_USED = 0.75
"""Of the cells (slots x positions): with less in use, moving together costs less than a few steps over the waste."""

GROWTH = 1.5
"""Slots that new arrays have per source in them: room that nobody has written to takes no memory."""


class SourceBuffers:
    """Arrays [capacity, S, ...] of which the first `num_slots` are in use, or free again.

    Attributes:
        lengths: [capacity] valid positions of each slot; of a free one, what it last had.
        width: S.
    """

    def __init__(self, like: Mapping[str, Array], axes: Mapping[str, int | None], num_sources: int, width: int) -> None:
        """Arrays with room for `num_sources` and more, and nothing in them.

        Args:
            like: tensors of the same names, types and other sizes.
            axes: name -> the axis that runs over positions; None: none does.
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
        """By name [N, S, ...], not copied; the same arrays as before, as long as there are as many slots."""
        if self._num_shown != self.num_slots:
            self._num_shown = self.num_slots
            self._shown = {name: buffer[: self.num_slots] for name, buffer in self._buffers.items()}
        return self._shown

    def takes(self, num_free: int, lengths: Ids) -> bool:
        """Whether newcomers of these lengths [number of sources] find room, where so many slots are free."""
        num_needed = self.num_slots + len(lengths) - num_free
        return num_needed <= len(self.lengths) and int(lengths.max()) <= self.width

    def write(self, tensors: Mapping[str, Array], lengths: Ids, free: Ids) -> Ids:
        """Copies sources into free slots, and behind the last; returns the slots [number of sources].

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
    """How much of the cells is in use by sources of these lengths [number of sources], at least one."""
    return len(lengths) * common_width(lengths) / (num_slots * width)


def narrowed(tensor: Array, axis: int | None, width: int) -> Array:
    """The first `width` positions of a tensor [N, ...] of any dtype, not copied; all of it where it has none."""
    return tensor if axis is None else tensor[(slice(None),) * axis + (slice(width),)]


def joined(tensors: Sequence[Array], axis: int | None, width: int) -> Array:
    """The rows of all tensors [N, ...], at `width` source positions; new ones are zero, for a mask invalid."""
    if axis is None:
        return np.concatenate(tensors)
    ends = np.cumsum([len(tensor) for tensor in tensors]).tolist()
    return in_places(tensors, [slice(end - len(one), end) for one, end in zip(tensors, ends, strict=True)], axis, width)


def in_places(tensors: Sequence[Array], places: Sequence[slice | Sequence[int]], axis: int | None, width: int) -> Array:
    """One tensor, in which each of these [N, ...] has its rows in these places; in width as `joined`.

    Args:
        places: that together are all rows, each once; of a single tensor in order.
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
