"""The certificate of fp16: what it was held against, where, and what nobody has seen.

The fp32 graphs, which PyTorch has certified, are the reference. Where a GPU is at hand, the graphs run on it as they
will serve. Elsewhere the CPU runs them, in fp32 between conversions: that shows a wrong rewrite, a value beyond fp16
and what rounding the stored tensors costs, and the certificate says that CUDA's kernels have not been seen.
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
from attendant.export.verification.comparison import first_step_lines
from attendant.export.verification.decodings import compare_decodings
from attendant.export.verification.plan import FP16_TOLERANCE, FULL_PLAN, VerificationPlan
from attendant.export.verification.probes import play, write_scripts
from attendant.runtime.bundle.manifest import Certificate, Manifest
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.errors import VerificationFailed

NOT_RUN = (
    "not run on CUDA when it was exported: what is certified is the graph on the CPU, where onnxruntime computes in "
    "fp32 between conversions"
)


def certify_half(
    manifest: Manifest,
    stepper: BundleStepper,
    reference: BundleStepper,
    arithmetic: Mapping[str, str],
    real_sources: Sequence[Sequence[int]],
    *,
    plan: VerificationPlan = FULL_PLAN,
    say: Say = say_nothing,
) -> Certificate:
    """Compares the fp16 graphs with the fp32 graphs over the plan's grid.

    Args:
        manifest: of the bundle that both run.
        stepper: of fp16, on the provider that there is.
        arithmetic: what the conversion did.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.

    Raises:
        VerificationFailed: a first step's log-probabilities are off by more than rounding to fp16 explains, or
            something is no number.
    """
    random = np.random.default_rng(0)
    scripts = write_scripts(plan, manifest, real_sources, random)
    say(f"playing {len(scripts)} sources in fp32")
    positional = positional_tensors(manifest, stepper)
    expected = play(reference, scripts, positional_tensors(manifest, reference))
    agreement = compare_steps(plan, stepper, scripts, expected, positional, random, say, guided=False)
    lines = first_step_lines(play(stepper, scripts, positional), expected, FP16_TOLERANCE)
    lines += [f"{name}: no number" for name, error in agreement.largest_errors().items() if not np.isfinite(error)]
    if lines:
        raise VerificationFailed(refusal(stepper), lines)
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    report = compare_decodings(plan, manifest, stepper, reference, sources)
    unseen = {} if stepper.provider == "cuda" else {"CUDA": NOT_RUN}
    return certificate(
        plan,
        stepper,
        agreement,
        report.tokens,
        reference="fp32",
        tolerance=FP16_TOLERANCE,
        batch_invariant=not (agreement.variations or report.company_lines),
        arithmetic={**arithmetic, **unseen},
    )
