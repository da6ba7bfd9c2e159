"""Every metric's name, in one place, and how the engine's plain stats become them.

Base units; no colons; labels only from closed sets. A registry is given, so that tests use their own.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from runtime.decoding.hypothesis import FinishReason, Hypothesis
from runtime.stepper import Floats
from runtime.tokenizer import UNK_ID
from server.engine.request import RequestTimings, StepStats

PREFIX = "attendant_"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHORT_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
LENGTH_RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
PHASES = ("admit", "encode", "step", "search", "select")


class Queue(Protocol):
    """Whoever knows how many wait and how many run."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...


class Metrics:
    """The metrics of all models of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(PREFIX + name, text, ("model", *labels), buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, ("model", *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, text, ("model", *labels), registry=registry)

        self.request_seconds = histogram("request_seconds", "From a call's arrival to its end.", SECONDS, "method")
        self.queue_seconds = histogram("queue_seconds", "From submission to admission.", SECONDS)
        self.encode_seconds = histogram("encode_seconds", "Encoding, with the requests encoded beside.", SECONDS)
        self.decode_seconds = histogram("decode_seconds", "From the end of encoding to the last step.", SECONDS)
        self.time_to_first_token_seconds = histogram(
            "time_to_first_token_seconds", "From submission to the end of the first decoder step.", SECONDS
        )
        self.inter_token_seconds = histogram(
            "inter_token_seconds", "Mean time between the decoder steps of a request.", SHORT_SECONDS
        )
        self.step_seconds = histogram("step_seconds", "The engine's phases, per step.", SHORT_SECONDS, "phase")
        self.step_rows = histogram("step_rows", "Live hypotheses stepped together.", COUNTS)
        self.request_source_tokens = histogram("request_source_tokens", "Source tokens of a request.", COUNTS)
        self.request_target_tokens = histogram("request_target_tokens", "Tokens of its best hypothesis.", COUNTS)
        self.batch_efficiency_ratio = histogram(
            "batch_efficiency_ratio", "Attention cells that meant something over those computed, per step.", RATIOS
        )
        self.requests = counter("requests_total", "Calls ended, by gRPC code.", "method", "code")
        self.rejected = counter("rejected_total", "Requests refused before they were admitted.", "reason")
        self.cancelled_rows = counter("cancelled_rows_total", "Rows freed because nobody waited for them any more.")
        self.source_tokens = counter("source_tokens_total", "Source tokens of answered requests.")
        self.target_tokens = counter("target_tokens_total", "Tokens of their best hypotheses.")
        self.steps = counter("steps_total", "Decoder steps.")
        self.requests_waiting = gauge("requests_waiting", "Requests that wait for rows.")
        self.requests_running = gauge("requests_running", "Requests that have been admitted.")
        self.rows_running = gauge("rows_running", "Live hypotheses of all requests.")
        self.rows_limit = gauge("rows_limit", "Rows that may run at once (--max-rows).")
        self.bundle_info = gauge("bundle_info", "1; what is served.", "version", "precision", "provider")
        self.ready = gauge("ready", "1 while the model's health is SERVING.")
        self.attention_entropy_ratio = histogram(
            "attention_entropy_ratio",
            "Mean entropy of attention over the largest possible; of requests that asked for attention.",
            RATIOS,
        )
        self.coverage_deficit_ratio = histogram(
            "coverage_deficit_ratio",
            "Share of the source that attention left out; of requests that asked for attention.",
            RATIOS,
        )
        self.unknown_tokens = counter("unknown_tokens_total", "UNK among source tokens and best hypotheses.")
        self.hit_max_length = counter("hit_max_length_total", "Best hypotheses that were cut at max_length.")
        self.length_ratio = histogram("length_ratio", "Target tokens over source tokens.", LENGTH_RATIOS)

    def announce(self, model: str, *, version: str, precision: str, provider: str, max_rows: int) -> None:
        """Says what is served, and lets the model's series begin at 0."""
        self.bundle_info.labels(model, version, precision, provider).set(1)
        self.rows_limit.labels(model).set(max_rows)
        self.ready.labels(model).set(0)
        for phase in PHASES:
            self.step_seconds.labels(model, phase)
        for metric in (self.steps, self.cancelled_rows, self.source_tokens, self.target_tokens):
            metric.labels(model)
        for metric in (self.unknown_tokens, self.hit_max_length):
            metric.labels(model)

    def watch(self, model: str, queue: Queue) -> None:
        """Lets these gauges be read off their owner at each scrape: a count kept beside it could drift."""
        self.requests_waiting.labels(model).set_function(lambda: queue.num_waiting)
        self.requests_running.labels(model).set_function(lambda: queue.num_running)

    def step(self, model: str, stats: StepStats) -> None:
        """One step of the engine."""
        self.rows_running.labels(model).set(stats.rows)
        if stats.cancelled_rows:
            self.cancelled_rows.labels(model).inc(stats.cancelled_rows)
        if not stats.num_rows:
            return
        self.steps.labels(model).inc()
        self.step_rows.labels(model).observe(stats.num_rows)
        self.batch_efficiency_ratio.labels(model).observe(stats.useful_cells / stats.computed_cells)
        for phase, seconds in stats.phase_seconds.items():
            if phase != "encode" or stats.num_encoded:
                self.step_seconds.labels(model, phase).observe(seconds)

    def call(self, model: str, method: str, code: str, seconds: float) -> None:
        """One call of ours, however it ended; `model` is empty where the request named none that is served."""
        self.requests.labels(model, method, code).inc()
        self.request_seconds.labels(model, method).observe(seconds)

    def answer(
        self, model: str, source_ids: Sequence[int], num_source_tokens: int, best: Hypothesis, timings: RequestTimings
    ) -> None:
        """One answered request."""
        self.queue_seconds.labels(model).observe(timings.queue)
        self.encode_seconds.labels(model).observe(timings.encode)
        self.decode_seconds.labels(model).observe(timings.decode)
        self.time_to_first_token_seconds.labels(model).observe(timings.first_token)
        if timings.steps > 1:
            after_first = timings.total - timings.first_token
            self.inter_token_seconds.labels(model).observe(after_first / (timings.steps - 1))
        num_target_tokens = len(best.token_ids)
        self.request_source_tokens.labels(model).observe(num_source_tokens)
        self.request_target_tokens.labels(model).observe(num_target_tokens)
        self.source_tokens.labels(model).inc(num_source_tokens)
        self.target_tokens.labels(model).inc(num_target_tokens)
        self.length_ratio.labels(model).observe(num_target_tokens / num_source_tokens)
        if unknown := list(source_ids).count(UNK_ID) + best.token_ids.count(UNK_ID):
            self.unknown_tokens.labels(model).inc(unknown)
        if best.finish_reason is FinishReason.LENGTH:
            self.hit_max_length.labels(model).inc()
        if best.attention is not None and best.attention.shape[1] > 1:
            self.attention_entropy_ratio.labels(model).observe(entropy_ratio(best.attention))
            self.coverage_deficit_ratio.labels(model).observe(coverage_deficit(best.attention))


def entropy_ratio(attention: Floats) -> float:
    """Mean over the rows of [T, S] of entropy / log S: 0 looks at one place, 1 at all alike."""
    weights = attention.astype("float64")
    # 0 log 0 is 0.
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(1)
    return float(min(1.0, max(0.0, entropy.mean() / math.log(weights.shape[1]))))


def coverage_deficit(attention: Floats) -> float:
    """Mean over the columns of [T, S] of what is missing from 1: the share of the source that was not looked at."""
    covered = attention.sum(0).clip(0.0, 1.0)
    return float(1.0 - covered.mean())
