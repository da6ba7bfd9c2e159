"""Fixtures that several folders share."""

import fcntl
import functools
import gc
import hashlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attendant.runtime.onnx.stepper import OnnxStepper
    from tests.certificates import Authority

# Read by torch when it is loaded. The tests of several files run at once, and OpenMP's threads wait for each other in
# loops: with more threads than cores, the tests of low precision took 53 s of processor time instead of 7.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Images often forbid bytecode. The tests start some hundred interpreters: each would compile the project again,
# and pytest would rewrite all of its assertions at every run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Images often set this too. It would hide output that commands do not flush.
os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(autouse=True)
def signals() -> None:
    """Restores the usual handlers of SIGINT and SIGTERM.

    Background jobs of a shell ignore SIGINT, and so do commands that have run in the test's process. The processes that
    a test starts would inherit this, and could not be interrupted.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def authority(tmp_path: Path) -> "Authority":
    from tests.certificates import new_authority  # most tests need no cryptography

    return new_authority(tmp_path / "authority")


def pytest_collection_finish() -> None:
    """Avoids work that Python and torch would repeat in all tests."""
    # Modules live as long as the process. The garbage collector's scans of their objects took a tenth of an export's
    # time.
    gc.freeze()
    if "attendant.export.tracing" in sys.modules:
        # torch parses its 500 converters for each graph that it exports, a quarter of an export's time.
        registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))


@pytest.fixture(scope="session")
def tiny_bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns a function that exports an untrained model, once per run of the tests. Tests must not change it."""
    folder = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has its own folder in the folder of the run.
    bundles = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "bundles"

    def bundle(**options: Any) -> Path:
        path = bundles / hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:16] / "tiny"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                # Imported here: most tests need neither torch nor the exporter.
                from tests.bundles import tiny_bundle

                tiny_bundle(path, **options)
        return path

    return bundle


@pytest.fixture(scope="session")
def bundle_of_kind(tiny_bundle_of: Callable[..., Path]) -> Callable[[str], Path]:
    """Returns a function that exports one of `tests.bundles.KINDS`, in all precisions. Tests must not change it."""
    from tests.bundles import KINDS

    def bundle(kind: str) -> Path:
        return tiny_bundle_of(all_precisions=True, **KINDS[kind]) if KINDS[kind] else tiny_bundle_of()

    return bundle


@pytest.fixture(scope="session")
def tiny_bundle_path(tiny_bundle_of: Callable[..., Path]) -> Path:
    """Returns a bundle of an untrained model. Tests must not change it."""
    return tiny_bundle_of()


@pytest.fixture(scope="session")
def tiny_stepper(tiny_bundle_path: Path) -> "OnnxStepper":
    """Loads the tiny bundle's graphs once: a stepper keeps nothing between calls."""
    from attendant.runtime.bundle.bundle import open_bundle
    from attendant.runtime.onnx.stepper import OnnxStepper

    return OnnxStepper(open_bundle(tiny_bundle_path))


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """Restores torch's number of threads: a training within a test sets its recipe's."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
