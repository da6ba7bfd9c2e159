"""The certificate: what the graphs of a bundle were held against, and how well they held.

They are run by the very stepper and decoded by the very search that serve; PyTorch is the reference.
"""

import copy
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from attendant.export.verification.comparison import Agreement
from attendant.export.verification.decodings import compare_decodings
from attendant.export.verification.plan import (
    FULL_PLAN,
    ROUNDING_MULTIPLE,
    SCORE_TOLERANCE,
    TOLERANCE,
    VerificationPlan,
)
from attendant.export.verification.probes import Script, Trace, play, random_source, write_scripts
from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import Certificate, Grid, Manifest, TokenAgreement
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import RUNTIME_VERSION
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper

Say = Callable[[str], None]
"""Tells the user what goes on, in one line."""


def say_nothing(line: str) -> None:
    """For callers without a screen."""


def verify(
    manifest: Manifest,
    stepper: BundleStepper,
    model: Seq2Seq,
    real_sources: Sequence[Sequence[int]],
    *,
    plan: VerificationPlan = FULL_PLAN,
    say: Say = say_nothing,
) -> Certificate:
    """Compares the graphs with PyTorch over the plan's grid.

    Args:
        manifest: of the bundle that `stepper` runs; its certificates are not looked at.
        model: the trained model, of the same weights.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.

    Raises:
        VerificationFailed: one line per tensor, or per decoded source, that differs.
    """
    random = np.random.default_rng(0)
    reference, exact = TorchStepper(model), TorchStepper(copy.deepcopy(model).double())
    # On other providers company may change the last bits; the certificate then says so.
    must_be_invariant = stepper.provider == "cpu"
    scripts = write_scripts(plan, manifest, real_sources, random)
    positional = positional_tensors(manifest, stepper)
    say(f"playing {len(scripts)} sources in PyTorch")
    expected = play(reference, scripts, positional)
    agreement = compare_steps(plan, stepper, scripts, expected, positional, random, say)
    rounding = Agreement()
    rounding.compare(expected, play(exact, scripts, positional, expected), "in one batch")

    def allowed(name: str) -> float:
        # Forced log-probabilities are a few of the log-probabilities, seen from another output of the graph.
        seen = name.replace("forced_log_probs", "log_probs")
        own = rounding.errors[seen].error if seen in rounding.errors else 0.0
        return max(TOLERANCE, ROUNDING_MULTIPLE * own)

    if lines := agreement.differences(allowed, must_be_invariant=must_be_invariant):
        # Decodings would only repeat it, at length.
        raise VerificationFailed(refusal(stepper), lines)
    say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
    sources = decoded_sources(plan, manifest, real_sources, random)
    report = compare_decodings(plan, manifest, stepper, reference, sources, allowed("step/log_probs"))
    lines = [*report.token_lines, *(report.company_lines if must_be_invariant else ())]
    if lines:
        raise VerificationFailed(refusal(stepper), lines)
    return certificate(
        plan,
        stepper,
        agreement,
        report.tokens,
        reference="pytorch",
        tolerance=TOLERANCE,
        batch_invariant=not (agreement.variations or report.company_lines),
        reference_errors=rounding.largest_errors(),
    )


def certificate(
    plan: VerificationPlan,
    stepper: BundleStepper,
    agreement: Agreement,
    tokens: TokenAgreement,
    *,
    reference: Literal["pytorch", "fp32"],
    tolerance: float,
    batch_invariant: bool,
    reference_errors: Mapping[str, float] = MappingProxyType({}),
    arithmetic: Mapping[str, str] = MappingProxyType({}),
) -> Certificate:
    """What was found of a stepper's graphs on this host, over the plan's grid; see Certificate for the rest."""
    return Certificate(
        precision=stepper.precision,
        provider=stepper.provider,
        runtime_version=RUNTIME_VERSION,
        host=host_description(),
        reference=reference,
        grid=grid_of(plan),
        tolerance=tolerance,
        errors=dict(agreement.largest_errors()),
        reference_errors=dict(reference_errors),
        arithmetic=dict(arithmetic),
        tokens=tokens,
        batch_invariant=batch_invariant,
        score_tolerance=SCORE_TOLERANCE[stepper.precision],
    )


def positional_tensors(manifest: Manifest, stepper: BundleStepper) -> dict[str, int]:
    """Of the state tensors that have one, the axis of source positions."""
    graphs = manifest.graphs[stepper.precision]
    state = {tensor.input for tensor in graphs.state}
    specs = graphs.decoder_step.inputs
    axes = {spec.name: position_axis(spec) for spec in specs if spec.name in state}
    return {name: axis for name, axis in axes.items() if axis is not None}


def compare_steps(
    plan: VerificationPlan,
    stepper: BundleStepper,
    scripts: Sequence[Script],
    expected: Sequence[Trace],
    positional: Mapping[str, int],
    random: np.random.Generator,
    say: Say,
    stored: frozenset[str] = frozenset(),
    *,
    guided: bool = True,
) -> Agreement:
    """Plays every script alone and in batches of every size, against the reference's traces.

    Args:
        stored: tensors that the two store differently: only what comes of them is compared.
        guided: every step starts from the reference's row tensors; see `play`.
    """
    references = _without(expected, stored)
    say("playing each source alone")
    alone = [
        play(stepper, [script], positional, [guide] if guided else None)[0]
        for script, guide in zip(scripts, expected, strict=True)
    ]
    agreement = Agreement()
    agreement.compare(_without(alone, stored), references, "alone")
    for size in plan.batch_sizes:
        say(f"playing batches of {size}")
        chosen = [int(index) for index in random.permutation(len(scripts))[:size]]
        guides = [expected[index] for index in chosen]
        traces = play(stepper, [scripts[index] for index in chosen], positional, guides if guided else None)
        where = f"in a batch of {size}"
        agreement.compare(_without(traces, stored), [references[index] for index in chosen], where)
        agreement.compare_bits(traces, [alone[index] for index in chosen], where)
    return agreement


def _without(traces: Sequence[Trace], names: frozenset[str]) -> list[Trace]:
    return [{key: values for key, values in trace.items() if key.partition("/")[2] not in names} for trace in traces]


def grid_of(plan: VerificationPlan) -> Grid:
    """What a certificate says of the plan."""
    return Grid(
        batch_sizes=plan.batch_sizes,
        source_lengths=tuple(sorted(plan.source_lengths)),
        beam_sizes=plan.beam_sizes,
        num_steps=plan.num_steps,
    )


def decoded_sources(
    plan: VerificationPlan, manifest: Manifest, real_sources: Sequence[Sequence[int]], random: np.random.Generator
) -> list[list[int]]:
    """Real sources where there are enough, three of four; random ones for the rest."""
    taken = [list(source) for source in real_sources[: plan.num_decoded * 3 // 4]]
    lengths = random.choice(np.array(plan.source_lengths), plan.num_decoded - len(taken))
    return [*taken, *(random_source(manifest, int(length), random) for length in lengths)]


def refusal(stepper: BundleStepper) -> str:
    """The headline over what differs."""
    return f"the {stepper.precision} graphs on {stepper.provider} are refused"


def listed(numbers: Sequence[object]) -> str:
    return ", ".join(str(number) for number in numbers)


def host_description() -> str:
    """The kind of machine, not its name: "x86_64, <processor>"."""
    processor = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return ", ".join(part for part in (platform.machine(), processor) if part)
