"""Rows of a state in another order, in arrays that are used again.

A beam reorders its rows at every step. Where the arrays are the same ones each time, the binding that reads them need
not be told of others (runtime/onnx/bound_runs.py).
"""

from collections.abc import Mapping

from attendant.runtime.stepper import Array, Ids

MAX_KEPT = 4
"""Sets of arrays: one for each of the batches that are stepped in turns, and some for a while in which their rows
change in number."""


class ReorderedRows:
    """Sets of arrays, each in use from a reordering until it is released."""

    def __init__(self) -> None:
        self._sets: list[_Set] = []

    def take(self, tensors: Mapping[str, Array], rows: Ids) -> Mapping[str, Array]:
        """Copies the rows [R'] of tensors [R, ...], which no released set is among, in that order."""
        shapes = [(len(rows), *tensor.shape[1:]) for tensor in tensors.values()]
        for place, one in enumerate(self._sets):
            if one.is_free and one.shapes == shapes:
                if place:  # the one that has not been used for longest is given up first
                    self._sets.insert(0, self._sets.pop(place))
                for name, tensor in tensors.items():
                    # Any mode but "clip" would make numpy write to another array first. The rows are all there.
                    tensor.take(rows, axis=0, out=one.tensors[name], mode="clip")
                one.is_free = False
                return one.tensors
        del self._sets[MAX_KEPT - 1 :]
        taken = _Set({name: tensor.take(rows, axis=0) for name, tensor in tensors.items()}, shapes)
        self._sets.insert(0, taken)
        return taken.tensors

    def release(self, array: Array) -> None:
        """Frees the set that has this array; one that is in none is ignored."""
        for one in self._sets:
            if any(array is own for own in one.tensors.values()):
                one.is_free = True
                return


class _Set:
    """Arrays of one reordering, by the tensors' names; `is_free`: nobody needs what is in them."""

    def __init__(self, tensors: Mapping[str, Array], shapes: list[tuple[int, ...]]) -> None:
        self.tensors = tensors
        self.shapes = shapes
        self.is_free = False
