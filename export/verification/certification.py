"""The certificate: compares a bundle's graphs with a reference on the grid of a plan, and refuses graphs that differ.

The graphs are run by the stepper and decoded by the search that serve. fp32 graphs are compared with PyTorch, int8 and
fp16 graphs with the fp32 graphs.
"""

import itertools
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from attendant.export.verification.probes import (
    FULL_PLAN,
    Probe,
    Trace,
    VerificationPlan,
    random_source,
    trace_probes,
    write_probes,
)
from attendant.runtime.bundle.manifest import (
    Certificate,
    GraphPair,
    Grid,
    Manifest,
    Precision,
    SpecialIds,
    TokenAgreement,
)
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import LEAST_POSSIBLE
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import RUNTIME_VERSION
from attendant.runtime.process import processor
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Stepper, Taken

logger = logging.getLogger(__name__)

TOLERANCE = 1e-5
"""|a - b| <= TOLERANCE * max(1, |b|), for every element of every tensor, a the graphs' and b PyTorch's."""

ROUNDING_MULTIPLE = 8
"""Weights with large logits amplify rounding until PyTorch in float32 is further than TOLERANCE from its own float64.
Then no runtime can be nearer to it: a tensor may be off by this multiple of PyTorch's own error. On three trainings of
recipes/reverse, whose log-probabilities were off by up to 5.3e-5, the graphs' error was 1.1 to 3.5 times
PyTorch's."""

UNSTABLE = 1e-3
"""If PyTorch's own error is larger, a refused graph is probably right: the weights amplify rounding from position to
position of some sources, and every runtime gets other values."""

TIE_TOLERANCES = 10  # Tokens may differ if the reference's own decision depends on less than this many tolerances.
FIRST_STEP_TOLERANCE: Final[Mapping[Precision, float]] = {"int8": 1.0, "fp16": 0.05}
"""Like TOLERANCE, for a first step's log-probabilities against the fp32 graphs'; a wrong rewrite is further off. The
cost of int8 in quality is measured on a test set. Rounding logits of 8 to 16 to fp16 moves them by up to 0.004."""

INT8_DISTANCE = 0.2
"""Limit of `distance` between int8 and fp32, for every teacher-forced step's log-probabilities and attention. Rounding
makes it 0.02 to 0.05 on random models, a matrix whose rows are in the wrong order 0.3 to 5."""

LEAST_DISTANCE = 1e-4
"""Least divisor of `distance`: where a step's attention is the same for all sources, rounding is no share of it."""

SCORE_TOLERANCE: Final[Mapping[Precision, float]] = {"fp32": 1e-4, "int8": 1e-2, "fp16": 2e-2}
"""Tolerance of a golden example's scores on another host, where last bits differ at each of many steps. If such a bit
tips a rounding to the next code, an int8 activation moves by a whole step. fp16 is certified and served by other
kernels, which round in other places."""

MAX_LINES = 8

NOT_RUN: Final = (
    "not run on CUDA when it was exported: the graph is certified on the CPU, where onnxruntime computes in fp32 "
    "between conversions"
)

NUM_DRAWS = 12  # A tie between two outcomes goes unnoticed once in 2,048 times, when all draws fall on the same side.
SPARE_CANDIDATES = 4  # Further candidates, since the noise may lift one of them among the requested ones.


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingReport:
    """The comparison of a plan's decodings, with a line per source whose tokens differ without a tie, or that got other
    bits alone than in a batch.
    """

    tokens: TokenAgreement
    token_lines: tuple[str, ...]
    batch_lines: tuple[str, ...]


