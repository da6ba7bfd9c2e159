"""A bundle for the benchmarks' own machinery."""

from pathlib import Path

import pytest

from tests.bundles import tiny_bundle


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("benchmarks") / "tiny")
