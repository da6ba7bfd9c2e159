"""Every metric of the server, by name; all in base units. The engine emits plain values, here they are rendered.

`model` is empty for a model that is not served here. Other labels take values from closed sets only, never from a
request.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.stepper import Floats
from attendant.server.engine.request import RequestStats, StepStats
from attendant.server.engine.runner import EngineRunner

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIO_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
LENGTH_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

PHASES = ("admit", "encode", "step", "search", "select")


class Metrics:
    """All metrics, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        # `*_created`, a series more for each of ours, is not among the names that we promise. A switch of the process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        gauge = partial(Gauge, namespace="attendant", registry=registry)
        counter = partial(Counter, namespace="attendant", registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], labels: Sequence[str] = ("model",)) -> Histogram:
            return Histogram(name, about, labels, namespace="attendant", registry=registry, buckets=buckets)

        self.request_seconds = histogram(
            "request_seconds",
            "From a request's arrival at the service to its answer, whatever that was.",
            REQUEST_BUCKETS,
            ("model", "method"),
        )
        self.queue_seconds = histogram("queue_seconds", "From submission to admission.", REQUEST_BUCKETS)
        self.encode_seconds = histogram(
            "encode_seconds", "In the encoder, with the requests encoded beside it; per request.", REQUEST_BUCKETS
        )
        self.decode_seconds = histogram(
            "decode_seconds", "From the end of encoding to the last step; per request.", REQUEST_BUCKETS
        )
        self.time_to_first_token_seconds = histogram(
            "time_to_first_token_seconds", "From submission to the end of the first step.", REQUEST_BUCKETS
        )
        self.inter_token_seconds = histogram(
            "inter_token_seconds", "Mean time between the steps of a request, after the first one.", STEP_BUCKETS
        )
        self.step_seconds = histogram(
            "step_seconds",
            "Phases of the engine's rounds: admit, encode (only where somebody joined), step (the graph), search, "
            "select.",
            STEP_BUCKETS,
            ("model", "phase"),
        )
        self.step_rows = histogram("step_rows", "Rows (live hypotheses) in a decoder step.", COUNT_BUCKETS)
        self.request_source_tokens = histogram(
            "request_source_tokens", "Source tokens of a request that was answered, without EOS.", COUNT_BUCKETS
        )
        self.request_target_tokens = histogram(
            "request_target_tokens", "Target tokens of a request's best hypothesis, without EOS.", COUNT_BUCKETS
        )
        self.batch_efficiency_ratio = histogram(
            "batch_efficiency_ratio",
            "Attention cells of a step that meant something over those that were computed; the rest is padding.",
            RATIO_BUCKETS,
        )
        self.requests = counter("requests", "Requests by how they ended.", ("model", "method", "code"))
        self.rejected = counter(
            "rejected", "Requests that were refused, by why: see server/errors.py.", ("model", "reason")
        )
        self.cancelled_rows = counter(
            "cancelled_rows", "Rows freed because the client went or its deadline passed.", ("model",)
        )
        self.source_tokens = counter("source_tokens", "Source tokens of requests that were answered.", ("model",))
        self.target_tokens = counter("target_tokens", "Target tokens of all hypotheses that were returned.", ("model",))
        self.steps = counter("steps", "Decoder steps.", ("model",))
        # Looking children up takes longer than counting; labels are from closed sets, so there are few.
        self._children_of = lru_cache(maxsize=None)(self._find_children)
        self.requests_waiting = gauge("requests_waiting", "Requests that wait for rows.", ("model",))
        self.requests_running = gauge("requests_running", "Requests that have rows.", ("model",))
        self.rows_running = gauge("rows_running", "Rows (live hypotheses) now.", ("model",))
        self.rows_limit = gauge("rows_limit", "Rows that may be stepped together: --max-rows.", ("model",))
        self.bundle_info = gauge(
            "bundle_info", "1, for each bundle that is served.", ("model", "version", "precision", "provider")
        )
        self.ready = gauge("ready", "1 where the model is served: loaded, not draining, not dead.", ("model",))
        self.attention_entropy_ratio = histogram(
            "attention_entropy_ratio",
            "Mean entropy of the best hypothesis's attention over that of uniform attention; of requests that asked "
            "for attention and have a source of several positions.",
            RATIO_BUCKETS,
        )
        self.coverage_deficit_ratio = histogram(
            "coverage_deficit_ratio",
            "Share of the source that the best hypothesis's attention left out: mean over positions of 1 less the sum "
            "of their weights, at least 0; of requests that asked for attention.",
            RATIO_BUCKETS,
        )
        self.unknown_tokens = counter(
            "unknown_tokens",
            "Source tokens of answered requests that were not in the vocabulary.",
            ("model",),
        )
        self.hit_max_length = counter(
            "hit_max_length", "Requests whose best hypothesis was cut at its maximum length.", ("model",)
        )
        self.length_ratio = histogram(
            "length_ratio", "Target tokens of the best hypothesis over source tokens.", LENGTH_RATIO_BUCKETS
        )

    def ended(self, *, model: str, method: str, code: str, seconds: float) -> None:
        """A request has ended, somehow."""
        count, duration = self._children_of(model, method, code)
        count.inc()
        duration.observe(seconds)

    def _find_children(self, model: str, method: str, code: str) -> tuple[Counter, Histogram]:
        return self.requests.labels(model, method, code), self.request_seconds.labels(model, method)

    def of_model(self, model: str) -> "ModelMetrics":
        return ModelMetrics(self, model)


