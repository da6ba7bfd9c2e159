"""Names, labels and values, each on a registry of its own."""

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from attendant.runtime.answers import MIN_ANSWERS, SIGNALS
from attendant.runtime.bundle.manifest import Distribution, Reference
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.server.engine.request import Priority, RequestStats, StepStats
from attendant.server.engine.shares import FairSemaphore
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
CONTRACT = {
    "request_seconds": {"model", "method"},
    "queue_seconds": {"model"},
    "encode_seconds": {"model"},
    "decode_seconds": {"model"},
    "time_to_first_token_seconds": {"model"},
    "inter_token_seconds": {"model"},
    "step_seconds": {"model", "phase"},
    "step_rows": {"model"},
    "request_source_tokens": {"model"},
    "request_target_tokens": {"model"},
    "batch_efficiency_ratio": {"model"},
    "requests_total": {"model", "method", "code"},
    "rejected_total": {"model", "reason"},
    "mispredicted_total": {"model", "what"},
    "prediction_ratio": {"model"},
    "cancelled_rows_total": {"model"},
    "source_tokens_total": {"model"},
    "target_tokens_total": {"model"},
    "steps_total": {"model"},
    "requests_waiting": {"model"},
    "requests_running": {"model"},
    "rows_running": {"model"},
    "rows_limit": {"model"},
    "bulk_requests": {"model"},
    "bulk_requests_limit": {"model"},
    "bulk_streams": {"model"},
    "bulk_streams_stalled": {"model"},
    "bulk_answers_bytes": {"model"},
    "bulk_answers_limit_bytes": {"model"},
    "grpc_connections": {"model"},
    "http_connections": {"model"},
    "request_bytes_total": {"model", "method"},
    "model_loads_total": {"model", "outcome"},
    "routed_total": {"model", "role"},
    "shadow_answers_total": {"model", "outcome"},
    "bundle_info": {"model", "version", "precision", "provider"},
    "ready": {"model"},
    "attention_entropy_ratio": {"model"},
    "coverage_deficit_ratio": {"model"},
    "unknown_tokens_total": {"model"},
    "engine_restarts_total": {"model"},
    "hit_max_length_total": {"model"},
    "length_ratio": {"model"},
    "drift_index": {"model", "signal"},
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
    """One of everything."""
    model = metrics.of_model("m")
    runner: Any = SimpleNamespace(num_waiting=3, num_running=2, num_rows=5, bulk_permits=FairSemaphore(16))
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


def test_every_name_of_the_contract_with_its_labels(metrics: Metrics) -> None:
    exercise(metrics)
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        if family.name.startswith("attendant_"):
            for sample in family.samples:
                name = family.name.removeprefix("attendant_") + ("_total" if family.type == "counter" else "")
                found.setdefault(name, set()).update(set(sample.labels) - {"le"})
    assert found == CONTRACT


def test_names_are_prometheus_names(metrics: Metrics) -> None:
    exercise(metrics)
    for family in metrics.registry.collect():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), "no colons, no capitals"
        assert family.documentation


def test_process_metrics_are_there(metrics: Metrics) -> None:
    names = {family.name for family in metrics.registry.collect()}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= names


def test_a_step(metrics: Metrics) -> None:
    exercise(metrics)
    assert value(metrics, "steps_total") == 1
    assert value(metrics, "step_rows_sum") == 6
    assert value(metrics, "cancelled_rows_total") == 3
    assert value(metrics, "batch_efficiency_ratio_sum") == 0.75
    assert value(metrics, "step_seconds_sum", phase="search") == 0.125
    assert value(metrics, "step_seconds_sum", phase="encode") == 0.5


def test_a_round_without_a_step(metrics: Metrics) -> None:
    empty = StepStats(
        priority=Priority.INTERACTIVE,
        num_rows=0,
        num_encoded=0,
        cancelled_rows=0,
        useful_cells=0,
        computed_cells=0,
        phase_seconds={"admit": 0.0},
    )
    metrics.of_model("m").stepped(empty)
    assert value(metrics, "steps_total") == 0
    assert value(metrics, "step_rows_count") == 0


