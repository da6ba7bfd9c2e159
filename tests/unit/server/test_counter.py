"""The same exposition as the library's own counter."""

import random

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as Reference

from attendant.server.counter import Counter


def test_it_says_what_the_librarys_own_says() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = Counter("attendant_requests", "How many.", ("model", "code"), registry=ours)
    reference = Reference("attendant_requests", "How many.", ("model", "code"), registry=theirs)
    rng = random.Random(3)
    for _ in range(300):
        labels, amount = (rng.choice("ab"), rng.choice(("OK", 'y"\n'))), rng.randrange(3)
        cheap.labels(*labels).inc(amount)
        reference.labels(*labels).inc(amount)
    cheap.labels("c", "OK")
    reference.labels("c", "OK")
    expected = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert sorted(generate_latest(ours).splitlines()) == sorted(expected)


def test_one_at_a_time() -> None:
    registry = CollectorRegistry()
    counter = Counter("attendant_requests", "How many.", ("model",), registry=registry)
    assert registry.get_sample_value("attendant_requests_total", {"model": "a"}) is None
    counter.labels("a").inc()
    counter.labels("a").inc()
    assert registry.get_sample_value("attendant_requests_total", {"model": "a"}) == 2
