"""Tests of metrics: names, labels and values; and our counters compared with prometheus-client's."""

import math
import re
import sys
import threading
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from attendant.runtime.answers import MIN_ANSWERS, SIGNALS
from attendant.runtime.bundle.manifest import Distribution, Reference
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.server import metrics as metrics_module
from attendant.server.engine.client import FairSemaphore
from attendant.server.engine.messages import Priority, RequestStats, StepStats
from attendant.server.metrics import Metrics, attention_entropy, coverage_deficit

STATS = RequestStats(
    queue=0.5, encode=0.25, decode=2.0, first_token=1.0, total=3.0, steps=5, mean_batch_rows=2.5, submitted=0.0
)
STEP = StepStats(
    priority=Priority.INTERACTIVE,
    num_rows=6,
    num_encoded=2,
    cancelled_rows=3,
    useful_cells=30,
    computed_cells=40,
    phase_seconds={"admit": 0.0, "encode": 0.5, "step": 0.25, "search": 0.125, "select": 0.0},
)
REFERENCE = Reference(
    num_examples=100,
    precision="fp32",
    data="",
    signals=dict.fromkeys(SIGNALS, Distribution(edges=(1.0,), shares=(0.5, 0.5))),
)
# The names of the metrics by their labels, without the label `model`.
CONTRACT = {
    (): "queue_seconds encode_seconds decode_seconds time_to_first_token_seconds inter_token_seconds step_rows "
    "request_source_tokens request_target_tokens batch_efficiency_ratio prediction_ratio cancelled_rows_total "
    "source_tokens_total target_tokens_total steps_total requests_waiting requests_running rows_running rows_limit "
    "bulk_requests bulk_requests_limit bulk_streams bulk_streams_stalled bulk_answers_bytes bulk_answers_limit_bytes "
    "grpc_connections http_connections ready attention_entropy_ratio coverage_deficit_ratio unknown_tokens_total "
    "engine_restarts_total hit_max_length_total length_ratio",
    ("method",): "request_seconds request_bytes_total",
    ("method", "code"): "requests_total",
    ("phase",): "step_seconds",
    ("reason",): "rejected_total",
    ("what",): "mispredicted_total",
    ("outcome",): "model_loads_total shadow_answers_total",
    ("role",): "routed_total",
    ("version", "precision", "provider"): "bundle_info",
    ("signal",): "drift_index",
}


def hypothesis(num_tokens: int, reason: FinishReason = FinishReason.EOS, attention: bool = False) -> Hypothesis:
    weights = np.full((num_tokens, 4), 0.25, np.float32) if attention else None
    return Hypothesis((4,) * num_tokens, (), -1.0, -1.0, reason, weights)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"attendant_{name}", {"model": "m", **labels})


def exercise(metrics: Metrics) -> None:
    """Updates every metric once."""
    model = metrics.of_model("m")
    runner: Any = Mock(num_waiting=3, num_running=2, num_rows=5, bulk_permits=FairSemaphore(16))
    model.watch(runner, rows_limit=8, version="v", precision="fp32", provider="cpu")
    metrics.set_ready("m", True)
    metrics.model_loads.labels("m", "served").inc()
    model.watch_drift(REFERENCE)
    model.stepped(STEP)
    model.answered((4, 5, 1, 4, 3), 4, STATS)
    hypotheses = [hypothesis(3, FinishReason.LENGTH, attention=True), hypothesis(2)]
    model.generated((4, 5, 6, 7), 4, hypotheses, by_default=True)
    metrics.ended(model="m", method="Generate", code="OK", seconds=0.75)
    metrics.rejected.labels("m", "queue_full").inc()
    metrics.request_bytes.labels("", "Generate").inc()


def test_metrics_have_the_documented_names_and_labels(metrics: Metrics) -> None:
    exercise(metrics)
    labels: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name) and family.documentation
        if family.name.startswith("attendant_"):
            name = family.name.removeprefix("attendant_") + ("_total" if family.type == "counter" else "")
            labels[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    names = {family.name for family in metrics.registry.collect()}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= names
    assert labels == {name: {"model", *more} for more, names in CONTRACT.items() for name in names.split()}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("steps_total", {}, 1),
        ("step_rows_sum", {}, 6),
        ("cancelled_rows_total", {}, 3),
        ("batch_efficiency_ratio_sum", {}, 0.75),
        ("step_seconds_sum", {"phase": "search"}, 0.125),
        ("step_seconds_sum", {"phase": "encode"}, 0.5),
        ("queue_seconds_sum", {}, 0.5),
        ("encode_seconds_sum", {}, 0.25),
        ("decode_seconds_sum", {}, 2.0),
        ("time_to_first_token_seconds_sum", {}, 1.0),
        ("inter_token_seconds_sum", {}, 0.5),  # two seconds for four more steps
        ("source_tokens_total", {}, 4),
        ("request_source_tokens_sum", {}, 4),
        ("target_tokens_total", {}, 5),
        ("request_target_tokens_sum", {}, 3),
        ("unknown_tokens_total", {}, 1),
        ("hit_max_length_total", {}, 1),
        ("length_ratio_sum", {}, 0.75),
        ("requests_total", {"method": "Generate", "code": "OK"}, 1),
        ("request_seconds_sum", {"method": "Generate"}, 0.75),
    ],
)
def test_a_step_and_an_answer_are_counted(metrics: Metrics, name: str, labels: dict[str, str], expected: float) -> None:
    exercise(metrics)
    assert value(metrics, name, **labels) == expected


