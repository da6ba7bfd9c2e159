"""Which shapes a device computes, and which of its buffers hold what. Pure: no arrays, no device, no clock.

Shapes: R rows, B sources, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py).

A CUDA graph is a recording of kernels with the addresses and sizes that they were launched with. So shapes are rounded
up to buckets, tensors stand in buffers that stay where they are, and every combination of buffers that a step reads
and writes has a recording of its own: one recording for two of them would read the state of the step before last
(https://github.com/microsoft/onnxruntime-genai/issues/2446).
"""

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Content = TypeVar("Content")

MAX_CAPTURES: Final = 64
"""onnxruntime keeps a recording until the session ends. Each takes some megabytes of the device's memory."""

CAPTURE_AFTER: Final = 16
"""Steps of one shape in the same buffers before it is recorded: those that come and go are not worth it."""

MAX_COUNTED: Final = 4096
"""Shapes whose steps are counted; then counting begins anew."""

SETS_PER_SHAPE: Final = 3
"""Of buffers: a step reads one and writes another while its caller may still hold the state before."""

MAX_FIXED_BYTES: Final = 2 * 2**30
"""Of all buffers that stay; what does not fit is allocated step by step, and not recorded."""


def bucket_count(count: int) -> int:
    """Rows or sources: powers of two to 32, then steps of 32 to 256, then of 128: at most a third too many above 32."""
    if count <= 32:
        return power_of_two(count)
    return _multiple(count, 32 if count <= 256 else 128)


def bucket_width(width: int) -> int:
    """Source positions: steps of 8 to 32, of 16 to 64, of 32 to 256, then of 64; always a multiple of 8."""
    step = 8 if width <= 32 else 16 if width <= 64 else 32 if width <= 256 else 64
    return _multiple(width, step)


def power_of_two(count: int) -> int:
    """The least one that is not below `count`; 1 for none."""
    return 1 << max(0, count - 1).bit_length()


def _multiple(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of one step, rounded up: what its recording holds for.

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
    """Which steps have a recording, by number. At most `limit`, each for good.

    A key says everything that a recording holds for: the shape, and each set of buffers.
    """

    def __init__(self, limit: int = MAX_CAPTURES, after: int = CAPTURE_AFTER) -> None:
        self._limit, self._after = limit, after
        self._numbers = itertools.count(1)
        self._known: dict[Hashable, int] = {}
        self._uses: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def number(self, key: Hashable) -> int | None:
        """The number of the key's recording, to be made or to be replayed; None: run without."""
        if key in self._known:
            return self._known[key]
        if len(self._known) >= self._limit:
            return None
        if len(self._uses) >= MAX_COUNTED:
            self._uses.clear()
        self._uses[key] += 1
        if self._uses[key] <= self._after:
            return None
        del self._uses[key]
        self._known[key] = next(self._numbers)
        return self._known[key]

    def forget(self) -> None:
        """Another thread has other recordings. Numbers are never given twice."""
        self._known.clear()
        self._uses.clear()


class Lease:
    """Holds a set of buffers for as long as anything refers to it.

    Attributes:
        number: of the set, unlike any other's; None: the buffers are its holder's alone, and go with it.
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
    """Sets of buffers by shape, of which the free ones are used again.

    A state that somebody still holds is never written over: its lease keeps its set.

    Attributes:
        make: allocates a set of a shape.
        size: what a set of a shape takes, in bytes.
    """

    make: Callable[[Key], Content]
    size: Callable[[Key], int]
    max_bytes: int = MAX_FIXED_BYTES
    sets_per_shape: int = SETS_PER_SHAPE
    _sets: dict[Key, list[_Set[Content]]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _bytes: int = 0

    def take(self, key: Key) -> tuple[Content, Lease]:
        """A set that nobody holds, the first of its shape if several are free.

        Where there are enough sets of the shape, or of all, it is a new one for the holder alone.
        """
        sets = self._sets.get(key, [])
        taken = next((one for one in sets if one.free), None)
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
