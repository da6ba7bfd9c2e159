"""Every metric of the server, by name; all in base units. The engine emits plain values, which are rendered here.

`model` is empty for a model that is not served here. Other labels take values from closed sets only, never from a
request.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from attendant.runtime.answers import SIGNALS, DriftWatch, signals_of
from attendant.runtime.bundle.manifest import Reference
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.stepper import Floats
from attendant.server.engine.client import EngineClient, Prediction
from attendant.server.engine.messages import RequestStats, StepStats

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIO_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
PREDICTION_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0, 4.0, 10.0)
LENGTH_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

PHASES = ("admit", "encode", "step", "search", "select")

OF_MODEL = ("model",)

# The metrics that have no label but the model, by name.
HISTOGRAMS = {
    "queue_seconds": ("From submission to admission.", REQUEST_BUCKETS),
    "encode_seconds": ("In the encoder, with the requests encoded together with it; per request.", REQUEST_BUCKETS),
    "decode_seconds": ("From the end of encoding to the last step; per request.", REQUEST_BUCKETS),
    "time_to_first_token_seconds": ("From submission to the end of the first step.", REQUEST_BUCKETS),
    "inter_token_seconds": ("Mean time between the steps of a request, after the first one.", STEP_BUCKETS),
    "step_rows": ("Rows (live hypotheses) in a decoder step.", COUNT_BUCKETS),
    "request_source_tokens": ("Source tokens of a request that was answered, without EOS.", COUNT_BUCKETS),
    "request_target_tokens": ("Target tokens of a request's best hypothesis, without EOS.", COUNT_BUCKETS),
    "batch_efficiency_ratio": (
        "Attention cells of a step that meant something over those that were computed; the rest is padding.",
        RATIO_BUCKETS,
    ),
    "attention_entropy_ratio": (
        "Mean entropy of the best hypothesis's attention over that of uniform attention; of requests that asked for "
        "attention and have a source of several positions.",
        RATIO_BUCKETS,
    ),
    "coverage_deficit_ratio": (
        "Share of the source that the best hypothesis's attention left out: mean over positions of 1 less the sum of "
        "their weights, at least 0; of requests that asked for attention.",
        RATIO_BUCKETS,
    ),
    "prediction_ratio": (
        "Seconds until an interactive request's answer, over those that were expected when it was accepted.",
        PREDICTION_BUCKETS,
    ),
    "length_ratio": ("Target tokens of the best hypothesis over source tokens.", LENGTH_RATIO_BUCKETS),
}
COUNTERS = {
    "cancelled_rows": "Rows freed because the client went or its deadline passed.",
    "source_tokens": "Source tokens of requests that were answered.",
    "target_tokens": "Target tokens of all hypotheses that were returned.",
    "steps": "Decoder steps.",
    "unknown_tokens": "Source tokens of answered requests that were UNK to the model.",
    "engine_restarts": "Engines that were started again because their process died.",
    "hit_max_length": "Requests whose best hypothesis was cut at its maximum length.",
}
GAUGES = {
    "requests_waiting": "Requests that wait for rows.",
    "requests_running": "Requests that have rows.",
    "rows_running": "Rows (live hypotheses) now.",
    "rows_limit": "Rows that the model may have: --max-rows, times --workers; all models together have no more.",
    "bulk_requests": "Bulk requests that have a place in the engine.",
    "bulk_requests_limit": "Bulk requests that may have one: for each version, twice --max-rows, times --workers.",
    "ready": "1 if the model is served: loaded, with an engine that takes requests, not draining.",
}
# The whole server's: a bulk stream may name several models, a connection names none.
SERVER_GAUGES = {
    "bulk_streams": "Bulk streams that are open.",
    "bulk_streams_stalled": "Those whose client has not taken an answer for a second.",
    "bulk_answers_bytes": "Memory that answers of all calls have reserved, until they are written.",
    "bulk_answers_limit_bytes": "Memory that they may reserve.",
    "grpc_connections": "Connections to the gRPC port.",
    "http_connections": "Connections to the HTTP port.",
}


Bucket = tuple[str, float] | tuple[str, float, Exemplar]
"""Its bound, the number of values that are no larger, and an exemplar."""


class Count:
    """A counter's value for one set of labels."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def add_to(self, family: CounterMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, self.value)


