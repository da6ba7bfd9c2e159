"""A histogram of many observations, which are seldom looked at."""

from bisect import bisect_right
from collections.abc import Iterable

from prometheus_client import Histogram
from prometheus_client.samples import Sample

MAX_PENDING = 128


class BufferedHistogram(Histogram):
    """Sorts observations into their buckets once there are MAX_PENDING of them, or when somebody looks.

    The library's takes a lock around each of two numbers for every observation, which is four times as long, and an
    answer has ten observations. It is filled and looked at in one thread, the event loop's.
    """

    def _metric_init(self) -> None:
        super()._metric_init()
        self._pending: list[float] = []

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """As the library's does. An observation that has an exemplar does not wait: they belong together."""
        if exemplar is not None:
            super().observe(amount, exemplar)
            return
        self._pending.append(amount)
        if len(self._pending) == MAX_PENDING:
            self._sort()

    def _sort(self) -> None:
        amounts = sorted(self._pending)
        self._pending.clear()
        self._sum.inc(sum(amounts))
        num_below = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets, strict=True):
            if num_below == len(amounts):
                return
            num = bisect_right(amounts, bound, num_below)
            bucket.inc(num - num_below)
            num_below = num

    def _child_samples(self) -> Iterable[Sample]:
        self._sort()
        return super()._child_samples()
