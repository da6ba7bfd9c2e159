"""Tests of certification: it finds errors and effects of batch-mates, and noise shows which decisions are ties."""

import numpy as np
import pytest

from attendant.export.verification.certification import (
    INT8_DISTANCE,
    TOLERANCE,
    Agreement,
    NoisyStepper,
    decoding_report,
    distance,
    outcomes_under_noise,
    relative_error,
)
from attendant.export.verification.probes import VerificationPlan, write_probes
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from tests.fakes import SPECIAL_IDS, FakeStepper

SOURCES = [[4, 5, 3], [6, 3], [7, 7, 4, 3], [5, 3]]
GREEDY = DecodingOptions(max_length=6)
BEAM = DecodingOptions(max_length=6, beam_size=4)


def test_noise_stays_within_its_amplitude_and_shows_ties() -> None:
    stepper = FakeStepper(vocabulary_size=12)
    for options in (GREEDY, BEAM):
        quiet = outcomes_under_noise(stepper, SOURCES, options, SPECIAL_IDS, 0.0)
        assert [len(tokens) for tokens in quiet] == [1] * len(SOURCES)
        loud = outcomes_under_noise(stepper, SOURCES, options, SPECIAL_IDS, 5.0)
        assert all(len(tokens) > 1 for tokens in loud)
    state, start = stepper.encode(SOURCES), np.full(len(SOURCES), SPECIAL_IDS.start)
    exact, _ = stepper.step(state, start, num_candidates=12)
    output, _ = NoisyStepper(stepper, 0.3, np.random.default_rng(0)).step(state, start, num_candidates=5)
    assert output.candidate_ids.shape == (len(SOURCES), 5)
    assert (np.diff(output.candidate_log_probs, axis=1) <= 0).all()
    rows = zip(exact.candidate_ids.tolist(), exact.candidate_log_probs, strict=True)
    noisy = zip(output.candidate_ids, output.candidate_log_probs, strict=True)
    for (row, own), (ids, log_probs) in zip(rows, noisy, strict=True):
        np.testing.assert_allclose(own[[row.index(token_id) for token_id in ids]], log_probs, atol=0.3001)


class Biased(NoisyStepper):
    """Adds `amplitude` to the log-probability of symbol 5."""

    def step(self, *arguments, num_candidates, **options):
        output, state = self._stepper.step(*arguments, num_candidates=self.vocabulary_size, **options)
        log_probs = output.candidate_log_probs + self._amplitude * (output.candidate_ids == 5)
        order = np.argsort(-log_probs, axis=1, kind="stable")[:, :num_candidates]
        return type(output)(
            candidate_ids=np.take_along_axis(output.candidate_ids, order, axis=1),
            candidate_log_probs=np.take_along_axis(log_probs, order, axis=1),
            forced_log_probs=output.forced_log_probs,
            attention=output.attention,
        ), state


def test_different_tokens_without_a_tie_are_reported(tiny_bundle_path, tiny_stepper: OnnxStepper) -> None:
    manifest = open_bundle(tiny_bundle_path).manifest
    plan = VerificationPlan(beam_sizes=(1, 3), num_alone=0, max_length=8)
    sources = [[4, 5, 3], [6, 3], [7, 7, 4, 3], [5, 3]]
    same = decoding_report(plan, manifest, tiny_stepper, tiny_stepper, sources, TOLERANCE)
    assert same.tokens.num_identical == same.tokens.num_compared == 8
    assert same.token_lines == ()
    wrong = decoding_report(
        plan, manifest, Biased(tiny_stepper, 30.0, np.random.default_rng(0)), tiny_stepper, sources, TOLERANCE
    )
    assert wrong.tokens.num_identical < 8
    assert len(wrong.token_lines) == 8 - wrong.tokens.num_identical
    assert all("it is no tie" in line for line in wrong.token_lines)


def test_different_tokens_at_a_tie_are_accepted(tiny_bundle_path) -> None:
    """Covers two symbols that are equally probable in the reference: either may win."""
    manifest = open_bundle(tiny_bundle_path).manifest
    tied = Tied(FakeStepper(vocabulary_size=12), 0.0, np.random.default_rng(0))
    other = Tied(FakeStepper(vocabulary_size=12), 1e-6, np.random.default_rng(0))
    plan = VerificationPlan(beam_sizes=(1,), num_alone=0, max_length=3)
    report = decoding_report(plan, manifest, other, tied, SOURCES, TOLERANCE)
    assert report.token_lines == ()
    assert report.tokens.num_excused == len(SOURCES)