def test_a_round_without_a_step_is_not_counted_as_a_step(metrics: Metrics) -> None:
    empty = STEP._replace(num_rows=0, num_encoded=0, phase_seconds={"admit": 0.0})
    metrics.of_model("m").stepped(empty)
    assert value(metrics, "steps_total") == 0
    assert value(metrics, "step_rows_count") == 0


def test_attention_signals_are_recorded_only_if_attention_was_requested(metrics: Metrics) -> None:
    metrics.of_model("m").generated((4, 5), 2, [hypothesis(2)], by_default=True)
    assert value(metrics, "attention_entropy_ratio_count") == 0
    assert value(metrics, "coverage_deficit_ratio_count") == 0
    exercise(metrics)
    assert value(metrics, "attention_entropy_ratio_sum") == pytest.approx(1.0)
    assert value(metrics, "coverage_deficit_ratio_sum") == pytest.approx(0.25)


def test_versions_of_a_model_are_added_up_while_they_are_there(metrics: Metrics) -> None:
    versions = [metrics.of_model("m") for _ in range(3)]
    runners: list[Any] = [
        Mock(num_waiting=waiting, num_running=0, num_rows=0, bulk_permits=FairSemaphore(16)) for waiting in (3, 4, 0)
    ]
    for name, version, runner in zip(("v0", "v1", "v1"), versions, runners, strict=True):
        version.watch(runner, rows_limit=8, version=name, precision="fp32", provider="cpu")
    assert value(metrics, "requests_waiting") == 7
    runners[0].num_waiting = 0
    assert value(metrics, "requests_waiting") == 4, "read at each scrape"
    assert value(metrics, "rows_limit") == 8, "which they share"
    assert value(metrics, "bundle_info", version="v0", precision="fp32", provider="cpu") == 1
    versions[0].unwatch(runners[0])
    assert value(metrics, "requests_waiting") == 4 and value(metrics, "rows_limit") == 8
    assert value(metrics, "bundle_info", version="v0", precision="fp32", provider="cpu") is None
    assert value(metrics, "bundle_info", version="v1", precision="fp32", provider="cpu") == 1
    versions[1].unwatch(runners[1])
    assert value(metrics, "bundle_info", version="v1", precision="fp32", provider="cpu") == 1, "in another folder"
    versions[2].unwatch(runners[2])
    assert value(metrics, "bundle_info", version="v1", precision="fp32", provider="cpu") is None
    assert value(metrics, "rows_limit") == 0


def test_entropy_and_coverage_match_values_computed_by_hand() -> None:
    sharp = np.eye(4, dtype=np.float32)
    assert attention_entropy(sharp) == pytest.approx(0.0, abs=1e-6)
    assert attention_entropy(np.full((2, 4), 0.25, np.float32)) == pytest.approx(1.0)
    half = np.array([[0.5, 0.5, 0.0, 0.0]], np.float32)
    assert attention_entropy(half) == pytest.approx(math.log(2) / math.log(4))
    assert coverage_deficit(sharp) == 0.0
    assert coverage_deficit(half) == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert coverage_deficit(np.concatenate([half, half, half])) == pytest.approx(0.5), "twice looked at counts once"


def test_drift_counts_only_answers_with_the_bundles_defaults(metrics: Metrics) -> None:
    model = metrics.of_model("m")
    model.watch_drift(REFERENCE)
    for _ in range(MIN_ANSWERS):
        model.generated((4, 5), 2, [hypothesis(2)], by_default=False)
    assert math.isnan(value(metrics, "drift_index", signal="source_tokens") or 0.0)
    for _ in range(MIN_ANSWERS):
        model.generated((4, 5), 2, [hypothesis(2)], by_default=True)
    drift = value(metrics, "drift_index", signal="source_tokens")
    assert drift is not None and drift > 0.25, "all sources have two tokens, and half of them used to have one"
    metrics.of_model("m").watch_drift(None)
    assert value(metrics, "drift_index", signal="source_tokens") is None, "the next version has no reference"


BUCKETS = (0.00005, 0.001, 0.25, 1, 30.0)
FORMS = ("text/plain", "application/openmetrics-text; version=1.0.0")


@pytest.fixture
def _no_created_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client.metrics, "_use_created", False)


def page(library: Any, form: str) -> bytes:
    """Renders the page after 1000 values. Some are on the edge of a bucket, and some buckets have an exemplar."""
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


@pytest.mark.usefixtures("_no_created_metrics")
@pytest.mark.parametrize("form", FORMS)
def test_the_same_page_as_the_library_renders(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.5)
    theirs = page(prometheus_client, form)
    assert page(metrics_module, form) == theirs
    assert (b"# {trace_id=" in theirs) == (form != "text/plain")


def test_threads_lose_no_value() -> None:
    seen: dict[str, Any] = {"namespace": "n", "registry": CollectorRegistry()}
    count = metrics_module.Counter("a", "A.", ("model",), **seen).labels("m")
    distribution = metrics_module.Histogram("b", "B.", ("model",), buckets=(1,), **seen).labels("m")

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
