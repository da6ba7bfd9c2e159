"""The alert rules fire when they should, by Prometheus' own tool, where it is installed (Debian: prometheus)."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attendant.server.observability import metrics

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool; apt-get install prometheus")
@pytest.mark.parametrize("tests", sorted(RULES.glob("*.test.yml")), ids=lambda path: path.name)
def test_alerts_fire_when_they_should(tests: Path) -> None:
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, "test", "rules", tests.name], cwd=RULES, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_alerts_name_metrics_that_there_are() -> None:
    named = {name for path in RULES.glob("*.rules.yml") for name in re.findall(r"\battendant_\w+", path.read_text())}
    source = Path(metrics.__file__).read_text()
    assert named
    for name in named:
        known = name.removeprefix("attendant_").removesuffix("_total")
        assert f'"{known}"' in source, f"{name}: the server has no such metric"
