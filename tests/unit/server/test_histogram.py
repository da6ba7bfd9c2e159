"""The same exposition as the library's own histogram."""

import random

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from attendant.server.histogram import Histogram

BUCKETS = (0.001, 0.5, 1.0, 2.5)


def test_it_says_what_the_librarys_own_says() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = Histogram("attendant_seconds", "How long.", ("model", "phase"), registry=ours, buckets=BUCKETS)
    reference = Reference("attendant_seconds", "How long.", ("model", "phase"), registry=theirs, buckets=BUCKETS)
    rng = random.Random(3)
    for _ in range(300):
        labels = rng.choice("ab"), rng.choice(("x", 'y"\n'))
        # Bounds themselves too: a bucket includes its own.
        value = rng.choice((*BUCKETS, rng.random() / 256, 8 * rng.random()))
        cheap.labels(*labels).observe(value)
        reference.labels(*labels).observe(value)
    expected = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert sorted(generate_latest(ours).splitlines()) == sorted(expected)


def test_without_observations() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("attendant_seconds", "How long.", ("model",), registry=registry, buckets=BUCKETS)
    assert registry.get_sample_value("attendant_seconds_count", {"model": "a"}) is None
    assert histogram.labels("a") is histogram.labels("a")
    assert registry.get_sample_value("attendant_seconds_count", {"model": "a"}) == 0