@dataclass(slots=True)
class GridComparison:
    """Compares a stepper with its reference on a plan's grid: the same probes and sources for the same bundle.

    Attributes:
        manifest: of the bundle that `stepper` runs; its certificates are not read.
        reference: PyTorch for the fp32 graphs, and the fp32 graphs for other precisions.
        real_sources: source ids from the run's own data, as the encoder takes them; random ones fill up.
        must_be_invariant: graphs whose bits depend on the batch are refused; otherwise the certificate states it.
        expected: the reference's trace of each probe.
    """

    manifest: Manifest
    stepper: BundleStepper
    reference: Stepper
    real_sources: Sequence[Sequence[int]]
    plan: VerificationPlan = FULL_PLAN
    must_be_invariant: bool = True
    expected: list[Trace] = field(init=False)
    _graphs: GraphPair = field(init=False)
    _random: np.random.Generator = field(init=False)
    _probes: list[Probe] = field(init=False)

    def __post_init__(self) -> None:
        self._graphs = self.manifest.graphs[self.stepper.precision]
        self._random = np.random.default_rng(0)
        self._probes = write_probes(self.plan, self.manifest, self.real_sources, self._random)
        logger.info("probing %d sources in %s", len(self._probes), self.reference_name)
        self.expected = trace_probes(self.reference, self._probes, self.manifest.graphs["fp32"])

    @property
    def reference_name(self) -> Literal["pytorch", "fp32"]:
        """The certificate's name for the reference."""
        return "pytorch" if self.stepper.precision == "fp32" else "fp32"

    def stored_differently(self) -> frozenset[str]:
        """Returns the names of tensors that only one side has, or that both store in other units or types."""
        ours = {*self._graphs.decoder_step.inputs}
        return frozenset(spec.name for spec in ours ^ {*self.manifest.graphs["fp32"].decoder_step.inputs})

    def trace(self, stepper: Stepper, started_from: Sequence[Trace] | None = None) -> list[Trace]:
        """Returns the traces of all probes in one batch; see `trace_probes`."""
        return trace_probes(stepper, self._probes, self._graphs, started_from)

    def compare_steps(self, stored: frozenset[str] = frozenset(), *, from_expected: bool) -> "Agreement":
        """Traces every probe alone and in batches of every size, and compares with the reference's traces.

        Args:
            stored: tensors that the two store differently, which are not compared.
            from_expected: every step starts from the reference's row tensors; see `trace_probes`.
        """

        def traced(chosen: Sequence[int]) -> list[Trace]:
            started_from = [self.expected[index] for index in chosen] if from_expected else None
            probes = [self._probes[index] for index in chosen]
            return trace_probes(self.stepper, probes, self._graphs, started_from)

        references = _without(self.expected, stored)
        logger.info("probing each source alone")
        alone = [traced([index])[0] for index in range(len(self._probes))]
        agreement = Agreement()
        agreement.compare(_without(alone, stored), references, "alone")
        for size in self.plan.batch_sizes:
            logger.info("probing batches of %d", size)
            chosen = [int(index) for index in self._random.permutation(len(self._probes))[:size]]
            traces, where = traced(chosen), f"in a batch of {size}"
            agreement.compare(_without(traces, stored), [references[index] for index in chosen], where)
            agreement.compare_bits(traces, [alone[index] for index in chosen], where)
        return agreement

    def compare_decodings(self, tolerance: float | None = None) -> DecodingReport:
        """Compares the decodings of the plan's number of sources; see `decoding_report`. Up to 3 of 4 are real."""
        plan = self.plan
        logger.info("decoding %d sources by beams of %s", plan.num_decoded, ", ".join(map(str, plan.beam_sizes)))
        sources = [list(source) for source in self.real_sources[: plan.num_decoded * 3 // 4]]
        lengths = self._random.choice(np.array(plan.source_lengths), plan.num_decoded - len(sources))
        sources += [random_source(self.manifest, int(length), self._random) for length in lengths]
        return decoding_report(plan, self.manifest, self.stepper, self.reference, sources, tolerance)

    def refuse(self, lines: Sequence[str]) -> None:
        """Raises VerificationFailed if there are lines, each of which names a difference."""
        if lines:
            stepper = self.stepper
            raise VerificationFailed(f"the {stepper.precision} graphs on {stepper.provider} are refused", lines)

    def certificate(
        self,
        agreement: "Agreement",
        report: DecodingReport,
        *,
        tolerance: float,
        reference_errors: Mapping[str, float] = MappingProxyType({}),
        arithmetic: Mapping[str, str] = MappingProxyType({}),
    ) -> Certificate:
        """Returns the results on this host; see Certificate for the arguments."""
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
            errors=agreement.largest_errors(),
            reference_errors=dict(reference_errors),
            arithmetic=dict(arithmetic),
            tokens=report.tokens,
            batch_invariant=not (agreement.variations or report.batch_lines),
            score_tolerance=SCORE_TOLERANCE[stepper.precision],
        )


def certify_traced(grid: GridComparison, exact: Stepper) -> Certificate:
    """Compares the fp32 graphs with PyTorch; `exact` is the grid's reference in float64.

    Raises VerificationFailed, with a line per tensor, or per decoded source, that differs.
    """
    # On other providers the batch may change the last bits; the certificate then states it.
    must_be_invariant = grid.must_be_invariant and grid.stepper.provider == "cpu"
    agreement = grid.compare_steps(from_expected=True)
    rounding = Agreement()
    rounding.compare(grid.expected, grid.trace(exact, started_from=grid.expected), "in one batch")

    def allowed(name: str) -> float:
        # Forced log-probabilities are a few of the log-probabilities, in another output of the graph.
        own, _ = rounding.errors.get(name.replace("forced_log_probs", "log_probs"), (0.0, ""))
        return max(TOLERANCE, ROUNDING_MULTIPLE * own)

    own = max(rounding.largest_errors().values())
    unstable = (
        f"PyTorch in float32 is off by {own:.2g} from itself in float64: on some sources these weights amplify "
        "rounding, as after a training whose learning rate was too high"
    )

    def refuse(differences: Sequence[str], variations: Sequence[str]) -> None:
        hint = [unstable] if differences and own > UNSTABLE else []
        grid.refuse([*differences, *(variations if must_be_invariant else ()), *hint])

    # Decodings would only repeat these differences at length.
    refuse(agreement.differences(allowed), agreement.variation_lines())
    report = grid.compare_decodings(allowed("step/log_probs"))
    refuse(report.token_lines, report.batch_lines)
    return grid.certificate(agreement, report, tolerance=TOLERANCE, reference_errors=rounding.largest_errors())


def certify_rewritten(grid: GridComparison, arithmetic: Mapping[str, str]) -> Certificate:
    """Compares the int8 or fp16 graphs with the fp32 graphs.

    The certificate states how far each tensor is off. Graphs are refused only if the rewrite must be wrong, since the
    cost in quality is measured on a test set. int8 must also give every source the same bits alone and in any batch:
    its sums are exact. fp16 is for GPUs. Without one the CPU runs it, in fp32 between conversions. That shows a wrong
    rewrite, a value beyond fp16 and the cost of rounding the stored tensors; the certificate states that CUDA's kernels
    have not run.

    Raises:
        VerificationFailed: log-probabilities are off by more than rounding explains, a value is not a number, or a
            source got other bits in int8 in a batch.
    """
    precision = grid.stepper.precision
    is_int8, tolerance = precision == "int8", FIRST_STEP_TOLERANCE[precision]
    must_be_invariant = is_int8 and grid.must_be_invariant
    agreement = grid.compare_steps(grid.stored_differently() if is_int8 else frozenset(), from_expected=False)
    traces, expected = grid.trace(grid.stepper), grid.expected
    # Later log-probabilities contain rounding that the recurrence has amplified.
    key, first = "step 1/log_probs", Agreement()
    first.compare([{key: trace[key]} for trace in traces], [{key: trace[key]} for trace in expected], "in one batch")
    lines = first.differences(lambda name: tolerance)
    lines += [f"{name}: no number" for name, error in agreement.largest_errors().items() if not np.isfinite(error)]
    if is_int8:
        for name in ("log_probs", "attention"):
            if f"step 1/{name}" in expected[0] and not (share := distance(name, traces, expected)) <= INT8_DISTANCE:
                lines.append(
                    f"step/{name}: {share:.2g} of the distance between sources away from fp32; allowed is "
                    f"{INT8_DISTANCE:g}"
                )
    lines += agreement.variation_lines() if must_be_invariant else ()
    grid.refuse(lines)
    report = grid.compare_decodings()
    grid.refuse(report.batch_lines if must_be_invariant else ())
    unseen = {"CUDA": NOT_RUN} if (precision, grid.stepper.provider) == ("fp16", "cpu") else {}
    return grid.certificate(agreement, report, tolerance=tolerance, arithmetic={**arithmetic, **unseen})


def decoding_report(
    plan: VerificationPlan,
    manifest: Manifest,
    stepper: Stepper,
    reference: Stepper,
    sources: Sequence[Sequence[int]],
    tolerance: float | None = None,
) -> DecodingReport:
    """Decodes `sources` by every beam size of the plan on both sides.

    The tokens must be the same, and each request's the same alone and in the batch.

    Args:
        tolerance: how far log-probabilities may be off; a decision within ten of it is a tie, any other an error. If
            None, tokens may differ, and are counted.
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
        outputs, expected = (decode_all(side, sources, options, manifest.special_ids) for side in (stepper, reference))
        for source, together in zip(sources[: plan.num_alone], outputs, strict=False):
            (alone,) = decode_all(stepper, [source], options, manifest.special_ids)
            if list(alone) != list(together):
                batch_lines.append(
                    f"decoding with beam_size {beam_size}: source {list(source)}: score {alone[0].score!r} alone, "
                    f"{together[0].score!r} in a batch"
                )
        differing = [
            (source, ours[0].token_ids, theirs[0].token_ids)
            for source, ours, theirs in zip(sources, outputs, expected, strict=True)
            if ours[0].token_ids != theirs[0].token_ids
        ]
        num_identical += len(sources) - len(differing)
        if tolerance is None or not differing:
            continue
        # A tie: the reference itself decides otherwise when two candidates move by ten tolerances between them.
        amplitude = TIE_TOLERANCES * tolerance / 2
        differing_sources = [source for source, _, _ in differing]
        outcomes = outcomes_under_noise(reference, differing_sources, options, manifest.special_ids, amplitude)
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


class NoisyStepper:
    """Another stepper, with uniform noise within +-`amplitude` on each candidate's log-probability."""

    def __init__(self, stepper: Stepper, amplitude: float, random: np.random.Generator) -> None:
        self._stepper = stepper
        self._amplitude = amplitude
        self._random = random
        self.vocabulary_size = stepper.vocabulary_size
        self.encode, self.select, self.concat = stepper.encode, stepper.select, stepper.concat

    def step(
        self, before: DecoderState | Taken, previous_ids: Ids, *, num_candidates: int, **options: Any
    ) -> tuple[StepOutput, DecoderState]:
        output, stepped = self._stepper.step(
            before, previous_ids, num_candidates=num_candidates + SPARE_CANDIDATES, **options
        )
        exact = output.candidate_log_probs
        noisy = exact + self._random.uniform(-self._amplitude, self._amplitude, exact.shape).astype(exact.dtype)
        order = np.argsort(-noisy, axis=1, kind="stable")[:, :num_candidates]
        ids = np.take_along_axis(output.candidate_ids, order, axis=1)
        log_probs = np.take_along_axis(noisy, order, axis=1)
        return output._replace(candidate_ids=ids, candidate_log_probs=log_probs), stepped


def outcomes_under_noise(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions,
    special_ids: SpecialIds,
    amplitude: float,
) -> list[set[tuple[int, ...]]]:
    """Returns the best hypotheses that each source gets under `NUM_DRAWS` draws of noise on every log-probability.

    If there is only one, all decisions of the search have a clear margin: from the choice of rows to the end of the
    search, and with any option.
    """
    noisy = NoisyStepper(stepper, amplitude, np.random.default_rng(0))
    repeated = [source for source in sources for _ in range(NUM_DRAWS)]
    best = [hypotheses[0].token_ids for hypotheses in decode_all(noisy, repeated, options, special_ids)]
    return [set(best[first : first + NUM_DRAWS]) for first in range(0, len(best), NUM_DRAWS)]


@dataclass(slots=True)
class Agreement:
    """The comparisons of a grid.

    Attributes:
        errors: tensor -> its largest error over all steps, and where that was.
        variations: tensor -> the first place where its bits depended on the batch.
    """

    errors: dict[str, tuple[float, str]] = field(default_factory=dict)
    variations: dict[str, str] = field(default_factory=dict)

    def compare(self, traces: Sequence[Trace], references: Sequence[Trace], where: str) -> None:
        """Compares each source's trace with the reference's."""
        for trace, reference in zip(traces, references, strict=True):
            for key in trace.keys() | reference.keys():
                name = tensor_name(key)
                error = relative_error(trace[key], reference[key]) if key in trace and key in reference else np.inf
                if error > self.errors.setdefault(name, (0.0, ""))[0]:
                    self.errors[name] = error, f"{key.partition('/')[0]}, {where}"

    def compare_bits(self, traces: Sequence[Trace], alone: Sequence[Trace], where: str) -> None:
        """Compares each source's trace, bit for bit, with its trace alone."""
        for trace, single in zip(traces, alone, strict=True):
            for key, values in trace.items():
                if not np.array_equal(values, single[key]):
                    self.variations.setdefault(tensor_name(key), f"{key.partition('/')[0]}, {where}")

    def largest_errors(self) -> dict[str, float]:
        return {name: error for name, (error, _) in sorted(self.errors.items())}

    def differences(self, allowed: Callable[[str], float]) -> list[str]:
        """Returns one line per tensor that is further off than allowed."""
        return [
            f"{name}: off by {error:.2g} ({where}); allowed is {allowed(name):.2g}"
            for name, (error, where) in sorted(self.errors.items())
            # An infinite error is a difference, even if PyTorch's own is infinite, too.
            if not (np.isfinite(error) and error <= allowed(name))
        ]

    def variation_lines(self) -> list[str]:
        """Returns one line per tensor that depends on the batch."""
        return [
            f"{name}: not the same bits alone and with batch-mates ({where})"
            for name, where in sorted(self.variations.items())
        ]


def relative_error(value: NDArray[Any], reference: NDArray[Any]) -> float:
    """Returns the largest |a - b| / max(1, |b|), a in `value` and b in `reference`, of any shape and dtype.

    It is infinite if the shapes differ, if either contains a value that is not a number, or if one of two values is
    infinite.
    """
    if value.shape != reference.shape:
        return float("inf")
    if not value.size:
        return 0.0
    a, b = value.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        # States in the domain of logarithms have infinities.
        error = float(np.max(np.where(a == b, 0.0, np.abs(a - b) / np.maximum(1.0, np.abs(b)))))
    return error if np.isfinite(error) else float("inf")


def distance(name: str, traces: Sequence[Trace], references: Sequence[Trace]) -> float:
    """Returns the distance of traces from references, relative to the distance between references.

    It is the mean difference between a source's values and its reference's, divided by that between the references of
    neighbouring sources, of the step where that is largest. Rounding leaves it small at every step of any model; a
    wrong graph comes near to 1.

    Args:
        name: of a tensor of every step, [R, ...] of each source; features that only one of two sources has, and
            impossible symbols, are left out.
    """
    largest = 0.0
    for key in dict.fromkeys(key for trace in references for key in trace if key.partition("/")[2] == name):
        pairs = zip(traces, references, strict=True)
        own = [_mean_difference(trace[key], reference[key]) for trace, reference in pairs]
        others = [_mean_difference(first[key][:1], second[key][:1]) for first, second in itertools.pairwise(references)]
        share = float(np.mean(own)) / max(float(np.mean(others)), LEAST_DISTANCE)
        largest = max(largest, share if np.isfinite(share) else np.inf)
    return largest


def _mean_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    width = min(a.shape[-1], b.shape[-1])
    a, b = a[..., :width].astype(np.float64), b[..., :width].astype(np.float64)
    possible = ~((a <= LEAST_POSSIBLE) | (b <= LEAST_POSSIBLE))
    with np.errstate(invalid="ignore"):
        return float(np.abs(a - b)[possible].mean())


def tensor_name(key: str) -> str:
    """Returns the tensor of a trace's key: "encoder/memory", or "step/hidden" for every step."""
    moment, _, name = key.partition("/")
    return f"encoder/{name}" if moment == "encoder" else f"step/{name}"


def _without(traces: Sequence[Trace], names: frozenset[str]) -> list[Trace]:
    return [{key: values for key, values in trace.items() if key.partition("/")[2] not in names} for trace in traces]
