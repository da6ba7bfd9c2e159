"""Tests of every query of the dashboard and of the autoscalers: a real Prometheus scrapes a server under load.

They need Debian's package `prometheus`. They need no GPU: a fixed page replaces the GPU's exporter.
"""

import asyncio
import bisect
import http.server
import json
import math
import re
import shutil
import statistics
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from attendant.runtime.stepper import Floats
from attendant.server.metrics import COUNT_BUCKETS, REQUEST_BUCKETS, attention_entropy, coverage_deficit
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.paths import ROOT
from tests.ports import free_ports
from tests.server_process import server

DEPLOY = ROOT / "deploy"
PROMETHEUS = shutil.which("prometheus")
PATIENCE_SECONDS = 60.0
SETTLED_SECONDS = 3.0
"""Time until Prometheus, which scrapes each second, has all metrics of a call. One page may have only some."""
QUIET_SECONDS = 12
"""Pause before the load. The window of the rates begins with it, so that extrapolation changes the rates little."""
WORDS = ("onnx", "phoneme", "knowledgeable", "attention", "sequence", "decoder", "a", "bee")
NUM_CALLS, NUM_BULK, NUM_WRONG, CONCURRENCY = 320, 80, 24, 12
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
GPU_PAGE = "".join(
    f'# TYPE DCGM_FI_DEV_{name} gauge\nDCGM_FI_DEV_{name}{{gpu="0",Hostname="here"}} {value}\n'
    for name, value in (("GPU_UTIL", 40), ("FB_USED", 1000), ("POWER_USAGE", 250))
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus; apt-get install prometheus"),
]


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, path: str, **parameters: str | float) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns the current samples, each with its labels."""
        return [
            (sample["metric"], float(sample["value"][1])) for sample in self.ask("query", query=expression)["result"]
        ]

    def wait_until(self, expression: str, expected: float) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while [value for _, value in self.query(expression)] != [expected]:
            assert time.monotonic() < give_up, f"{expression} is {self.query(expression)}, not {expected}"
            time.sleep(0.2)


@dataclass
class Load:
    """Answers, and durations of calls, as measured by the load generator."""

    answers: list[messages.GenerateResponse] = field(default_factory=list)
    call_seconds: list[float] = field(default_factory=list)
    num_ended: Counter[str] = field(default_factory=Counter)

    def seconds(self, phase: str) -> list[float]:
        return [getattr(answer.timings, phase) for answer in self.answers]

    @property
    def source_tokens(self) -> list[int]:
        """Returns the number of source tokens of each answer, without the end symbol that the answer includes."""
        return [len(answer.source_tokens) - 1 for answer in self.answers]

    @property
    def attention(self) -> list[Floats]:
        """Returns the attention of the answers that have it."""
        attentions = [answer.hypotheses[0].attention for answer in self.answers]
        return [
            np.array(attention.weights, np.float32).reshape(attention.rows, attention.columns)
            for attention in attentions
            if attention.rows
        ]

    @property
    def target_tokens(self) -> list[int]:
        return [len(answer.hypotheses[0].tokens) for answer in self.answers]


@contextmanager
def gpu_exporter() -> Iterator[int]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(GPU_PAGE.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening.server_address[1]
        listening.shutdown()


@contextmanager
def prometheus(folder: Path, **targets: int) -> Iterator[Prometheus]:
    """Runs Prometheus with the configuration in deploy/prometheus, but scrapes each second.

    Args:
        targets: the port of each job on this machine.
    """
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    assert {job["job_name"] for job in config["scrape_configs"]} == targets.keys()
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    flags = [
        flag for flag in compose["services"]["prometheus"]["command"] if not flag.startswith(("--config", "--storage"))
    ]
    assert PROMETHEUS is not None
    command = [PROMETHEUS, *flags, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process,
    ):
        try:
            started = Prometheus(f"http://127.0.0.1:{port}")
            give_up = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    started.ask("status/buildinfo")
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < give_up, (folder / "log").read_text()
                    time.sleep(0.1)
            yield started
        finally:
            process.terminate()


async def put_under_load(target: str, num_calls: int, num_bulk: int, num_wrong: int) -> Load:
    load, turns = Load(), asyncio.Semaphore(CONCURRENCY)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)

        async def call(number: int) -> None:
            request = messages.GenerateRequest(text=WORDS[number % len(WORDS)])
            request.output.attention = number % 4 == 0
            async with turns:
                began = time.monotonic()
                parent = f"00-{TRACE_ID}-{number + 1:016x}-01"
                load.answers.append(await stub.Generate(request, metadata=[("traceparent", parent)], timeout=30))
                load.call_seconds.append(time.monotonic() - began)

        async def call_wrongly() -> None:
            async with turns:
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Generate(messages.GenerateRequest(text=""))

        async def stream() -> None:
            requests = (messages.GenerateRequest(text=WORDS[number % len(WORDS)]) for number in range(num_bulk))
            async for answer in stub.GenerateBatch(requests):
                load.answers.append(answer.response)

        calls = [*map(call, range(num_calls)), *(call_wrongly() for _ in range(num_wrong)), stream()]
        await asyncio.gather(*calls)
    load.num_ended.update(
        {"Generate OK": num_calls, "Generate INVALID_ARGUMENT": num_wrong, "GenerateBatch OK": num_bulk}
    )
    return load


def panels() -> Iterator[tuple[str, str, str]]:
    """Yields title, query and legend of each line of the dashboard."""
    for panel in json.loads((DEPLOY / "grafana" / "attendant.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def scaler_queries() -> Iterator[str]:
    for path in (DEPLOY / "kubernetes").rglob("scaledobject.yaml"):
        for trigger in yaml.safe_load(path.read_text())["spec"]["triggers"]:
            yield trigger["metadata"]["query"]


Check = Callable[[float], bool]


def near(expected: float, relative: float = 0) -> Check:
    return lambda value: math.isclose(value, expected, rel_tol=relative, abs_tol=1e-9)


def within(low: float, high: float) -> Check:
    return lambda value: low <= value <= high


def quantile_of(values: Sequence[float], of: float, buckets: Sequence[float]) -> Check:
    """Accepts the bucket of the true quantile and the next, because Prometheus's rank may differ by one value."""
    ordered = sorted(values)
    low, high = (ordered[min(len(ordered) - 1, max(0, round(of * len(ordered)) + off))] for off in (-2, 1))
    edges = [0.0, *buckets]
    below, above = bisect.bisect_left(edges, low) - 1, bisect.bisect_left(edges, high)
    return within(edges[max(0, below)], edges[min(above, len(edges) - 1)])


