"""Tests of loading an engine from a bundle: the measured request time, options and limits."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import limits_in_force, open_bundle
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.decoding.batch import BatchRequest
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine import loading
from attendant.server.engine.loading import open_within_limits
from attendant.server.engine.messages import Priority
from attendant.server.engine.scheduler import Budget, Scheduler
from tests.configuration import parse_config
from tests.paths import ROOT


@pytest.mark.parametrize(("provider", "clock"), [("cpu", "thread_time"), ("cuda", "perf_counter")])
def test_a_request_is_timed_by_processor_time_on_a_shared_host(
    provider: Provider,
    clock: str,
    tiny_bundle_path: Path,
    tiny_stepper: OnnxStepper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy host, wall time includes other processes' work, so bulk calls would be allowed too much time."""
    readings = itertools.count()
    monkeypatch.setattr(f"attendant.server.engine.loading.time.{clock}", lambda: 0.5 * next(readings))
    assert loading._request_seconds(open_bundle(tiny_bundle_path), tiny_stepper, "fp32", provider) == 0.5


def test_the_engine_has_the_options_of_the_server(tiny_bundle_path: Path) -> None:
    class OtherScheduler(Scheduler):
        pass

    config = replace(
        parse_config(
            ["b", "--threads", "1", "--max-rows", "3", "--max-source-positions", "99", "--bulk-seconds", "0.25"], {}
        ),
        scheduler=OtherScheduler,
    )
    bundle = open_bundle(tiny_bundle_path)
    engine, ready = loading.load_engine(bundle, config)
    assert (ready.version, ready.precision) == (bundle.manifest.version, "fp32") and ready.warm_up_seconds > 0
    assert isinstance(engine.scheduler, OtherScheduler)
    assert engine.scheduler.budget == Budget(max_rows=3, max_source_positions=99, bulk_seconds=0.25)
    assert limits_in_force(bundle.manifest, config.max_rows).max_beam_size == 3


def test_the_engine_distinguishes_hypotheses_by_their_texts(tiny_bundle_path: Path) -> None:
    bundle = open_bundle(tiny_bundle_path)
    engine, _ = loading.load_engine(bundle, parse_config(["b", "--threads", "1"], {}))
    options = DecodingOptions(max_length=4, beam_size=4, num_hypotheses=4)
    search = engine._batches[Priority.INTERACTIVE].batch
    search.join([BatchRequest(0, bundle.source_ids([4, 5]), options)])
    (beams,) = [request_search._beams for request_search in search._searches.values()]
    assert [beam.text_of and beam.text_of([4, 5]) for beam in beams] == [bundle.target_tokenizer.decode([4, 5])]


def test_a_default_request_must_fit() -> None:
    """The check is the same for a bundle alone and in a repository."""
    path = ROOT / "models" / "g2p-en"
    assert open_bundle(path).manifest.decoding.beam_size == 4
    open_within_limits(path, parse_config(["b", "--max-rows", "4"], {}))
    with pytest.raises(UserError, match=r"^--max-rows is 3: g2p-en searches with 4 live hypotheses by default, so"):
        open_within_limits(path, parse_config(["b", "--max-rows", "3"], {}))


def test_by_default_a_bulk_call_takes_half_the_time_of_a_request(
    tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_request_seconds", lambda *_: 0.5)
    config = parse_config(["b", "--threads", "1"], {})
    engine, _ = loading.load_engine(open_bundle(tiny_bundle_path), config)
    assert engine.scheduler.budget.bulk_seconds == 0.25
