"""Tests of deploy/ and compose.yaml, which are not run: they are valid by their schemas and match the server's code.

Prometheus' own tool checks the alert rules if it is installed (Debian: prometheus).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from attendant.server.config import BUNDLES_VARIABLE, OPTIONS, PREFIX, ServerConfig
from attendant.server.lifecycle import LIVENESS, STARTUP
from attendant.server.metrics import Metrics
from attendant_client.command import parser as client_parser
from tests.configuration import parse_config
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
GRAFANA = DEPLOY / "grafana"
VALUES = KUBERNETES / "components" / "hpa" / "prometheus-adapter.yaml"
"""Values for another project's chart. The file is not a manifest."""

DEFAULTS = ServerConfig(bundles=(Path("bundle"),))
END_SECONDS = 5
"""Time that the server needs to end after the drain: docs/reliability.md."""

USER = int(re.findall(r"^USER (\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0])
"""Id of the user in the images."""

KUBECTL = shutil.which("kubectl")
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
KINDS_WITHOUT_SCHEMA = {"InferenceService", "ScaledObject", "ServiceMonitor", "ServingRuntime"}
"""Kinds of other projects. The library has schemas only of Kubernetes' kinds."""


def load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def named_by(kustomization: Path) -> list[Path]:
    content = load(kustomization)
    names = [*content.get("resources", ()), *content.get("components", ())]
    names += [patch["path"] for patch in content.get("patches", ())]
    return [(kustomization.parent / name).resolve() for name in names]


def test_kustomizations_name_every_manifest_and_nothing_else() -> None:
    named = {path for kustomization in KUSTOMIZATIONS for path in named_by(kustomization)}
    for path in named:
        assert (path / "kustomization.yaml" if path.suffix == "" else path).is_file(), path
    manifests = {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert manifests == {VALUES, *(path for path in named if path.suffix == ".yaml")}


def check_manifest(manifest: Mapping[str, Any]) -> None:
    if manifest["kind"] not in KINDS_WITHOUT_SCHEMA:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", ["base", "components", "workload"])
def test_manifests_are_kubernetes_own(folder: str) -> None:
    for path in (KUBERNETES / folder).rglob("*.yaml"):
        if path.name != "kustomization.yaml" and path != VALUES:
            check_manifest(load(path))


def test_pods_run_as_the_images_user() -> None:
    users = {user for path in KUBERNETES.rglob("*.yaml") for user in values_of(load(path), "runAsUser")}
    service, job = yaml.safe_load_all((DEPLOY / "torchrun" / "job.yaml").read_text())
    check_manifest(service)
    check_manifest(job)
    context = job["spec"]["template"]["spec"]["securityContext"]
    assert users == {context["runAsUser"]} == {context["fsGroup"]} == {USER}


@pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl")
@pytest.mark.parametrize("folder", ["overlays/cpu", "overlays/gpu", "overlays/canary", "kserve"])
def test_overlays_are_kubernetes_own(folder: str) -> None:
    assert KUBECTL is not None
    built = subprocess.run([KUBECTL, "kustomize", KUBERNETES / folder], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    manifests = list(yaml.safe_load_all(built.stdout))
    assert manifests
    for manifest in manifests:
        check_manifest(manifest)


def test_the_pages_command_makes_a_rule_of_the_operators() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"```sh\n(.*?) \| kubectl apply -f -\n```", page, re.DOTALL)
    output = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rule = yaml.safe_load(output)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == load(DEPLOY / "prometheus" / "attendant.rules.yml")


@dataclass(frozen=True)
class Start:
    """A file that starts the server, its open ports, and its time limit from the signal to the end, if it sets one."""

    origin: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    ports: frozenset[int]
    grace_seconds: float | None = None

    @property
    def config(self) -> ServerConfig:
        ours = {name: value for name, value in self.environment.items() if name.startswith(PREFIX)}
        return parse_config(self.arguments, {BUNDLES_VARIABLE: "bundle", **ours})


def starts() -> Iterator[Start]:
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        manifest, origin = load(path), str(path.relative_to(ROOT))
        spec = manifest.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        for container in pod.get("containers", ()):
            environment = {entry["name"]: entry["value"] for entry in container.get("env", ())}
            ports = frozenset(port["containerPort"] for port in container.get("ports", ()))
            grace = pod.get("terminationGracePeriodSeconds")
            if grace is not None:
                grace -= container["lifecycle"]["preStop"]["sleep"]["seconds"]
            # Options there would take precedence over variables that an overlay sets.
            assert "args" not in container
            yield Start(origin, (), environment, ports, grace)
    service = load(ROOT / "compose.yaml")["services"]["attendant"]
    ports = frozenset(int(port.rsplit(":", 1)[1]) for port in service["ports"])
    grace = float(service["stop_grace_period"].removesuffix("s"))
    yield Start("compose.yaml", service.get("command", ()), service["environment"], ports, grace)
    for path in sorted(DEPLOY.rglob("*.service")):
        unit = path.read_text().replace("%i", "1")  # the first of its servers
        # Options there would take precedence over those of the unit's EnvironmentFile.
        assert "\nExecStart=/opt/attendant/bin/attendant serve\n" in unit
        environment = dict(re.findall(r'^Environment="?(\w+)=([^"\n]*)', unit, re.MULTILINE))
        (grace,) = re.findall(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)
        assert "RestartPreventExitStatus=2\n" in unit
        yield Start(str(path.relative_to(ROOT)), (), environment, frozenset({50051, 9091}), float(grace))
    image = (ROOT / "Dockerfile").read_text()
    environment = dict(re.findall(rf"\b({PREFIX}\w+)=(\S+)", image))
    exposed = re.findall(r"\d+", re.findall("EXPOSE(.*)", image)[0])
    yield Start("Dockerfile", (), environment, frozenset(map(int, exposed)))


@pytest.mark.parametrize("start", list(starts()), ids=lambda start: start.origin)
def test_the_server_takes_the_options_and_ports_it_is_started_with(start: Start) -> None:
    assert start.ports <= {start.config.port, start.config.metrics_port}
    if start.grace_seconds is not None:
        assert start.grace_seconds >= start.config.drain_seconds + END_SECONDS


def test_every_variable_is_one_of_ours() -> None:
    client = set(re.findall(rf"{PREFIX}\w+", Path(client_parser.__file__).read_text()))
    known = {option.variable for option in OPTIONS} | {BUNDLES_VARIABLE} | client | {f"{PREFIX}PORT"}
    files = [path for path in DEPLOY.rglob("*") if path.is_file()] + [ROOT / "compose.yaml", ROOT / "Dockerfile"]
    used = {name for path in files for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", path.read_text(errors="replace"))}
    assert used
    assert used <= known


def values_of(node: Any, key: str) -> Iterator[Any]:
    """Yields all values of a key, at any depth."""
    if isinstance(node, dict) and key in node:
        yield node[key]
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from values_of(value, key)


def test_probes_request_services_that_health_answers() -> None:
    for path in (KUBERNETES / "workload" / "deployment.yaml", KUBERNETES / "kserve" / "servingruntime.yaml"):
        manifest = load(path)
        for probe, service in (("startupProbe", STARTUP), ("readinessProbe", ""), ("livenessProbe", LIVENESS)):
            (settings,) = values_of(manifest, probe)
            assert settings["grpc"]["port"] == DEFAULTS.port and settings["grpc"].get("service", "") == service
        (startup,) = values_of(manifest, "startupProbe")
        assert startup["periodSeconds"] * startup["failureThreshold"] > DEFAULTS.load_seconds


def test_all_configurations_have_the_servers_ports() -> None:
    ports = {"grpc": DEFAULTS.port, "http": DEFAULTS.metrics_port}
    service = load(KUBERNETES / "base" / "service.yaml")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    container = next(values_of(load(KUBERNETES / "workload" / "deployment.yaml"), "containers"))[0]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    jobs = {job["job_name"]: job for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    assert [config["port"] for config in jobs["attendant"]["dns_sd_configs"]] == [DEFAULTS.metrics_port]
    assert jobs["attendant"]["dns_sd_configs"][0]["names"] == [service["metadata"]["name"]]
    assert set(load(ROOT / "compose.yaml")["services"]) == {"attendant", "prometheus", "grafana"}


def test_compose_mounts_and_builds_existing_files() -> None:
    compose = load(ROOT / "compose.yaml")
    vendored = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(vendored.read_text()))
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"], volume
    stages = set(re.findall(r"^FROM .* AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    target = compose["services"]["attendant"]["build"]["target"]
    assert re.sub(r"\$\{\w+:-(.*?)\}", r"\1", target) in stages
    # By default compose looks for our image in a registry first.
    own = [service for service in compose["services"].values() if "/" not in service["image"]]
    assert [service["pull_policy"] for service in own] == ["build"]


def test_the_images_are_built_from_existing_files() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = [
        name for names in re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE) for name in names.split()
    ]
    in_context = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert [name for name in (*copied, *in_context) if not (ROOT / name).exists()] == []
    assert [name for name in copied if not any(Path(name).is_relative_to(other) for other in in_context)] == []
    linked = {path.readlink().name for path in (ROOT / "attendant").iterdir() if path.is_symlink()}
    assert linked <= set(copied)


def test_grafana_has_the_dashboard_and_its_data() -> None:
    (source,) = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load(GRAFANA / "provisioning" / "dashboards" / "attendant.yml")["providers"]
    grafana = load(ROOT / "compose.yaml")["services"]["grafana"]
    mounted = [volume.split(":")[1] for volume in grafana["volumes"]]
    assert f"{provider['options']['path']}/attendant.json" in mounted
    panels = json.loads((GRAFANA / "attendant.json").read_text())["panels"]
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    assert len(titles) == len(set(titles))


RULES = DEPLOY / "prometheus"
PROMTOOL = shutil.which("promtool")
SUFFIXES = {"counter": ("_total",), "histogram": ("", "_bucket", "_sum", "_count"), "gauge": ("",)}
MADE = {"attendant_occupancy"}
"""Metrics that prometheus-adapter makes."""


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool; apt-get install prometheus")
@pytest.mark.parametrize("arguments", ["test rules attendant.test.yml", "check config prometheus.yml"])
def test_prometheus_own_tool_finds_nothing(arguments: str) -> None:
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, *arguments.split()], cwd=RULES, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_alert_is_seen_to_fire() -> None:
    rules = yaml.safe_load((RULES / "attendant.rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    groups = yaml.safe_load((RULES / "attendant.test.yml").read_text())["tests"]
    tests = [test for group in groups for test in group["alert_rule_test"]]
    assert alerts == {test["alertname"] for test in tests if test["exp_alerts"]}


def test_queries_name_existing_metrics() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    known = MADE | {family.name + suffix for family in registry.collect() for suffix in SUFFIXES.get(family.type, ())}
    paths = [*RULES.glob("*.rules.yml"), DEPLOY / "grafana" / "attendant.json", *DEPLOY.rglob("kubernetes/**/*.yaml")]
    named = {name for path in paths for name in re.findall(r"(?<![:\w])attendant_\w+(?!:)\b", path.read_text())}
    assert len(named) > 30
    assert named <= known
