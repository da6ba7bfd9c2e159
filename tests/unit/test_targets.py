"""What the Makefile, GitHub's workflow and the hooks of pre-commit name is there, and pinned."""

import re
import tomllib
from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

from tests.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_every_target_that_is_named_has_a_rule() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    hooks = re.findall(r"entry: make (\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    steps = [name for line in re.findall(r"run: make (.*)", WORKFLOWS) for name in line.split() if "=" not in name]
    contributing = re.findall(r"^make (\S+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(hooks) >= 2 and len(steps) >= 4 and len(contributing) >= 5
    assert {*phony.split(), *hooks, *steps, *contributing} <= TARGETS


def test_actions_and_images_of_others_are_named_by_their_digests() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOWS)
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)
    pulled = re.findall(r"^ +image: (\S+/\S+)", (ROOT / "compose.yaml").read_text(), re.MULTILINE)
    assert pulled and all(re.fullmatch(r"\S+:v?[\d.]+@sha256:[0-9a-f]{64}", name) for name in pulled)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) <= {"${BASE}", "scratch"} | stages


def test_the_workflow_tests_the_versions_that_are_declared() -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", WORKFLOWS)
    for project in ("pyproject.toml", "client/pyproject.toml"):
        declared = re.findall(r'"Programming Language :: Python :: ([\d.]+)"', (ROOT / project).read_text())
        assert declared == matrix.replace('"', "").split(", ")


def test_the_oldest_python_that_is_declared_can_install_everything() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = declared.removeprefix(">=") + ".0"
    constrained = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    required = {
        each.name: each.metadata.get("Requires-Python") for each in distributions() if each.name.lower() in constrained
    }
    assert len(required) > 50
    assert [name for name, versions in required.items() if not SpecifierSet(versions or "").contains(oldest)] == []
