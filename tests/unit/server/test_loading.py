"""What is measured of a bundle when it is loaded."""

import itertools
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server import loading


@pytest.mark.parametrize(("provider", "clock"), [("cpu", "thread_time"), ("cuda", "perf_counter")])
def test_a_request_is_timed_by_what_it_computes_where_others_may_hold_it_up(
    provider: Provider,
    clock: str,
    tiny_bundle_path: Path,
    tiny_stepper: OnnxStepper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy host the time on the wall is that of the neighbours, and bulk work would be let take as long."""
    readings = itertools.count()
    monkeypatch.setattr(f"attendant.server.loading.time.{clock}", lambda: 0.5 * next(readings))
    assert loading._request_seconds(open_bundle(tiny_bundle_path), tiny_stepper, provider) == 0.5
