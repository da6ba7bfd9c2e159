"""The unit for systemd says what the server takes."""

import re
import shlex
from pathlib import Path

import pytest

from attendant.server.config import ServerConfig, parse_config

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "attendant@.service"


@pytest.mark.parametrize("instance", ["1", "9"])
def test_the_unit_starts_a_server(instance: str) -> None:
    lines = [line.replace("%i", instance) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    entries = [line.split("=", 1) for line in lines]
    (command,) = [value for name, value in entries if name == "ExecStart"]
    program, serve, *arguments = shlex.split(command)
    assert (Path(program).name, serve) == ("attendant", "serve")
    environment = dict(re.findall(r"(\w+)=(\S+)", next(value for name, value in entries if name == "Environment")))
    config = parse_config(arguments, environment)
    assert (config.port, config.metrics_port) == (50050 + int(instance), 9090 + int(instance))
    assert config.workers == config.threads == 4
    assert config.bundles == (Path("/srv/attendant"),)
    settings = dict(entries)
    assert float(settings["TimeoutStopSec"]) >= ServerConfig(bundles=()).drain_seconds + 5
    assert settings["RestartPreventExitStatus"] == "2"
