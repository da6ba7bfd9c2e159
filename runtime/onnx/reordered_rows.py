"""Rows of a state in another order, in arrays that are used again.

A beam reorders its rows at every step. Where the arrays are the same ones each time, the binding that reads them need
not be told of others (runtime/onnx/bound_runs.py).
"""

from collections.abc import Mapping

from attendant.runtime.onnx.reuse import Kept, Reusable
from attendant.runtime.stepper import Array, Ids

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
