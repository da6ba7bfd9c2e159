"""Fixtures that several folders share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of an untrained model, made once per session; tests must not change it."""
    # Imported here: most tests need neither torch nor the exporter.
    from tests.bundles import tiny_bundle

    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")
