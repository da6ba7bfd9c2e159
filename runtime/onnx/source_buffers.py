"""Source tensors with room for newcomers, so that who joins or leaves does not move those that stay. CPU only.

Shapes: N slots, S source positions. Memory and keys are most of a decoder's state, and never change. Each source has a
slot; one that leaves leaves its slot free, a newcomer is written into a free slot or into the spare room behind the
last. What is computed over free slots is wasted: when they, and positions that no source is long enough for, make up
more than a part of all, those that stay are moved together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attendant.runtime.stepper import Array, Ids, common_width

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
