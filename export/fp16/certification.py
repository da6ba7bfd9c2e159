"""The certificate of fp16: what it was held against, where, and what nobody has seen.

The fp32 graphs, which PyTorch has certified, are the reference. Where a GPU is at hand, the graphs run on it as they
will serve. Elsewhere the CPU runs them, in fp32 between conversions: that shows a wrong rewrite, a value beyond fp16
and what rounding the stored tensors costs, and the certificate says that CUDA's kernels have not been seen.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from export.comparison import Agreement
from export.decodings import company_differences, decoding_options
from export.fp16.conversion import NOT_RUN
from export.plan import FP16_TOLERANCE, FULL_PLAN, SCORE_TOLERANCE, VerificationPlan
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
from runtime.bundle_stepper import BundleStepper
from runtime.decoding.offline import decode_all
from runtime.errors import VerificationFailed
from runtime.manifest import Certificate, Manifest, TokenAgreement
from runtime.onnx_session import RUNTIME_VERSION


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
    first = Agreement()
    first.compare(_begun(play(stepper, scripts, positional)), _begun(expected), "in one batch")
    lines = first.differences(lambda name: FP16_TOLERANCE, must_be_invariant=False)
    lines += [f"{name}: no number" for name, error in agreement.largest_errors().items() if not np.isfinite(error)]
    if lines:
        raise VerificationFailed(refusal(stepper), lines)
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    num_identical, company_lines = 0, []
    for options in decoding_options(plan, manifest):
        found = decode_all(stepper, sources, options, manifest.special_ids)
        pairs = zip(found, decode_all(reference, sources, options, manifest.special_ids), strict=True)
        num_identical += sum(ours[0].token_ids == theirs[0].token_ids for ours, theirs in pairs)
        company_lines += company_differences(plan, manifest, stepper, sources, options, found)
    unseen = {} if stepper.provider == "cuda" else {"CUDA": NOT_RUN}
    return Certificate(
        precision=stepper.precision,
        provider=stepper.provider,
        runtime_version=RUNTIME_VERSION,
        host=host_description(),
        reference="fp32",
        grid=grid_of(plan),
        tolerance=FP16_TOLERANCE,
        errors=dict(agreement.largest_errors()),
        reference_errors={},
        arithmetic={**arithmetic, **unseen},
        tokens=TokenAgreement(
            num_compared=len(sources) * len(plan.beam_sizes), num_identical=num_identical, num_excused=0
        ),
        batch_invariant=not (agreement.variations or company_lines),
        score_tolerance=SCORE_TOLERANCE["fp16"],
    )


def _begun(traces: Sequence[Trace]) -> list[Trace]:
    """The log-probabilities of the first step: what a recurrence makes of rounding later is no fault."""
    return [{"step 1/log_probs": trace["step 1/log_probs"]} for trace in traces]
