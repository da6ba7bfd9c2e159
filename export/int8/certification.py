"""The certificate of int8: what it was held against, what it may never do, and what is computed how.

The fp32 graphs, which PyTorch has certified, are the reference. How far off int8 is is told, tensor by tensor, and not
refused before a rewrite must be wrong: what that costs is measured on a test set. What is refused is an answer that
depends on its company.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from export.comparison import Agreement
from export.decodings import MAX_LINES, company_differences, decoding_options
from export.plan import FULL_PLAN, INT8_TOLERANCE, SCORE_TOLERANCE, VerificationPlan
from export.probes import Trace, play, write_scripts
from export.verification import (
    Say,
    compare_steps,
    decoded_sources,
    grid_of,
    host_description,
    listed,
    positional_tensors,
    refusal,
    say_nothing,
)
from runtime.decoding.offline import decode_all
from runtime.errors import VerificationFailed
from runtime.manifest import Certificate, Manifest, TokenAgreement
from runtime.onnx_session import RUNTIME_VERSION
from runtime.onnx_stepper import OnnxStepper


def certify(
    manifest: Manifest,
    stepper: OnnxStepper,
    reference: OnnxStepper,
    arithmetic: Mapping[str, str],
    real_sources: Sequence[Sequence[int]],
    *,
    plan: VerificationPlan = FULL_PLAN,
    say: Say = say_nothing,
) -> Certificate:
    """Compares the int8 graphs with the fp32 graphs over the plan's grid.

    Args:
        manifest: of the bundle that both run.
        arithmetic: what the quantization did.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.

    Raises:
        VerificationFailed: a source got other bits in company, or log-probabilities are off by more than rounding to
            int8 explains.
    """
    random = np.random.default_rng(0)
    scripts = write_scripts(plan, manifest, real_sources, random)
    say(f"playing {len(scripts)} sources in fp32")
    expected = play(reference, scripts, positional_tensors(manifest, reference))
    positional = positional_tensors(manifest, stepper)
    stored = _stored(manifest)
    agreement = compare_steps(plan, stepper, scripts, expected, positional, random, say, stored, guided=False)
    first = Agreement()
    first.compare(_begun(play(stepper, scripts, positional)), _begun(expected), "in one batch")
    if lines := [*first.differences(_allowed, must_be_invariant=False), *agreement.variation_lines()]:
        raise VerificationFailed(refusal(stepper), lines)
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    num_identical, company_lines = 0, []
    for options in decoding_options(plan, manifest):
        found = decode_all(stepper, sources, options, manifest.special_ids)
        expected_hypotheses = decode_all(reference, sources, options, manifest.special_ids)
        pairs = zip(found, expected_hypotheses, strict=True)
        num_identical += sum(ours[0].token_ids == theirs[0].token_ids for ours, theirs in pairs)
        company_lines += company_differences(plan, manifest, stepper, sources, options, found)
    if company_lines:
        raise VerificationFailed(refusal(stepper), company_lines[:MAX_LINES])
    return Certificate(
        precision=stepper.precision,
        provider=stepper.provider,
        runtime_version=RUNTIME_VERSION,
        host=host_description(),
        reference="fp32",
        grid=grid_of(plan),
        tolerance=INT8_TOLERANCE,
        errors=dict(agreement.largest_errors()),
        reference_errors={},
        arithmetic=dict(arithmetic),
        tokens=TokenAgreement(
            num_compared=len(sources) * len(plan.beam_sizes), num_identical=num_identical, num_excused=0
        ),
        batch_invariant=True,
        score_tolerance=SCORE_TOLERANCE["int8"],
    )


def _begun(traces: Sequence[Trace]) -> list[Trace]:
    """The log-probabilities of the first step: what a chaotic recurrence makes of rounding later is no fault."""
    return [{"step 1/log_probs": trace["step 1/log_probs"]} for trace in traces]


def _allowed(name: str) -> float:
    return INT8_TOLERANCE


def _stored(manifest: Manifest) -> frozenset[str]:
    """The tensors that only one of the precisions has, or that they store differently."""
    specs = [{*manifest.graphs[precision].decoder_step.inputs} for precision in ("fp32", "int8")]
    return frozenset(spec.name for spec in specs[0] ^ specs[1])