class ModelMetrics:
    """The metrics of one model, their labels resolved once: a step is short."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._step_seconds = {phase: metrics.step_seconds.labels(model, phase) for phase in PHASES}
        self._step_rows = metrics.step_rows.labels(model)
        self._batch_efficiency_ratio = metrics.batch_efficiency_ratio.labels(model)
        self._steps = metrics.steps.labels(model)
        self._cancelled_rows = metrics.cancelled_rows.labels(model)
        self._queue_seconds = metrics.queue_seconds.labels(model)
        self._encode_seconds = metrics.encode_seconds.labels(model)
        self._decode_seconds = metrics.decode_seconds.labels(model)
        self._time_to_first_token_seconds = metrics.time_to_first_token_seconds.labels(model)
        self._inter_token_seconds = metrics.inter_token_seconds.labels(model)
        self._request_source_tokens = metrics.request_source_tokens.labels(model)
        self._request_target_tokens = metrics.request_target_tokens.labels(model)
        self._source_tokens = metrics.source_tokens.labels(model)
        self._target_tokens = metrics.target_tokens.labels(model)
        self._unknown_tokens = metrics.unknown_tokens.labels(model)
        self._hit_max_length = metrics.hit_max_length.labels(model)
        self._length_ratio = metrics.length_ratio.labels(model)
        self._attention_entropy_ratio = metrics.attention_entropy_ratio.labels(model)
        self._coverage_deficit_ratio = metrics.coverage_deficit_ratio.labels(model)

    def watch(self, runner: EngineRunner, *, rows_limit: int, version: str, precision: str, provider: str) -> None:
        """Sets what never changes, and what to ask the engine for at each scrape, so that it can't go stale."""
        metrics, model = self._metrics, self._model
        metrics.requests_waiting.labels(model).set_function(lambda: runner.num_waiting)
        metrics.requests_running.labels(model).set_function(lambda: runner.num_running)
        metrics.rows_running.labels(model).set_function(lambda: runner.num_rows)
        metrics.rows_limit.labels(model).set(rows_limit)
        metrics.bundle_info.labels(model, version, precision, provider).set(1)

    def set_ready(self, ready: bool) -> None:
        self._metrics.ready.labels(self._model).set(int(ready))

    def stepped(self, stats: StepStats) -> None:
        """A round of the engine; called on its thread."""
        for phase, seconds in stats.phase_seconds.items():
            self._step_seconds[phase].observe(seconds)
        if stats.cancelled_rows:
            self._cancelled_rows.inc(stats.cancelled_rows)
        if stats.num_rows:
            self._steps.inc()
            self._step_rows.observe(stats.num_rows)
            self._batch_efficiency_ratio.observe(stats.useful_cells / stats.computed_cells)

    def answered(self, source_ids: Sequence[int], num_source_tokens: int, stats: RequestStats) -> None:
        """A request was answered.

        Args:
            source_ids: as the encoder took them; their end symbol does not count as a token.
        """
        self._queue_seconds.observe(stats.queue)
        self._encode_seconds.observe(stats.encode)
        self._decode_seconds.observe(stats.decode)
        self._time_to_first_token_seconds.observe(stats.first_token)
        if stats.steps > 1:
            self._inter_token_seconds.observe((stats.total - stats.first_token) / (stats.steps - 1))
        self._request_source_tokens.observe(num_source_tokens)
        self._source_tokens.inc(num_source_tokens)
        self._unknown_tokens.inc(source_ids.count(UNK_ID))

    def generated(self, num_source_tokens: int, hypotheses: Sequence[Hypothesis]) -> None:
        """What the model made of a source, best first: the quality signals."""
        best = hypotheses[0]
        self._request_target_tokens.observe(len(best.token_ids))
        self._length_ratio.observe(len(best.token_ids) / num_source_tokens)
        self._target_tokens.inc(sum(len(one.token_ids) for one in hypotheses))
        self._hit_max_length.inc(best.finish_reason is FinishReason.LENGTH)
        if best.attention is not None:
            self._coverage_deficit_ratio.observe(coverage_deficit(best.attention))
            if best.attention.shape[1] > 1:
                self._attention_entropy_ratio.observe(attention_entropy(best.attention))


def attention_entropy(attention: Floats) -> float:
    """The mean entropy of the rows over log S: 0 if each looks at one position, 1 if each looks at all equally.

    Args:
        attention: float32 [rows, S], S at least 2; each row sums to 1.
    """
    entropies = -(attention * np.log(np.maximum(attention, 1e-12))).sum(axis=1)
    return float(entropies.mean() / math.log(attention.shape[1]))


def coverage_deficit(attention: Floats) -> float:
    """Mean over source positions of max(0, 1 - sum of the weights they got), as in Wu et al. 2016, eq. 14.

    Args:
        attention: float32 [rows, S].
    """
    return float(np.maximum(0.0, 1.0 - attention.sum(axis=0)).mean())
