"""Tests of every query of the dashboard and of the autoscalers: a real Prometheus scrapes a server under load.

They need Debian's package `prometheus`. They need no GPU: a fixed page replaces the GPU's exporter.
"""

import asyncio
import http.server
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from attendant.runtime.stepper import Floats
from attendant.server.metrics import attention_entropy, coverage_deficit
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
    """Answers, and the number of calls by method and code."""

    answers: list[messages.GenerateResponse] = field(default_factory=list)
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
                parent = f"00-{TRACE_ID}-{number + 1:016x}-01"
                load.answers.append(await stub.Generate(request, metadata=[("traceparent", parent)], timeout=30))

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


def determined(load: Load, seconds: float) -> dict[str, dict[str, Any]]:
    """Returns the values that the load determines, by title and legend; rates are over `seconds`."""
    num_all = load.num_ended.total()
    ratios = [target / source for source, target in zip(load.source_tokens, load.target_tokens, strict=True)]

    # Prometheus extrapolates from the first and the last sample to the window's ends, by a second each, but not below
    # zero. The distance from zero differs between series.
    def rate(number: float) -> Any:
        return pytest.approx(number / seconds, rel=2.4 / seconds)

    def mean(values: Iterable[float]) -> Any:
        return pytest.approx(statistics.fmean(values), rel=1.2 / seconds)

    return {
        "Requests": {name: rate(num) for name, num in load.num_ended.items()},
        "Not answered, of all": {"INVALID_ARGUMENT": pytest.approx(NUM_WRONG / num_all, rel=1.2 / seconds)},
        "Refused": {"invalid_argument": rate(NUM_WRONG)},
        "Mean by phase": {phase: mean(load.seconds(phase)) for phase in ("queue", "encode", "decode")},
        "Tokens": {"source": rate(sum(load.source_tokens)), "target": rate(sum(load.target_tokens))},
        "Target over source": {"mean": mean(ratios)},
        "Cut and unknown": {"answers cut at the maximum length": 0, "source tokens unknown": 0},
        "Attention": {
            "entropy": mean(map(attention_entropy, load.attention)),
            "left out": mean(map(coverage_deficit, load.attention)),
        },
        "Ready, and engines started again": {"g2p-en ready": 1, "g2p-en restarts in 1 h": 0},
        "GPU use": {"here 0": 0.4},
        "GPU memory": {"here 0": 1000 * 2**20},
        "GPU power": {"here 0": 250},
    }


SHARES = {"Slower than the objective, of all", "Rows in use", "Padding waste"}
"""Panels whose values are at most 1."""


def check_quantile(title: str, expression: str, legend: str) -> None:
    """Checks that a line computes the quantile that its legend or its panel's title names."""
    percent = re.search(r"\bp(\d+)$", legend) or re.search(r"(\d+)th percentile", title)
    if percent is not None:
        assert expression.startswith(f"histogram_quantile({int(percent[1]) / 100:g}, "), (title, legend)


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
            check_quantile(title, expression, legend)
            expression = expression.replace("$model", ".*").replace("$__rate_interval", f"{seconds}s")
            series = monitor.query(expression)
            assert series, f"{title}, {legend}: there is no such metric"
            for labels, value in series:
                known = labels | {"instance": "here"}
                rendered = re.sub(r"{{(\w+)}}", lambda name, known=known: known[name[1]], legend)
                assert 0 <= value <= (1 if title in SHARES else sys.float_info.max), (title, rendered)
                values.setdefault(title, {})[rendered] = value
        expected = determined(load, seconds)
        assert {title: values[title] for title in expected} == expected
        for expression in scaler_queries():
            (value,) = [value for _, value in monitor.query(f"max_over_time(({expression})[{seconds}s:1s])")]
            assert 0 <= value <= 100
        linked = monitor.ask(
            "query_exemplars", query="attendant_request_seconds_bucket", start=began - 60, end=time.time()
        )
        traces = {exemplar["labels"]["trace_id"] for series in linked for exemplar in series["exemplars"]}
        assert TRACE_ID in traces
