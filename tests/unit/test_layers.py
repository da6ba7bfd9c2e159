"""Imports only go down: the rule of docs/architecture.md, read off the source; and the server without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# room -> what of this project it may import. A longer prefix wins over a shorter one.
ALLOWED = {
    "runtime": {"runtime"},
    "training": {"training", "runtime"},
    "export": {
        "export",
        "training.model",
        "training.checkpoint",
        "training.stepper",
        "training.evaluation",
        "training.metrics",
        "training.data.config",
        "runtime",
    },
    # What a source symbol is translated to is learned on the training pairs.
    "export.shortlist": {
        "export",
        "training.checkpoint",
        "training.data.corpus",
        "training.data.training_part",
        "runtime",
    },
    "server.errors": {"runtime"},
    "server.engine": {"server.engine", "server.errors", "runtime"},
    "server": {"server", "runtime", "attendant_client.v1"},
    "attendant_client": {"attendant_client"},
}
OURS = {"runtime", "training", "export", "server", "attendant_client", "demo", "tests", "benchmarks"}
ENGINE_BANS = {"grpc", "prometheus_client", "google", "attendant_client"}
ONLY_IN = {"onnxruntime": {"runtime/onnx_session.py"}}


def modules() -> list[Path]:
    folders = ["runtime", "training", "export", "server", "client/attendant_client"]
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; say where it comes from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def room_of(path: Path) -> str:
    relative = path.relative_to(ROOT / "client" if "client" in path.parts else ROOT)
    name = ".".join(relative.with_suffix("").parts)
    return max((room for room in ALLOWED if within(name, room)), key=len)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_go_down(path: Path) -> None:
    room = room_of(path)
    ours = {name for name in imports(path) if name.split(".")[0] in OURS}
    wrong = {name for name in ours if not any(within(name, allowed) for allowed in ALLOWED[room])}
    assert not wrong, f"{room} may not import {sorted(wrong)}"


@pytest.mark.parametrize("path", [p for p in modules() if room_of(p) == "server.engine"], ids=lambda path: path.name)
def test_the_engine_never_sees_the_wire(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in ENGINE_BANS}


@pytest.mark.parametrize("library", ONLY_IN)
def test_one_file_owns_the_library(library: str) -> None:
    users = {str(path.relative_to(ROOT)) for path in modules() if any(within(name, library) for name in imports(path))}
    assert users == ONLY_IN[library]


def test_the_server_starts_without_torch() -> None:
    """Not a scan: every module of the server is imported in a process in which torch can't be."""
    program = """
import importlib, pkgutil, sys
for name in ("torch", "training", "export", "onnx", "onnxscript"):
    sys.modules[name] = None
import runtime, server
for package in (runtime, server):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
    path = f"{ROOT}:{ROOT / 'client'}"
    run = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_no_room_is_a_drawer() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "constants", "misc"}
    assert not {path for path in modules() if banned & {part.removesuffix(".py") for part in path.parts}}
