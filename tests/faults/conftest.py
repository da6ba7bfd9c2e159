"""Fixtures of the tests that attack a real server over loopback and record figures.

Each fault has a test that fails without the mechanism against it. `make test` runs its small size, here or with the
mechanism's own tests. It makes only deterministic assertions (bounded counts, codes, answers; never speed). If a figure
is recorded, there is a full size marked `reliability`, which `make reliability` runs. `docs/reliability.md` has a
section per subject.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from tests.faults.figures import Bound, Figures
from tests.paths import ROOT
from tests.server_process import Running, server

FOLDER = Path(__file__).parent
RESULTS = ROOT / "benchmarks" / "results"

UNTIMED = ("test_mixed_traffic", "test_crafted_bundles", "test_hidden_fields", "test_fuzz")
"""Modules that try many cases and measure no time. They run last: the others need an otherwise idle machine."""

Start = Callable[..., AbstractContextManager[Running]]
"""Starts a server over the tiny bundle with these options: `with start("--max-rows", "8") as running`."""


class Figure(Protocol):
    """Records a figure. The test fails at its end if a figure is outside its bound. If None, there is no bound."""

    def __call__(self, name: str, measured: float, bound: Bound | None, unit: str) -> None: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent == FOLDER and item.path.stem in UNTIMED)


@pytest.fixture
def start(tiny_bundle_path: Path) -> Start:
    return partial(server, str(tiny_bundle_path))


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    all_figures = Figures()
    yield all_figures
    all_figures.write(RESULTS)


@pytest.fixture
def figure(request: pytest.FixtureRequest, figures: Figures) -> Iterator[Figure]:
    """Yields a function that records figures: `figure(name, measured, at_most(64), "MiB")`.

    Their subject is the first line of the module's docstring.
    """
    subject = request.module.__doc__.splitlines()[0].rstrip(".")
    is_recorded = request.node.get_closest_marker("reliability") is not None
    missed = list[str]()

    def record(name: str, measured: float, bound: Bound | None, unit: str) -> None:
        if is_recorded:
            figures.add(subject, name, measured, bound, unit)
        if bound is not None and not bound.holds(measured):
            missed.append(f"{name}: {measured:g} {unit}, must be {bound}")

    yield record
    if missed:
        pytest.fail("\n".join(missed), pytrace=False)
