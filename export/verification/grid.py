"""A stepper beside its reference on the probes and decodings of a plan."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from attendant.export.status import Say
from attendant.export.verification.comparison import Agreement
from attendant.export.verification.decodings import DecodingReport, compare_decodings
from attendant.export.verification.plan import SCORE_TOLERANCE, VerificationPlan
from attendant.export.verification.probes import Trace, random_source, trace_probes, write_probes
from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import Certificate, Grid, Manifest, Precision
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import RUNTIME_VERSION
from attendant.runtime.stepper import Stepper


class GridComparison:
    """Compares over a plan's grid, with the same probes and sources each time for the same bundle.

    Attributes:
        expected: the reference's trace of each probe.
    """

    def __init__(
        self,
        manifest: Manifest,
        stepper: BundleStepper,
        reference: Stepper,
        real_sources: Sequence[Sequence[int]],
        *,
        name: str,
        plan: VerificationPlan,
        say: Say,
    ) -> None:
        """`name`: the reference's, for people."""
        self._manifest = manifest
        self._stepper = stepper
        self._reference = reference
        self._real_sources = real_sources
        self._plan = plan
        self._say = say
        self._random = np.random.default_rng(0)
        self._probes = write_probes(plan, manifest, real_sources, self._random)
        say(f"probing {len(self._probes)} sources in {name}")
        self.expected = trace_probes(reference, self._probes, positional_tensors(manifest, "fp32"))
        self._positional = positional_tensors(manifest, stepper.precision)

    def trace(self, stepper: Stepper, started_from: Sequence[Trace] | None = None) -> list[Trace]:
        """The traces of all probes together; see `trace_probes`."""
        return trace_probes(stepper, self._probes, self._positional, started_from)

    def compare_steps(self, stored: frozenset[str] = frozenset(), *, from_expected: bool) -> Agreement:
        """Traces every probe alone and in batches of every size, and compares with the reference's traces.

        Args:
            stored: tensors that the two store differently: only what comes of them is compared.
            from_expected: every step starts from the reference's row tensors; see `trace_probes`.
        """

        def traced(chosen: Sequence[int]) -> list[Trace]:
            started_from = [self.expected[index] for index in chosen] if from_expected else None
            probes = [self._probes[index] for index in chosen]
            return trace_probes(self._stepper, probes, self._positional, started_from)

        everything = range(len(self._probes))
        references = _without(self.expected, stored)
        self._say("probing each source alone")
        alone = [traced([index])[0] for index in everything]
        agreement = Agreement()
        agreement.compare(_without(alone, stored), references, "alone")
        for size in self._plan.batch_sizes:
            self._say(f"probing batches of {size}")
            chosen = [int(index) for index in self._random.permutation(len(self._probes))[:size]]
            traces, where = traced(chosen), f"in a batch of {size}"
            agreement.compare(_without(traces, stored), [references[index] for index in chosen], where)
            agreement.compare_bits(traces, [alone[index] for index in chosen], where)
        return agreement

    def compare_decodings(self, tolerance: float | None = None) -> DecodingReport:
        """Decodes on both sides; see `decodings.compare_decodings`."""
        plan, manifest = self._plan, self._manifest
        self._say(f"decoding {plan.num_decoded} sources by beams of {listed(plan.beam_sizes)}")
        # Real sources where there are enough, three of four; random ones for the rest.
        sources = [list(source) for source in self._real_sources[: plan.num_decoded * 3 // 4]]
        lengths = self._random.choice(np.array(plan.source_lengths), plan.num_decoded - len(sources))
        sources += [random_source(manifest, int(length), self._random) for length in lengths]
        return compare_decodings(plan, manifest, self._stepper, self._reference, sources, tolerance)

    def refuse(self, lines: Sequence[str]) -> None:
        """Raises VerificationFailed where there are lines that say what differs."""
        if lines:
            stepper = self._stepper
            raise VerificationFailed(f"the {stepper.precision} graphs on {stepper.provider} are refused", lines)

    def certificate(
        self,
        agreement: Agreement,
        report: DecodingReport,
        *,
        reference: Literal["pytorch", "fp32"],
        tolerance: float,
        reference_errors: Mapping[str, float] = MappingProxyType({}),
        arithmetic: Mapping[str, str] = MappingProxyType({}),
    ) -> Certificate:
        """What was found on this host; see Certificate for the arguments."""
        plan, stepper = self._plan, self._stepper
        return Certificate(
            precision=stepper.precision,
            provider=stepper.provider,
            runtime_version=RUNTIME_VERSION,
            host=host_description(),
            reference=reference,
            grid=Grid(
                batch_sizes=plan.batch_sizes,
                source_lengths=tuple(sorted(plan.source_lengths)),
                beam_sizes=plan.beam_sizes,
                num_steps=plan.num_steps,
            ),
            tolerance=tolerance,
            errors=dict(agreement.largest_errors()),
            reference_errors=dict(reference_errors),
            arithmetic=dict(arithmetic),
            tokens=report.tokens,
            batch_invariant=not (agreement.variations or report.batch_lines),
            score_tolerance=SCORE_TOLERANCE[stepper.precision],
        )


def positional_tensors(manifest: Manifest, precision: Precision) -> dict[str, int]:
    """Of the state tensors that have one, the axis of source positions."""
    graphs = manifest.graphs[precision]
    state = {tensor.input for tensor in graphs.state}
    axes = {spec.name: position_axis(spec) for spec in graphs.decoder_step.inputs if spec.name in state}
    return {name: axis for name, axis in axes.items() if axis is not None}


def _without(traces: Sequence[Trace], names: frozenset[str]) -> list[Trace]:
    return [{key: values for key, values in trace.items() if key.partition("/")[2] not in names} for trace in traces]


def listed(numbers: Sequence[object]) -> str:
    """The numbers with commas between them."""
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