def test_an_answer(metrics: Metrics) -> None:
    exercise(metrics)
    assert value(metrics, "queue_seconds_sum") == 0.5
    assert value(metrics, "encode_seconds_sum") == 0.25
    assert value(metrics, "decode_seconds_sum") == 2.0
    assert value(metrics, "time_to_first_token_seconds_sum") == 1.0
    assert value(metrics, "inter_token_seconds_sum") == 0.5, "two seconds for four more steps"
    assert value(metrics, "source_tokens_total") == 4
    assert value(metrics, "request_source_tokens_sum") == 4
    assert value(metrics, "target_tokens_total") == 5
    assert value(metrics, "request_target_tokens_sum") == 3
    assert value(metrics, "unknown_tokens_total") == 1
    assert value(metrics, "hit_max_length_total") == 1
    assert value(metrics, "length_ratio_sum") == 0.75
    assert value(metrics, "requests_total", method="Generate", code="OK") == 1
    assert value(metrics, "request_seconds_sum", method="Generate") == 0.75


def test_attention_signals_only_where_attention_was_asked_for(metrics: Metrics) -> None:
    metrics.of_model("m").generated((4, 5), 2, [hypothesis(2)], by_default=True)
    assert value(metrics, "attention_entropy_ratio_count") == 0
    assert value(metrics, "coverage_deficit_ratio_count") == 0
    exercise(metrics)
    assert value(metrics, "attention_entropy_ratio_sum") == pytest.approx(1.0)
    assert value(metrics, "coverage_deficit_ratio_sum") == pytest.approx(0.25)


def test_gauges_are_read_when_they_are_asked_for(metrics: Metrics) -> None:
    runner: Any = SimpleNamespace(num_waiting=3, num_running=0, num_rows=0, bulk_permits=FairSemaphore(16))
    metrics.of_model("m").watch(runner, rows_limit=1, version="v", precision="fp32", provider="cpu")
    assert value(metrics, "requests_waiting") == 3
    runner.num_waiting = 0
    assert value(metrics, "requests_waiting") == 0


def test_versions_of_a_model_are_added_up_while_they_are_there(metrics: Metrics) -> None:
    versions = [metrics.of_model("m"), metrics.of_model("m")]
    runners: list[Any] = [
        SimpleNamespace(num_waiting=waiting, num_running=0, num_rows=0, bulk_permits=FairSemaphore(16))
        for waiting in (3, 4)
    ]
    for number, (version, runner) in enumerate(zip(versions, runners, strict=True)):
        version.watch(runner, rows_limit=8, version=f"v{number}", precision="fp32", provider="cpu")
    assert value(metrics, "requests_waiting") == 7
    assert value(metrics, "rows_limit") == 8, "which they share"
    assert value(metrics, "bundle_info", version="v0", precision="fp32", provider="cpu") == 1
    versions[0].unwatch(runners[0])
    assert value(metrics, "requests_waiting") == 4 and value(metrics, "rows_limit") == 8
    assert value(metrics, "bundle_info", version="v0", precision="fp32", provider="cpu") is None
    assert value(metrics, "bundle_info", version="v1", precision="fp32", provider="cpu") == 1
    versions[1].unwatch(runners[1])
    assert value(metrics, "rows_limit") == 0


def test_entropy_and_coverage_by_hand() -> None:
    sharp = np.eye(4, dtype=np.float32)
    assert attention_entropy(sharp) == pytest.approx(0.0, abs=1e-6)
    assert attention_entropy(np.full((2, 4), 0.25, np.float32)) == pytest.approx(1.0)
    half = np.array([[0.5, 0.5, 0.0, 0.0]], np.float32)
    assert attention_entropy(half) == pytest.approx(math.log(2) / math.log(4))
    assert coverage_deficit(sharp) == 0.0
    assert coverage_deficit(half) == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert coverage_deficit(np.concatenate([half, half, half])) == pytest.approx(0.5), "twice looked at counts once"


def test_drift_is_that_of_answers_by_the_bundles_defaults(metrics: Metrics) -> None:
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