def edge_above(values: Sequence[float], of: float) -> float:
    """Returns the upper edge of the bucket that holds a quantile."""
    quantile = sorted(values)[math.ceil(of * len(values)) - 1]
    return REQUEST_BUCKETS[min(bisect.bisect_left(REQUEST_BUCKETS, quantile), len(REQUEST_BUCKETS) - 1)]


def expectations(load: Load, seconds: float) -> dict[str, dict[str, Check]]:
    """Returns the checks by title and legend; rates are over `seconds`."""
    num_all = load.num_ended.total()
    ratios = [target / source for source, target in zip(load.source_tokens, load.target_tokens, strict=True)]
    # Prometheus extrapolates from the first and the last sample to the window's ends, by a second each, but not below
    # zero. The distance from zero differs between series.
    roughly, ratio = 2.4 / seconds, 1.2 / seconds
    phases = ("queue", "encode", "decode")
    return {
        "Requests": {name: near(num / seconds, roughly) for name, num in load.num_ended.items()},
        "Not answered, of all": {"INVALID_ARGUMENT": near(NUM_WRONG / num_all, ratio)},
        "Refused": {"invalid_argument": near(NUM_WRONG / seconds, roughly)},
        "Waiting and running": {
            "waiting": within(0, CONCURRENCY + NUM_BULK),
            "running": within(1, CONCURRENCY + NUM_BULK),
            "bulk": within(0, NUM_BULK),
        },
        "Calls": {
            # A call takes longer for its caller than for the server, so the callers' durations are an upper bound.
            **{f"Generate p{of}": within(1e-4, edge_above(load.call_seconds, of / 100)) for of in (50, 99)},
            **{f"GenerateBatch p{of}": within(1e-4, 30) for of in (50, 99)},
        },
        "Mean by phase": {phase: near(statistics.fmean(load.seconds(phase)), ratio) for phase in phases},
        "By phase, 99th percentile": {
            phase: quantile_of(load.seconds(phase), 0.99, REQUEST_BUCKETS) for phase in phases
        },
        "First token, and between two": {
            "first p50": within(1e-4, max(load.seconds("total"))),
            "first p99": within(1e-4, edge_above(load.seconds("total"), 1)),
            "between two": within(1e-5, max(load.seconds("decode"))),
        },
        "Slower than the objective, of all": {
            "g2p-en": within(0, sum(seconds > 1 for seconds in load.call_seconds) / (NUM_CALLS + NUM_WRONG) + 0.02)
        },
        "Engine, seconds per second": {
            phase: within(0, 1.1) for phase in ("admit", "encode", "step", "search", "select")
        },
        "Rows in use": {name: within(1 / 256, 1) for name in ("g2p-en", "here, all models")},
        "Rows per step": {"mean": within(1, 256)},
        "Padding waste": {"of the attention": within(0, 1)},
        "Seconds over those expected": {"p50": within(0.01, 10), "p90": within(0.01, 10)},
        "Tokens": {
            "source": near(sum(load.source_tokens) / seconds, roughly),
            "target": near(sum(load.target_tokens) / seconds, roughly),
        },
        "Tokens per request": {
            f"{name} p{of}": quantile_of(values, of / 100, COUNT_BUCKETS)
            for name, values in (("source", load.source_tokens), ("target", load.target_tokens))
            for of in (50, 99)
        },
        "Drift": {
            f"g2p-en {signal}": within(0, 100)
            for signal in ("source_tokens", "unknown_ratio", "length_ratio", "mean_log_prob", "truncated")
        },
        "Target over source": {"mean": near(statistics.fmean(ratios), ratio)},
        "Cut and unknown": {"answers cut at the maximum length": near(0), "source tokens unknown": near(0)},
        "Attention": {
            "entropy": near(statistics.fmean(map(attention_entropy, load.attention)), ratio),
            "left out": near(statistics.fmean(map(coverage_deficit, load.attention)), ratio),
        },
        "Processors": {"here, without workers": within(0.001, 4)},
        "Memory": {"here, without workers": within(2**24, 2**31)},
        "Ready, and engines started again": {"g2p-en ready": near(1), "g2p-en restarts in 1 h": near(0)},
        "GPU use": {"here 0": near(0.4)},
        "GPU memory": {"here 0": near(1000 * 2**20)},
        "GPU power": {"here 0": near(250)},
    }


