"""Our counters and histograms beside prometheus-client's: the same page of the same values."""

import sys
import threading
from random import Random
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from attendant.server import metrics as instruments

BUCKETS = (0.00005, 0.001, 0.25, 1, 30.0)
FORMS = ("text/plain", "application/openmetrics-text; version=1.0.0")


@pytest.fixture(autouse=True)
def _no_created_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client.metrics, "_use_created", False)


def page(library: Any, form: str) -> bytes:
    """What is scraped after a thousand values, some of them on the edge of a bucket; an example of some buckets."""
    registry, random = CollectorRegistry(), Random(1)
    seen = {"namespace": "attendant", "registry": registry}
    ended = library.Counter("ended", 'How "calls" ended.', ("model", "code"), **seen)
    untouched = library.Counter("untouched", "Nothing.", ("model",), **seen)
    took = library.Histogram("took_seconds", "How long\nthey took.", ("model",), buckets=BUCKETS, **seen)
    untouched.labels("a")
    for number in range(1000):
        model = random.choice(["a", 'b"\\\n'])
        ended.labels(model, random.choice(["OK", "NOT_FOUND"])).inc()
        ended.labels("c", "OK").inc(random.choice([0, 0.5, 3]))
        value = random.choice([*BUCKETS, random.lognormvariate(0, 4)])
        took.labels(model).observe(value, {"trace_id": f"{number:x}"} if number % 10 == 0 else None)
    encode, _ = choose_encoder(form)
    return encode(registry)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_page_as_the_library_renders(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.5)
    theirs = page(prometheus_client, form)
    assert page(instruments, form) == theirs
    assert (b"# {trace_id=" in theirs) == (form != "text/plain")


def test_a_name_is_registered_once() -> None:
    registry = CollectorRegistry()
    instruments.Counter("a", "A.", ("model",), namespace="n", registry=registry)
    with pytest.raises(ValueError, match="n_a"):
        instruments.Counter("a", "A.", ("model",), namespace="n", registry=registry)
    with pytest.raises(ValueError, match="n_a"):
        prometheus_client.Counter("n_a", "A.", registry=registry)


def test_a_value_for_each_label() -> None:
    counter = instruments.Counter("a", "A.", ("model", "code"), namespace="n", registry=CollectorRegistry())
    assert counter.labels("m", "OK") is counter.labels("m", "OK")
    with pytest.raises(ValueError, match="code"):
        counter.labels("m")


def test_threads_lose_no_value() -> None:
    seen: dict[str, Any] = {"namespace": "n", "registry": CollectorRegistry()}
    count = instruments.Counter("a", "A.", ("model",), **seen).labels("m")
    distribution = instruments.Histogram("b", "B.", ("model",), buckets=(1,), **seen).labels("m")

    def tell() -> None:
        for _ in range(50_000):
            count.inc()
            distribution.observe(0.5)

    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=tell) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_seconds)
    assert count.value == 200_000
    assert distribution.buckets() == [("1.0", 200_000), ("+Inf", 200_000)] and distribution.sum == 100_000
