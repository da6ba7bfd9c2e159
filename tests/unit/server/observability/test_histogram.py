"""A histogram that sorts its observations late shows what the library's shows at once."""

import random

from prometheus_client import CollectorRegistry, Histogram

from attendant.server.observability.histogram import MAX_PENDING, BufferedHistogram

BOUNDS = (0.1, 0.25, 0.5, 1.0)


def test_it_shows_what_the_library_shows() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    expected, found = (
        kind("seconds", "About.", ("model",), registry=registry, buckets=BOUNDS)
        for kind, registry in zip((Histogram, BufferedHistogram), registries, strict=True)
    )
    draw = random.Random(1)
    for number in range(3 * MAX_PENDING):
        amount = draw.choice((draw.random() * 1.2, *BOUNDS, 0.0, 64.0))
        exemplar = {"trace_id": str(number)} if draw.random() < 0.05 else None
        model = draw.choice("ab")
        for histogram in (expected, found):
            histogram.labels(model).observe(round(amount * 64) / 64, exemplar)
        if number % 50 == 0:
            assert shown(registries[0]) == shown(registries[1])
    assert shown(registries[0]) == shown(registries[1])


def shown(registry: CollectorRegistry) -> list[object]:
    samples = (sample for family in registry.collect() for sample in family.samples)
    return [
        (one.name, one.labels, one.value, one.exemplar and one.exemplar.labels)
        for one in samples
        if not one.name.endswith("_created")
    ]