class Tied(NoisyStepper):
    """Symbols 4 and 5 are always first and equally probable, except that 5 has `amplitude` more."""

    def step(self, state, previous_ids, *, num_candidates, **options):
        output, state = self._stepper.step(state, previous_ids, num_candidates=12, **options)
        first = [5, 4] if self._amplitude else [4, 5]
        ids = np.array([[*first, *(i for i in row if i not in (4, 5))] for row in output.candidate_ids])
        log_probs = np.sort(output.candidate_log_probs, axis=1)[:, ::-1].copy()
        log_probs[:, :2] = -0.1
        log_probs[:, 0] += self._amplitude
        return type(output)(
            candidate_ids=ids[:, :num_candidates],
            candidate_log_probs=log_probs[:, :num_candidates],
            forced_log_probs=output.forced_log_probs,
            attention=output.attention,
        ), state


@pytest.mark.parametrize(
    ("value", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.5], [0.25], 0.25),
        ([110.0], [100.0], 0.1),
        ([True], [False], 1.0),
        ([float("nan")], [1.0], float("inf")),
        ([1.0], [float("nan")], float("inf")),
        ([1.0], [1.0, 1.0], float("inf")),
        ([-np.inf, 1.0], [-np.inf, 1.0], 0.0),
        ([1.0], [-np.inf], float("inf")),
        ([np.inf], [-np.inf], float("inf")),
        ([], [], 0.0),
    ],
)
def test_errors_are_relative_and_nan_is_an_infinite_error(
    value: list[float], reference: list[float], error: float
) -> None:
    assert relative_error(np.array(value), np.array(reference)) == pytest.approx(error)


def test_the_largest_error_of_all_steps_is_reported_with_its_step() -> None:
    agreement = Agreement()
    zero, some, more = np.zeros(2), np.full(2, 0.25), np.full(2, 0.5)
    agreement.compare(
        [{"encoder/memory": zero, "step 1/hidden": some}], [{"encoder/memory": zero, "step 1/hidden": zero}], "alone"
    )
    agreement.compare([{"step 2/hidden": more}], [{"step 2/hidden": zero}], "in a batch of 3")
    assert agreement.largest_errors() == {"encoder/memory": 0.0, "step/hidden": 0.5}
    assert agreement.differences(lambda name: 0.1) == [
        "step/hidden: off by 0.5 (step 2, in a batch of 3); allowed is 0.1"
    ]


def test_a_distance_is_a_share_of_that_between_sources_at_the_worst_step() -> None:
    references = [
        {"step 1/log_probs": np.full((2, 3), -value), "step 2/log_probs": np.full((2, 3), -2 * value)}
        for value in (1.0, 3.0, 1.0)
    ]
    traces = [{key: values + 0.1 for key, values in reference.items()} for reference in references]
    assert distance("log_probs", references, references) == 0.0
    assert distance("log_probs", traces, references) == pytest.approx(0.05)
    traces[0] = {**traces[0], "step 2/log_probs": np.full((2, 3), -14.0)}
    assert distance("log_probs", traces, references) == pytest.approx((12 + 0.1 + 0.1) / 3 / 4)
    traces[0] = {**traces[0], "step 1/log_probs": np.full((2, 3), np.nan)}
    assert distance("log_probs", traces, references) == np.inf
    # Attention that is the same for all sources, as on their first position, up to a rounding.
    same = [{"step 1/attention": np.array([[1.0, 0.0]])}] * 2
    rounded = [{"step 1/attention": np.array([[1.0, 1e-11]])}] * 2
    assert distance("attention", rounded, same) < INT8_DISTANCE


def test_a_plan_of_lone_sources_has_two_probes_to_measure_a_distance_by(tiny_bundle_path) -> None:
    manifest, plan = open_bundle(tiny_bundle_path).manifest, VerificationPlan(batch_sizes=(1,))
    assert len(write_probes(plan, manifest, [], np.random.default_rng(0))) == 2


def test_impossible_symbols_are_ignored_in_a_distance() -> None:
    references = [{"step 1/log_probs": np.array([[-1.0, -1e9]])}, {"step 1/log_probs": np.array([[-2.0, -4.0]])}]
    traces = [{"step 1/log_probs": np.array([[-1.5, -1e9]])}, {"step 1/log_probs": np.array([[-2.5, -4.5]])}]
    assert distance("log_probs", traces, references) == pytest.approx(0.5)
