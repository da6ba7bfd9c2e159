"""What is used again once it has been released: arrays of certain shapes, and what belongs to them. Pure."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from attendant.runtime.stepper import Array


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