GAUGES = {"Waiting and running", "Rows in use"}
"""Panels that show current values. For these, the test takes the largest value during the load."""


def test_every_query_has_the_right_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No collector listens there: the spans are lost, the exemplars stay.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with (
        server(str(ROOT / "models" / "g2p-en"), "--traces", "on") as started,
        gpu_exporter() as gpu,
        prometheus(tmp_path, attendant=started.metrics_port, gpu=gpu) as monitor,
    ):
        monitor.wait_until('up{job="attendant"}', 1)
        # The first value of a series does not count as an increase, so a first load creates the series.
        asyncio.run(put_under_load(started.target, 1, 1, 1))
        monitor.wait_until("sum(attendant_requests_total)", 3)
        time.sleep(SETTLED_SECONDS)
        began = time.time()
        time.sleep(QUIET_SECONDS)
        load = asyncio.run(put_under_load(started.target, NUM_CALLS, NUM_BULK, NUM_WRONG))
        monitor.wait_until("sum(attendant_requests_total)", 3 + load.num_ended.total())
        time.sleep(SETTLED_SECONDS)
        seconds = math.ceil(time.time() - began) + 1
        values: dict[str, dict[str, float]] = {}
        for title, expression, legend in panels():
            expression = expression.replace("$model", ".*").replace("$__rate_interval", f"{seconds}s")
            if title in GAUGES:
                expression = f"max_over_time(({expression})[{seconds}s:1s])"
            for labels, value in monitor.query(expression):
                known = labels | {"instance": "here"}
                rendered = re.sub(r"{{(\w+)}}", lambda name, known=known: known[name[1]], legend)
                values.setdefault(title, {})[rendered] = value
        expected = expectations(load, seconds)
        assert {title: set(lines) for title, lines in values.items()} == {
            t: set(lines) for t, lines in expected.items()
        }
        wrong = {
            (title, legend): values[title][legend]
            for title, checks in expected.items()
            for legend, check in checks.items()
            if not check(values[title][legend])
        }
        assert not wrong, wrong
        for expression in scaler_queries():
            (value,) = [value for _, value in monitor.query(f"max_over_time(({expression})[{seconds}s:1s])")]
            assert 0 <= value <= 100
        linked = monitor.ask(
            "query_exemplars", query="attendant_request_seconds_bucket", start=began - 60, end=time.time()
        )
        traces = {exemplar["labels"]["trace_id"] for series in linked for exemplar in series["exemplars"]}
        assert TRACE_ID in traces
