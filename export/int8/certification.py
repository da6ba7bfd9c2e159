"""The certificate of int8: what it was held against, what it may never do, and what is computed how.

The fp32 graphs, which PyTorch has certified, are the reference. How far off int8 is is told, tensor by tensor, and not
refused before a rewrite must be wrong: what that costs is measured on a test set. What is refused is an answer that
depends on its company.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from export.comparison import Agreement, distance
from export.decodings import MAX_LINES, company_differences, decoding_options
from export.plan import FULL_PLAN, INT8_DISTANCE, INT8_TOLERANCE, VerificationPlan
from export.probes import Trace, play, write_scripts
from export.shortlist.comparison import compare_lists, list_errors
from export.verification import (
    Say,
    certificate,
    compare_steps,
    decoded_sources,
    listed,
    positional_tensors,
    refusal,
    say_nothing,
)
from runtime.bundle_stepper import BundleStepper
from runtime.decoding.offline import decode_all
from runtime.errors import VerificationFailed
from runtime.manifest import Certificate, Manifest, TokenAgreement


def certify(
    manifest: Manifest,
    stepper: BundleStepper,
    reference: BundleStepper,
    arithmetic: Mapping[str, str],
    real_sources: Sequence[Sequence[int]],
    *,
    listed_stepper: BundleStepper | None = None,
    plan: VerificationPlan = FULL_PLAN,
    say: Say = say_nothing,
) -> Certificate:
    """Compares the int8 graphs with the fp32 graphs over the plan's grid.

    Args:
        manifest: of the bundle that both run.
        stepper: of the whole vocabulary.
        arithmetic: what the quantization did.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.
        listed_stepper: what is to be served, where that looks at lists of symbols: it is held against `stepper`, and
            decodes in its place.

    Raises:
        VerificationFailed: a source got other bits in company, log-probabilities are off by more than rounding to int8
            explains, or those of lists are not those of the whole vocabulary.
    """
    random = np.random.default_rng(0)
    scripts = write_scripts(plan, manifest, real_sources, random)
    say(f"playing {len(scripts)} sources in fp32")
    expected = play(reference, scripts, positional_tensors(manifest, reference))
    positional = positional_tensors(manifest, stepper)
    stored = _stored(manifest)
    agreement = compare_steps(plan, stepper, scripts, expected, positional, random, say, stored, guided=False)
    found = play(stepper, scripts, positional)
    first = Agreement()
    first.compare(_begun(found), _begun(expected), "in one batch")
    first_lines = first.differences(_allowed, must_be_invariant=False)
    if lines := [*first_lines, *far_off(found, expected), *agreement.variation_lines()]:
        raise VerificationFailed(refusal(stepper), lines)
    served = stepper
    if listed_stepper is not None:
        say("playing each source, alone and in batches, over its list of symbols")
        lists, lines = compare_lists(plan, listed_stepper, scripts, found, positional, random)
        if lines:
            raise VerificationFailed(refusal(listed_stepper), lines)
        agreement.errors |= list_errors(lists)
        served = listed_stepper
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    num_identical, company_lines = 0, []
    for options in decoding_options(plan, manifest):
        decoded = decode_all(served, sources, options, manifest.special_ids)
        expected_hypotheses = decode_all(reference, sources, options, manifest.special_ids)
        pairs = zip(decoded, expected_hypotheses, strict=True)
        num_identical += sum(ours[0].token_ids == theirs[0].token_ids for ours, theirs in pairs)
        company_lines += company_differences(plan, manifest, served, sources, options, decoded)
    if company_lines:
        raise VerificationFailed(refusal(stepper), company_lines[:MAX_LINES])
    num_compared = len(sources) * len(plan.beam_sizes)
    return certificate(
        plan,
        stepper,
        agreement,
        TokenAgreement(num_compared=num_compared, num_identical=num_identical, num_excused=0),
        reference="fp32",
        tolerance=INT8_TOLERANCE,
        batch_invariant=True,
        arithmetic=arithmetic,
    )


def far_off(found: Sequence[Trace], expected: Sequence[Trace]) -> list[str]:
    """One line per tensor of the teacher-forced steps that is further from fp32's than rounding explains."""
    names = [name for name in ("log_probs", "attention") if f"step 1/{name}" in expected[0]]
    distances = {name: distance(name, found, expected) for name in names}
    return [
        f"step/{name}: {one:.2g} of the distance between sources away from fp32; allowed is {INT8_DISTANCE:g}"
        for name, one in distances.items()
        if not one <= INT8_DISTANCE
    ]


def _begun(traces: Sequence[Trace]) -> list[Trace]:
    """The log-probabilities of the first step: what a chaotic recurrence makes of single values later is no fault."""
    return [{"step 1/log_probs": trace["step 1/log_probs"]} for trace in traces]


def _allowed(name: str) -> float:
    return INT8_TOLERANCE


def _stored(manifest: Manifest) -> frozenset[str]:
    """The tensors that only one of the precisions has, or that they store differently."""
    specs = [{*manifest.graphs[precision].decoder_step.inputs} for precision in ("fp32", "int8")]
    return frozenset(spec.name for spec in specs[0] ^ specs[1])
