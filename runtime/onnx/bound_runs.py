"""Runs of one graph that read and write arrays where they lie. CPU only.

A step of a small batch takes a fraction of a millisecond, of which handing arrays over takes a third: each is looked up
by its name, wrapped, and every output copied. A binding knows what was handed over, and a run hands over anew only what
has changed since its last. While rows neither join nor leave, two bindings take turns: what the one wrote the other
reads, so nothing changes but the ids, which are copied.

What a run has written is the caller's until the caller releases it.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from attendant.runtime.onnx.reuse import Kept, Reusable
from attendant.runtime.stepper import Array

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
