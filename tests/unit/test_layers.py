"""Tests of imports: they only go down, by the rule of docs/architecture.md, and the server needs no torch."""

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

TOPS = ("runtime", "training", "export", "server", "recipes")

# Each package's allowed imports from this project. A longer prefix takes precedence over a shorter one.
ALLOWED = {
    "attendant.runtime": {"attendant.runtime", "attendant_client.version"},
    "attendant.runtime.command": {"attendant.runtime", "attendant_client.command", "attendant_client.version"},
    "attendant.training": {"attendant.training", "attendant.runtime", "attendant_client.version"},
    "attendant.export": {
        "attendant.export",
        "attendant.training.model",
        "attendant.training.run.loading",
        "attendant.training.evaluation",
        "attendant.training.data.config",
        "attendant.training.data.tokenization",
        "attendant.training.data.vocabulary",
        "attendant.training.table",
        "attendant.runtime",
        "attendant_client.version",
    },
    "attendant.server.errors": {"attendant.runtime"},
    "attendant.server.polling": {"attendant.runtime"},
    "attendant.server.config": {"attendant.runtime"},
    "attendant.server.engine": {
        "attendant.server.engine",
        "attendant.server.config",
        "attendant.server.errors",
        "attendant.server.polling",
        "attendant.runtime",
    },
    "attendant.server": {
        "attendant.server",
        "attendant.runtime",
        "attendant_client.v1",
        "attendant_client.messages",
        "attendant_client.version",
    },
    "attendant.server.library": {
        "attendant.server.library",
        "attendant.server.engine",
        "attendant.runtime",
        "attendant_client",
    },
    "attendant.server.cluster": {
        "attendant.server.cluster",
        "attendant.server",
        "attendant.runtime",
        "attendant_client.v1",
    },
    "attendant.recipes": {"attendant.recipes", "attendant.training.data", "attendant.runtime"},
    "attendant.recipes.papers": {
        "attendant.recipes.papers",
        "attendant.export",
        "attendant.training",
        "attendant.runtime",
        "attendant_client.alignment",
        "benchmarks",
    },
    "attendant.recipes.g2p-cmudict-small.demo": {"attendant.server.bench", "attendant.runtime", "attendant_client"},
    "attendant.recipes.translate-debdocs-en-fr.checks": {"attendant.server.library", "attendant.runtime"},
    "attendant_client": {"attendant_client"},
}
# In a checkout, the folders' bare names can be imported too. A module imported under two names would be two modules.
OURS = {"attendant", "attendant_client", "tests", "benchmarks", *TOPS}
ENGINE_BANS = {"grpc", "prometheus_client", "google", "attendant_client"}
ONLY_IN = {
    "onnxruntime": {"attendant.runtime.onnx.session"},
    "opentelemetry": {"attendant.server.tracing"},
    "ray": {f"attendant.server.cluster.{name}" for name in ("__main__", "serving")},
}


def name_of(path: Path) -> str:
    """Returns the dotted name under which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in TOPS:
        parts = ("attendant", *parts)
    elif parts[0] == "client":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = sorted(path for folder in (*TOPS, "client/attendant_client") for path in (ROOT / folder).rglob("*.py"))
MODULES = {name_of(path): path for path in PATHS}


@functools.cache
def imports(path: Path) -> set[str]:
    """Returns the names that a module imports anywhere, including those for type checking only."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; say where it comes from"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def package_of(module: str) -> str:
    return max((package for package in ALLOWED if within(module, package)), key=len)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module: str) -> None:
    allowed = ALLOWED[package_of(module)]
    ours = {name for name in imports(MODULES[module]) if name.split(".")[0] in OURS}
    wrong = {name for name in ours if not any(within(name, prefix) for prefix in allowed)}
    assert not wrong, f"{module} may not import {sorted(wrong)}"


FOLDERS = sorted({module.rpartition(".")[0] for module in MODULES if "." in module})


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_have_no_cycle(folder: str) -> None:
    """Checks the imports between the files and folders of one folder. A folder counts as one part."""

    def part_of(name: str) -> str | None:
        """Returns the part of the folder that has the name, or None."""
        rest = name.removeprefix(folder + ".")
        return rest.split(".")[0] if rest != name else None

    parts = {module: part for module in MODULES if (part := part_of(module)) is not None}
    arrows: dict[str, set[str]] = {}
    for module, part in parts.items():
        imported = {part_of(name) for name in imports(MODULES[module])}
        arrows.setdefault(part, set()).update({other for other in parts.values() if other in imported} - {part})
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(f"{folder}: {' -> '.join(error.args[1])} -> is a circle of imports")


@pytest.mark.parametrize("module", [name for name in MODULES if package_of(name) == "attendant.server.engine"])
def test_the_engine_never_sees_the_wire(module: str) -> None:
    assert not {name for name in imports(MODULES[module]) if name.split(".")[0] in ENGINE_BANS}


@pytest.mark.parametrize("library", ONLY_IN)
def test_one_file_owns_the_library(library: str) -> None:
    users = {module for module, path in MODULES.items() if any(within(name, library) for name in imports(path))}
    assert users == ONLY_IN[library]


def test_server_and_library_start_without_torch() -> None:
    """Imports every module in a process that cannot import torch."""
    program = """
import importlib, pkgutil, sys
for name in ("torch", "attendant.training", "attendant.export", "onnx", "onnx_ir", "onnxscript"):
    sys.modules[name] = None
import attendant.runtime, attendant.server
for package in (attendant.runtime, attendant.server):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # Ray, which the cluster's modules need, is in an extra of its own.
        if not module.name.endswith("__main__") and ".cluster." not in module.name:
            importlib.import_module(module.name)
"""
    path = f"{ROOT}:{ROOT / 'client'}"
    run = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_no_module_is_named_utils_or_the_like() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "constants", "misc"}
    assert not {module for module in MODULES if banned & set(module.split("."))}
