"""Arrays that the rows' tensors are moved into when rows are reordered, join or leave. CPU only.

A state's row tensors are some hundred kilobytes: fresh memory of that size costs the system more than copying into it,
and a binding has to be told of every new array. What a state that was given away stood in is therefore used again.

Shapes: R rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.onnx.source_buffers import narrowed
from attendant.runtime.stepper import Ids

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

MAX_SETS = 4
"""Two for each of two batches that are stepped in turns."""


class RowBuffers:
    """Sets of arrays [R, ...], each held by the state that was made last in it, or free."""

    def __init__(self) -> None:
        self._free: list[dict[str, Array]] = []
        self._held: list[dict[str, Array]] = []

    def reordered(self, tensors: Mapping[str, Array], rows: Ids) -> Mapping[str, Array]:
        """The rows [R'] of tensors, in this order."""
        found = self._take({name: (len(rows), *tensor.shape[1:]) for name, tensor in tensors.items()}, tensors)
        for name, tensor in tensors.items():
            # With `clip` numpy writes straight to where it shall; otherwise it does so by way of a copy.
            tensor.take(rows, axis=0, out=found[name], mode="clip")
        return found

    def joined(
        self, parts: Sequence[Mapping[str, Array]], axes: Mapping[str, int | None], width: int
    ) -> Mapping[str, Array]:
        """The rows of all parts, in order, at `width` source positions; new ones are zero, which for a mask is invalid.

        Args:
            axes: name -> the axis that runs over positions; None: none does.
        """
        shapes = {}
        for name, tensor in parts[0].items():
            shape = [sum(len(part[name]) for part in parts), *tensor.shape[1:]]
            if (axis := axes[name]) is not None:
                shape[axis] = width
            shapes[name] = tuple(shape)
        found = self._take(shapes, parts[0])
        for name, array in found.items():
            begin = 0
            for part in parts:
                tensor = part[name]
                rows = array[begin : begin + len(tensor)]
                begin += len(tensor)
                if (axis := axes[name]) is not None:
                    rows[...] = 0
                    tensor = narrowed(tensor, axis, width)
                    rows = narrowed(rows, axis, tensor.shape[axis])
                rows[...] = tensor
        return found

    def release(self, tensors: Mapping[str, Array]) -> None:
        """The state that stood in these is not used any more. Other tensors than those given out are ignored."""
        for place, held in enumerate(self._held):
            if held is tensors:
                self._free.append(self._held.pop(place))
                del self._free[:-MAX_SETS]
                return

    def _take(self, shapes: Shapes, like: Mapping[str, Array]) -> dict[str, Array]:
        for place, arrays in enumerate(self._free):
            if all(arrays[name].shape == shape for name, shape in shapes.items()):
                found = self._free.pop(place)
                break
        else:
            found = {name: np.empty(shape, like[name].dtype) for name, shape in shapes.items()}
        self._held.append(found)
        # Whoever drops a state without a word keeps its arrays, and only those.
        del self._held[:-MAX_SETS]
        return found
