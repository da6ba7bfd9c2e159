"""A stepper beside its reference on the probes and decodings of a plan."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from attendant.export.status import Say, say_nothing
from attendant.export.verification.comparison import Agreement
from attendant.export.verification.margins import outcomes_under_noise
from attendant.export.verification.plan import FULL_PLAN, SCORE_TOLERANCE, TIE_TOLERANCES, VerificationPlan
from attendant.export.verification.probes import Probe, Trace, random_source, trace_probes, write_probes
from attendant.runtime.bundle.manifest import Certificate, GraphPair, Grid, Manifest, TokenAgreement
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import RUNTIME_VERSION
from attendant.runtime.process import processor
from attendant.runtime.stepper import Stepper

MAX_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingReport:
    """How the decodings of a plan compared.

    Attributes:
        token_lines: one per source whose tokens differ without a tie to excuse it.
        batch_lines: one per source that got other bits alone than in a batch.
    """

    tokens: TokenAgreement
    token_lines: tuple[str, ...]
    batch_lines: tuple[str, ...]


@dataclass(slots=True)
class GridComparison:
    """Compares over a plan's grid, with the same probes and sources each time for the same bundle.

    Attributes:
        manifest: of the bundle that `stepper` runs; its certificates are not looked at.
        reference: PyTorch for the fp32 graphs, and these for any other precision; see `former`.
        former: the graphs that `reference` runs, if it is another bundle: int8 graphs with factors of 8 bits.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.
        expected: the reference's trace of each probe.
    """

    manifest: Manifest
    stepper: BundleStepper
    reference: Stepper
    real_sources: Sequence[Sequence[int]]
    plan: VerificationPlan = FULL_PLAN
    say: Say = say_nothing
    former: GraphPair | None = None
    expected: list[Trace] = field(init=False)
    _probes: list[Probe] = field(init=False)
    _graphs: GraphPair = field(init=False)
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._graphs = self.manifest.graphs[self.stepper.precision]
        self._random = np.random.default_rng(0)
        self._probes = write_probes(self.plan, self.manifest, self.real_sources, self._random)
        self.say(f"probing {len(self._probes)} sources in {self.reference_name}")
        self.expected = trace_probes(self.reference, self._probes, self.former or self.manifest.graphs["fp32"])

    @property
    def reference_name(self) -> Literal["pytorch", "fp32", "int8"]:
        """What the certificate calls the reference."""
        if self.stepper.precision == "fp32":
            return "pytorch"
        return "fp32" if self.former is None else "int8"

    def stored_differently(self) -> frozenset[str]:
        """The names of tensors that only one side has, or that both store in other units or types."""
        ours = {*self._graphs.decoder_step.inputs}
        if self.former is not None:
            return frozenset(spec.name for spec in ours if spec.dtype == "int8")
        return frozenset(spec.name for spec in ours ^ {*self.manifest.graphs["fp32"].decoder_step.inputs})

    def trace(self, stepper: Stepper, started_from: Sequence[Trace] | None = None) -> list[Trace]:
        """The traces of all probes together; see `trace_probes`."""
        return trace_probes(stepper, self._probes, self._graphs, started_from)

    def compare_steps(self, stored: frozenset[str] = frozenset(), *, from_expected: bool) -> Agreement:
        """Traces every probe alone and in batches of every size, and compares with the reference's traces.

        Args:
            stored: tensors that the two store differently: only what comes of them is compared.
            from_expected: every step starts from the reference's row tensors; see `trace_probes`.
        """

        def traced(chosen: Sequence[int]) -> list[Trace]:
            started_from = [self.expected[index] for index in chosen] if from_expected else None
            probes = [self._probes[index] for index in chosen]
            return trace_probes(self.stepper, probes, self._graphs, started_from)

        everything = range(len(self._probes))
        references = _without(self.expected, stored)
        self.say("probing each source alone")
        alone = [traced([index])[0] for index in everything]
        agreement = Agreement()
        agreement.compare(_without(alone, stored), references, "alone")
        for size in self.plan.batch_sizes:
            self.say(f"probing batches of {size}")
            chosen = [int(index) for index in self._random.permutation(len(self._probes))[:size]]
            traces, where = traced(chosen), f"in a batch of {size}"
            agreement.compare(_without(traces, stored), [references[index] for index in chosen], where)
            agreement.compare_bits(traces, [alone[index] for index in chosen], where)
        return agreement

    def compare_decodings(self, tolerance: float | None = None) -> DecodingReport:
        """As `decoding_report`, of sources that the plan asks for: real ones as far as there are, else random ones."""
        plan = self.plan
        self.say(f"decoding {plan.num_decoded} sources by beams of {', '.join(map(str, plan.beam_sizes))}")
        # Three of four are real where there are enough.
        sources = [list(source) for source in self.real_sources[: plan.num_decoded * 3 // 4]]
        lengths = self._random.choice(np.array(plan.source_lengths), plan.num_decoded - len(sources))
        sources += [random_source(self.manifest, int(length), self._random) for length in lengths]
        return decoding_report(plan, self.manifest, self.stepper, self.reference, sources, tolerance)

    def refuse(self, lines: Sequence[str]) -> None:
        """Raises VerificationFailed where there are lines that say what differs."""
        if lines:
            what = f"the {self.stepper.precision} graphs on {self.stepper.provider}"
            raise VerificationFailed(f"{what} are refused", lines)

    def certificate(
        self,
        agreement: Agreement,
        report: DecodingReport,
        *,
        tolerance: float,
        reference_errors: Mapping[str, float] = MappingProxyType({}),
        arithmetic: Mapping[str, str] = MappingProxyType({}),
    ) -> Certificate:
        """What was found on this host; see Certificate for the arguments."""
        plan, stepper = self.plan, self.stepper
        return Certificate(
            precision=stepper.precision,
            provider=stepper.provider,
            runtime_version=RUNTIME_VERSION,
            host=", ".join(dict.fromkeys((platform.machine(), processor()))),
            reference=self.reference_name,
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


def decoding_report(
    plan: VerificationPlan,
    manifest: Manifest,
    stepper: Stepper,
    reference: Stepper,
    sources: Sequence[Sequence[int]],
    tolerance: float | None = None,
) -> DecodingReport:
    """Decodes `sources` by every beam size of the plan on both sides.

    The tokens must be the same, and each request's own whatever its batch-mates.

    Args:
        tolerance: how far log-probabilities may be off; a decision within ten of it is a tie, any other a fault. None:
            tokens may differ, and are counted.
    """
    num_identical = num_excused = 0
    token_lines: list[str] = []
    batch_lines: list[str] = []
    for beam_size in plan.beam_sizes:
        options = DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=manifest.decoding.length_penalty,
            length_penalty_offset=manifest.decoding.length_penalty_offset,
            max_length=min(plan.max_length, manifest.limits.max_target_tokens),
        )
        found, expected = (decode_all(one, sources, options, manifest.special_ids) for one in (stepper, reference))
        for source, together in zip(sources[: plan.num_alone], found, strict=False):
            (alone,) = decode_all(stepper, [source], options, manifest.special_ids)
            if list(alone) != list(together):
                batch_lines.append(
                    f"decoding with beam_size {beam_size}: source {list(source)}: score {alone[0].score!r} alone, "
                    f"{together[0].score!r} in a batch"
                )
        differing = [
            (source, ours[0].token_ids, theirs[0].token_ids)
            for source, ours, theirs in zip(sources, found, expected, strict=True)
            if ours[0].token_ids != theirs[0].token_ids
        ]
        num_identical += len(sources) - len(differing)
        if tolerance is None or not differing:
            continue
        # A tie: the reference itself decides otherwise when two candidates move by ten tolerances between them.
        outcomes = outcomes_under_noise(
            reference,
            [source for source, _, _ in differing],
            options,
            manifest.special_ids,
            TIE_TOLERANCES * tolerance / 2,
        )
        for (source, ours, theirs), outcome in zip(differing, outcomes, strict=True):
            if len(outcome) > 1:
                num_excused += 1
            else:
                token_lines.append(
                    f"decoding with beam_size {beam_size}: source {list(source)}: tokens {list(ours)}, PyTorch's "
                    f"{list(theirs)}, and it is no tie"
                )
    tokens = TokenAgreement(
        num_compared=len(sources) * len(plan.beam_sizes), num_identical=num_identical, num_excused=num_excused
    )
    return DecodingReport(
        tokens=tokens, token_lines=tuple(token_lines[:MAX_LINES]), batch_lines=tuple(batch_lines[:MAX_LINES])
    )


def _without(traces: Sequence[Trace], names: frozenset[str]) -> list[Trace]:
    return [{key: values for key, values in trace.items() if key.partition("/")[2] not in names} for trace in traces]
