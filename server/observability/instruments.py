"""Counters and histograms that are told of some twenty values for every request, and of more for every step.

prometheus-client's own take a lock for each value, and look at one bucket after the other: with them a call took a
sixth more instructions in the server's process. So values are gathered here, and become its metrics when they are
scraped. No lock is needed: CPython switches threads at calls and loops, and there is neither between the reading of a
value and its writing.
"""

import math
import time
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Bucket = tuple[str, float] | tuple[str, float, Exemplar]
"""Its bound, how many values are no larger, and an example of its own."""

Child = TypeVar("Child")


class Count:
    """What a counter has counted under one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Distribution:
    """The values that a histogram was told of under one set of labels.

    Attributes:
        sum: of the values.
    """

    __slots__ = ("_bounds", "_counts", "_exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the largest value of each bucket, but of the last one, which takes whatever is larger."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        self.sum = 0.0

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        """`exemplar`: labels of an example of the value's bucket, which replaces the one before."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self.sum += value
        if exemplar is not None:
            self._exemplars[place] = Exemplar(exemplar, value, time.time())

    def buckets(self) -> list[Bucket]:
        """As prometheus-client takes them."""
        found: list[Bucket] = []
        total = 0.0
        for place, bound in enumerate((*self._bounds, math.inf)):
            total += self._counts[place]
            name: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            found.append((name, total, self._exemplars[place]) if place in self._exemplars else (name, total))
        return found


class _Labelled(Collector, Generic[Child]):
    """A metric with labels; named, documented and registered as prometheus-client's are."""

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str], *, namespace: str, registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation, self._labelnames = f"{namespace}_{name}", documentation, tuple(labelnames)
        self._children: dict[tuple[str, ...], Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """The child under these values, one for each label."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{values} are not the values of {self._labelnames}")
        if values not in self._children:
            self._children[values] = self._new()
        return self._children[values]

    def describe(self) -> list[Metric]:
        """Its name, by which the registry sees that no other has it."""
        return [self._family()]

    def collect(self) -> list[Metric]:
        """What is scraped."""
        family = self._family()
        for values, child in self._children.items():
            self._add(family, values, child)
        return [family]

    @abstractmethod
    def _new(self) -> Child: ...

    @abstractmethod
    def _family(self) -> Any: ...

    @abstractmethod
    def _add(self, family: Any, values: tuple[str, ...], child: Child) -> None: ...


class Counter(_Labelled[Count]):
    """Counts by the values of their labels."""

    def _new(self) -> Count:
        return Count()

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def _add(self, family: CounterMetricFamily, values: tuple[str, ...], child: Count) -> None:
        family.add_metric(values, child.value)


class Histogram(_Labelled[Distribution]):
    """Distributions by the values of their labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Iterable[str],
        *,
        namespace: str,
        registry: CollectorRegistry,
        buckets: Iterable[float],
    ) -> None:
        self._bounds = tuple(map(float, buckets))
        super().__init__(name, documentation, labelnames, namespace=namespace, registry=registry)

    def _new(self) -> Distribution:
        return Distribution(self._bounds)

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def _add(self, family: HistogramMetricFamily, values: tuple[str, ...], child: Distribution) -> None:
        family.add_metric(values, child.buckets(), child.sum)
