"""Fixtures that several folders share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attendant.runtime.onnx.stepper import OnnxStepper

# Read by torch when it is loaded. The tests of several files run at once, and OpenMP's threads wait for each other in
# loops: with more threads than cores, the tests of low precision took 53 s of processor time instead of 7.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore SIGINT, and so would the commands that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of an untrained model, made once per session; tests must not change it."""
    # Imported here: most tests need neither torch nor the exporter.
    from tests.bundles import tiny_bundle

    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def tiny_stepper(tiny_bundle_path: Path) -> "OnnxStepper":
    """The tiny bundle's graphs, loaded once; a stepper keeps nothing between calls."""
    from attendant.runtime.bundle.bundle import open_bundle
    from attendant.runtime.onnx.stepper import OnnxStepper

    return OnnxStepper(open_bundle(tiny_bundle_path))


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """Gives torch back the number of threads that it had: a training within a test sets its recipe's."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
