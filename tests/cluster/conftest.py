"""A Ray cluster of several nodes on this machine; skipped if Ray is not installed (the extra `cluster`)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.paths import ROOT
from tests.ports import free_ports

COMMAND_SECONDS = 200
ENVIRONMENT = {
    # Worker processes of Ray import the package from here.
    "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The nodes are on one machine, so only one of them can have the port.
    "RAY_SERVE_WORKER_PROXY_GRPC_PORT": "0",
    "RAY_SERVE_WORKER_PROXY_HTTP_PORT": "0",
    # These take long on a busy machine.
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
AGENTS = "metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port"


class Nodes:
    """A head that computes nothing, and worker nodes of two CPUs."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._arguments(0))
        self.address = self._cluster.address

    def _arguments(self, num_cpus: int) -> dict[str, Any]:
        # With its own ports, a node does not wait for its agents, which may take long to start.
        ports = dict(zip(AGENTS, free_ports(len(AGENTS)), strict=True))
        return {"num_cpus": num_cpus, "object_store_memory": 100 << 20, "include_dashboard": False, **ports}

    def add(self) -> Any:
        return self._cluster.add_node(**self._arguments(2))

    def kill(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray", reason="there is no Ray; pip install '.[cpu,cluster]'")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        started = Nodes()
        stack.callback(started.end)
        patch.setenv("RAY_ADDRESS", started.address)
        started.add()
        ray.init(address=started.address, log_to_driver=False)
        stack.callback(ray.shutdown)
        yield started


def command(*arguments: object) -> str:
    """Runs `python -m attendant.server.cluster`; returns its standard output."""
    line = [sys.executable, "-m", "attendant.server.cluster", *map(str, arguments)]
    run = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    assert run.returncode == 0, run.stderr
    return run.stdout