class Distribution:
    """The values that a histogram counts under the same labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the largest value of each bucket except the last, which takes all larger values."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        self.sum = 0.0

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        """Adds a value. `exemplar`: labels of an example for the value's bucket, which replaces the former one."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self.sum += value
        if exemplar is not None:
            self._exemplars[place] = Exemplar(exemplar, value, time.time())

    def buckets(self) -> list[Bucket]:
        """Returns the buckets in the form of prometheus-client."""
        buckets: list[Bucket] = []
        total = 0.0
        for place, bound in enumerate((*self._bounds, math.inf)):
            total += self._counts[place]
            name: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            buckets.append((name, total, self._exemplars[place]) if place in self._exemplars else (name, total))
        return buckets

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, self.buckets(), self.sum)


Child = TypeVar("Child", Count, Distribution)


class _Labelled(Collector, Generic[Child]):
    """A metric with labels, which counts and observes in plain Python.

    About twenty values are recorded for every request, and more for every step. prometheus-client's own metrics take a
    lock for each value, and search the buckets one after the other: with them a call took a sixth more instructions in
    the server's process. So values are gathered here, and become the library's metrics when they are scraped. No lock
    is needed: CPython switches threads at calls and loops, and there is neither between reading a value and writing it.
    """

    _family_class: ClassVar[Any]
    _new: Callable[[], Child]

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str], *, namespace: str, registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation, self._labelnames = f"{namespace}_{name}", documentation, tuple(labelnames)
        self._children: dict[tuple[str, ...], Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """Returns the child with these values, one for each label."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{values} are not the values of {self._labelnames}")
        if values not in self._children:
            self._children[values] = self._new()
        return self._children[values]

    def collect(self) -> list[Metric]:
        family = self._family_class(self._name, self._documentation, labels=self._labelnames)
        for values, child in self._children.items():
            child.add_to(family, values)
        return [family]

    # Called at the registration, when there are no values yet: the registry checks that the name is free.
    describe = collect


class Counter(_Labelled[Count]):
    """Counts by the values of their labels."""

    _family_class = CounterMetricFamily
    _new = Count


class Histogram(_Labelled[Distribution]):
    """Distributions by the values of their labels."""

    _family_class = HistogramMetricFamily

    def __init__(self, *args: Any, buckets: Iterable[float], **options: Any) -> None:
        """`buckets`: their largest values; the others as for a counter."""
        self._new = partial(Distribution, tuple(map(float, buckets)))
        super().__init__(*args, **options)


class Metrics:
    """All metrics, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        histogram = partial(Histogram, namespace="attendant", registry=registry)
        counter = partial(Counter, namespace="attendant", registry=registry)
        gauge = partial(Gauge, namespace="attendant", registry=registry)
        self.histograms = {
            name: histogram(name, about, OF_MODEL, buckets=buckets) for name, (about, buckets) in HISTOGRAMS.items()
        }
        self.counters = {name: counter(name, about, OF_MODEL) for name, about in COUNTERS.items()}
        self.gauges = {name: gauge(name, about, OF_MODEL) for name, about in GAUGES.items()}
        self._server_gauges = {name: gauge(name, about, OF_MODEL).labels("") for name, about in SERVER_GAUGES.items()}
        self.request_seconds = histogram(
            "request_seconds",
            "From a request's arrival at the service to its answer or error.",
            ("model", "method"),
            buckets=REQUEST_BUCKETS,
        )
        self.step_seconds = histogram(
            "step_seconds",
            "Phases of the engine's rounds: admit, encode (only if requests joined), step (the graph), search, select.",
            ("model", "phase"),
            buckets=STEP_BUCKETS,
        )
        self.requests = counter("requests", "Requests by how they ended.", ("model", "method", "code"))
        self.rejected = counter(
            "rejected", "Requests that were refused, by why: see server/errors.py.", ("model", "reason")
        )
        self.request_bytes = counter(
            "request_bytes", "Bytes of the messages of requests, by method; with an empty model.", ("model", "method")
        )
        self.mispredicted = counter(
            "mispredicted",
            "Interactive requests that were accepted and took longer than expected, by what: time (not answered "
            "before its deadline), steps (more than twice as many).",
            ("model", "what"),
        )
        self.model_loads = counter(
            "model_loads",
            "Versions in repositories that were to be loaded, by outcome: served, refused.",
            ("model", "outcome"),
        )
        self.routed = counter(
            "routed",
            "Requests for a model that has a canary, by which version they got: stable, canary.",
            ("model", "role"),
        )
        self.shadow_answers = counter(
            "shadow_answers",
            "Answers that a shadow gave after the stable version, compared by their best text: same, different; "
            "failed: there was none.",
            ("model", "outcome"),
        )
        self.bundle_info = gauge(
            "bundle_info", "1, for each bundle that is served.", ("model", "version", "precision", "provider")
        )
        self.drift = gauge(
            "drift_index",
            "Population stability index of a quality signal of recent answers against the bundle's reference "
            "distribution; NaN until there are enough.",
            ("model", "signal"),
        )
        self._watched: dict[str, dict[EngineClient, tuple[str, ...]]] = {}

    def ended(
        self, *, model: str, method: str, code: str, seconds: float, exemplar: dict[str, str] | None = None
    ) -> None:
        """Counts a request that has ended; `exemplar`: its trace's id."""
        self.requests.labels(model, method, code).inc()
        self.request_seconds.labels(model, method).observe(seconds, exemplar)

    def set_ready(self, model: str, ready: bool) -> None:
        self.gauges["ready"].labels(model).set(int(ready))

    def forget_ready(self, model: str) -> None:
        """Removes the gauge of a model that is no longer served, which would look like one that can't be served."""
        self.gauges["ready"].remove(model)

    def watch_server(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        """Reads these gauges of the whole server at each scrape."""
        for name, read in gauges.items():
            self._server_gauges[name].set_function(read)

    def of_model(self, model: str) -> "ModelMetrics":
        """Returns the metrics of one version; all versions of a model are counted together."""
        return ModelMetrics(self, model, self._watched.setdefault(model, {}))


class ModelMetrics:
    """The metrics of one version of a model, their labels resolved once: a step is short."""

    def __init__(self, metrics: Metrics, model: str, watched: dict[EngineClient, tuple[str, ...]]) -> None:
        """`watched`: the runners of all versions of the model, with the labels of `bundle_info`."""
        self._observe = {name: metric.labels(model).observe for name, metric in metrics.histograms.items()}
        self._count = {name: metric.labels(model).inc for name, metric in metrics.counters.items()}
        self._observe_phase = {phase: metrics.step_seconds.labels(model, phase).observe for phase in PHASES}
        self._gauges = {name: metric.labels(model) for name, metric in metrics.gauges.items()}
        self._count_mispredicted = {kind: metrics.mispredicted.labels(model, kind).inc for kind in ("time", "steps")}
        self._count_shadowed = {
            outcome: metrics.shadow_answers.labels(model, outcome).inc for outcome in ("same", "different", "failed")
        }
        self._count_routed = {role: metrics.routed.labels(model, role).inc for role in ("stable", "canary")}
        self._metrics = metrics
        self._model = model
        self._watched = watched
        self._drift: DriftWatch | None = None

    def watch(self, runner: EngineClient, *, rows_limit: int, version: str, precision: str, provider: str) -> None:
        """Sets the constant values, and reads the gauges of all engines at each scrape, so that they can't go stale."""
        watched = self._watched
        watched[runner] = self._model, version, precision, provider
        self._metrics.bundle_info.labels(*watched[runner]).set(1)
        gauges: dict[str, Callable[[], float]] = {
            "requests_waiting": lambda: sum(each.num_waiting for each in watched),
            "requests_running": lambda: sum(each.num_running for each in watched),
            "rows_running": lambda: sum(each.num_rows for each in watched),
            "rows_limit": lambda: rows_limit if watched else 0,
            "bulk_requests": lambda: sum(each.bulk_permits.num_held for each in watched),
            "bulk_requests_limit": lambda: sum(each.bulk_permits.num_permits for each in watched),
        }
        for name, read in gauges.items():
            self._gauges[name].set_function(read)

    def unwatch(self, runner: EngineClient) -> None:
        info = self._watched.pop(runner)
        if info not in self._watched.values():  # two folders may hold the same bundle
            self._metrics.bundle_info.remove(*info)

    def watch_drift(self, reference: Reference | None) -> None:
        """Compares answers from now on with a bundle's reference distributions, if it has any."""
        self._drift = None if reference is None else DriftWatch(reference)
        for signal in SIGNALS:
            if self._drift is None:
                self._metrics.drift.remove(self._model, signal)
            else:
                self._metrics.drift.labels(self._model, signal).set_function(partial(self._drift.index, signal))

    def routed(self, role: str) -> None:
        """Counts a request that names no version by the version it got: stable or canary."""
        self._count_routed[role]()

    def shadowed(self, outcome: str) -> None:
        self._count_shadowed[outcome]()

    def restarted(self) -> None:
        self._count["engine_restarts"](1)

    def stepped(self, stats: StepStats) -> None:
        """Records a round of an engine."""
        for phase, seconds in stats.phase_seconds.items():
            self._observe_phase[phase](seconds)
        if stats.cancelled_rows:
            self._count["cancelled_rows"](stats.cancelled_rows)
        if stats.num_rows:
            self._count["steps"](1)
            self._observe["step_rows"](stats.num_rows)
            self._observe["batch_efficiency_ratio"](stats.useful_cells / stats.computed_cells)

    def predicted(self, prediction: Prediction) -> None:
        """Compares an interactive request that has ended with its prediction."""
        if prediction.late:
            self._count_mispredicted["time"]()
            return
        if prediction.steps > 2 * prediction.expected_steps:
            self._count_mispredicted["steps"]()
        if prediction.expected_seconds:
            self._observe["prediction_ratio"](prediction.seconds / prediction.expected_seconds)

    def answered(
        self,
        source_ids: Sequence[int],
        num_source_tokens: int,
        stats: RequestStats,
        exemplar: dict[str, str] | None = None,
    ) -> None:
        """Records an answered request.

        Args:
            source_ids: the encoder's input; its end symbol does not count as a token.
            exemplar: the trace's id.
        """
        self._observe["queue_seconds"](stats.queue, exemplar)
        self._observe["encode_seconds"](stats.encode, exemplar)
        self._observe["decode_seconds"](stats.decode, exemplar)
        self._observe["time_to_first_token_seconds"](stats.first_token, exemplar)
        if stats.steps > 1:
            self._observe["inter_token_seconds"]((stats.total - stats.first_token) / (stats.steps - 1))
        self._observe["request_source_tokens"](num_source_tokens)
        self._count["source_tokens"](num_source_tokens)
        if num_unknown := source_ids.count(UNK_ID):
            self._count["unknown_tokens"](num_unknown)

    def generated(
        self, source_ids: Sequence[int], num_source_tokens: int, hypotheses: Sequence[Hypothesis], *, by_default: bool
    ) -> None:
        """Records the quality signals of an answer's hypotheses, best first.

        Args:
            by_default: the bundle's decoding defaults were used, as for its reference distributions.
        """
        best = hypotheses[0]
        if by_default and self._drift is not None:
            self._drift.add(signals_of(source_ids, num_source_tokens, best))
        self._observe["request_target_tokens"](len(best.token_ids))
        self._observe["length_ratio"](len(best.token_ids) / num_source_tokens)
        self._count["target_tokens"](sum(len(hypothesis.token_ids) for hypothesis in hypotheses))
        if best.finish_reason is FinishReason.LENGTH:
            self._count["hit_max_length"](1)
        if best.attention is not None:
            self._observe["coverage_deficit_ratio"](coverage_deficit(best.attention))
            if best.attention.shape[1] > 1:
                self._observe["attention_entropy_ratio"](attention_entropy(best.attention))


def attention_entropy(attention: Floats) -> float:
    """Returns the rows' mean entropy over log S: 0 if each looks at one position, 1 if each looks at all equally.

    Args:
        attention: float32 [rows, S], S at least 2; each row sums to 1.
    """
    entropies = -(attention * np.log(np.maximum(attention, 1e-12))).sum(axis=1)
    return float(entropies.mean() / math.log(attention.shape[1]))


def coverage_deficit(attention: Floats) -> float:
    """Returns the mean over source positions of max(0, 1 - sum of their weights), as in Wu et al. 2016, eq. 14.

    Args:
        attention: float32 [rows, S].
    """
    return float(np.maximum(0.0, 1.0 - attention.sum(axis=0)).mean())
