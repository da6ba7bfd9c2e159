"""The alert rules fire when they should, by Prometheus' own tool, where it is installed (Debian: prometheus)."""

import re
import shutil
import subprocess

import pytest
import yaml
from prometheus_client import CollectorRegistry

from attendant.server.metrics import Metrics
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus"
PROMTOOL = shutil.which("promtool")
SUFFIXES = {"counter": ("_total",), "histogram": ("", "_bucket", "_sum", "_count"), "gauge": ("",)}
MADE = {"attendant_occupancy"}
"""By prometheus-adapter."""


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool; apt-get install prometheus")
@pytest.mark.parametrize("arguments", ["test rules attendant.test.yml", "check config prometheus.yml"])
def test_prometheus_own_tool_finds_nothing(arguments: str) -> None:
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, *arguments.split()], cwd=RULES, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_alert_is_seen_to_fire() -> None:
    rules = yaml.safe_load((RULES / "attendant.rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    (tests,) = yaml.safe_load((RULES / "attendant.test.yml").read_text())["tests"]
    assert alerts == {test["alertname"] for test in tests["alert_rule_test"] if test["exp_alerts"]}


def test_queries_name_metrics_that_there_are() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    known = MADE | {family.name + suffix for family in registry.collect() for suffix in SUFFIXES.get(family.type, ())}
    paths = [*RULES.glob("*.rules.yml"), DEPLOY / "grafana" / "attendant.json", *DEPLOY.rglob("kubernetes/**/*.yaml")]
    named = {name for path in paths for name in re.findall(r"(?<![:\w])attendant_\w+(?!:)\b", path.read_text())}
    assert len(named) > 30
    assert named <= known
