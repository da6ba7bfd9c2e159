"""The certificate of int8: what it was held against, what it may never do, and what is computed how.

The fp32 graphs, which PyTorch has certified, are the reference. How far off int8 is is told, tensor by tensor, and not
refused before a rewrite must be wrong: what that costs is measured on a test set. What is refused is an answer that
depends on its company.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from attendant.export.verification.certification import (
    Say,
    certificate,
    compare_steps,
    decoded_sources,
    listed,
    positional_tensors,
    refusal,
    say_nothing,
)
from attendant.export.verification.comparison import distance, first_step_lines
from attendant.export.verification.decodings import compare_decodings
from attendant.export.verification.plan import FULL_PLAN, INT8_DISTANCE, INT8_TOLERANCE, VerificationPlan
from attendant.export.verification.probes import Trace, play, write_scripts
from attendant.runtime.bundle.manifest import Certificate, Manifest
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.errors import VerificationFailed


def certify(
    manifest: Manifest,
    stepper: BundleStepper,
    reference: BundleStepper,
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
    found = play(stepper, scripts, positional)
    first_lines = first_step_lines(found, expected, INT8_TOLERANCE)
    if lines := [*first_lines, *far_off(found, expected), *agreement.variation_lines()]:
        raise VerificationFailed(refusal(stepper), lines)
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    report = compare_decodings(plan, manifest, stepper, reference, sources)
    if report.company_lines:
        raise VerificationFailed(refusal(stepper), report.company_lines)
    return certificate(
        plan,
        stepper,
        agreement,
        report.tokens,
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


def _stored(manifest: Manifest) -> frozenset[str]:
    """The tensors that only one of the precisions has, or that they store differently."""
    specs = [{*manifest.graphs[precision].decoder_step.inputs} for precision in ("fp32", "int8")]
    return frozenset(spec.name for spec in specs[0] ^ specs[1])
