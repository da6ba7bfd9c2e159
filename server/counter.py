"""A Prometheus counter that is cheap to feed: a request counts nine times, at a microsecond and more for the usual one.

A plain number, no lock: each child has one writer, a thread or the event loop.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily


class CounterChild:
    """The count of one set of label values."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, amount: int = 1) -> None:
        """`amount`: at least 0."""
        self.count += amount


class Counter:
    """A metric with labels; registers itself. What is exposed is called `name`_total."""

    def __init__(self, name: str, about: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._name = name
        self._about = about
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], CounterChild] = {}
        registry.register(self)

    def labels(self, *values: str) -> CounterChild:
        """The child of these label values, in the order of the labels."""
        child = self._children.get(values)
        if child is None:
            assert len(values) == len(self._labels)
            child = self._children.setdefault(values, CounterChild())
        return child

    def describe(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._about, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for values, child in list(self._children.items()):
            family.add_metric(values, child.count)
        yield family
