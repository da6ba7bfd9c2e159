"""Both sides decode the same sources: the tokens must be the same, and each request's own whatever its batch-mates."""

from collections.abc import Sequence
from dataclasses import dataclass

from attendant.export.verification.margins import outcomes_under_noise
from attendant.export.verification.plan import TIE_TOLERANCES, VerificationPlan
from attendant.runtime.bundle.manifest import Manifest, TokenAgreement
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
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


def compare_decodings(
    plan: VerificationPlan,
    manifest: Manifest,
    stepper: Stepper,
    reference: Stepper,
    sources: Sequence[Sequence[int]],
    tolerance: float | None = None,
) -> DecodingReport:
    """Decodes `sources` by every beam size of the plan on both sides.

    Args:
        tolerance: how far log-probabilities may be off; a decision within ten of it is a tie, any other a fault. None:
            tokens may differ, and are counted.
    """
    num_identical = num_excused = 0
    token_lines: list[str] = []
    batch_lines: list[str] = []
    for options in _decoding_options(plan, manifest):
        found = decode_all(stepper, sources, options, manifest.special_ids)
        expected = decode_all(reference, sources, options, manifest.special_ids)
        differing = [
            index
            for index, (ours, theirs) in enumerate(zip(found, expected, strict=True))
            if ours[0].token_ids != theirs[0].token_ids
        ]
        num_identical += len(sources) - len(differing)
        batch_lines += _batch_differences(plan, manifest, stepper, sources, options, found)
        if tolerance is None:
            continue
        tied = _hang_on_a_tie(reference, [sources[index] for index in differing], options, manifest, tolerance)
        num_excused += sum(tied)
        token_lines += [
            f"decoding with beam_size {options.beam_size}: source {list(sources[index])}: tokens "
            f"{list(found[index][0].token_ids)}, PyTorch's {list(expected[index][0].token_ids)}, and it is no tie"
            for index, excused in zip(differing, tied, strict=True)
            if not excused
        ]
    tokens = TokenAgreement(
        num_compared=len(sources) * len(plan.beam_sizes), num_identical=num_identical, num_excused=num_excused
    )
    return DecodingReport(
        tokens=tokens, token_lines=tuple(token_lines[:MAX_LINES]), batch_lines=tuple(batch_lines[:MAX_LINES])
    )


def _batch_differences(
    plan: VerificationPlan,
    manifest: Manifest,
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions,
    found: Sequence[Sequence[Hypothesis]],
) -> list[str]:
    """One line for each of the plan's first sources that gets other bits alone than it got in `found`."""
    lines = []
    for source, together in zip(sources[: plan.num_alone], found, strict=False):
        (alone,) = decode_all(stepper, [source], options, manifest.special_ids)
        if not _same_bits(alone, together):
            lines.append(
                f"decoding with beam_size {options.beam_size}: source {list(source)}: score {alone[0].score!r} alone, "
                f"{together[0].score!r} in a batch"
            )
    return lines


def _decoding_options(plan: VerificationPlan, manifest: Manifest) -> list[DecodingOptions]:
    """One search per beam size of the plan."""
    return [
        DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=manifest.decoding.length_penalty,
            max_length=min(plan.max_length, manifest.limits.max_target_tokens),
        )
        for beam_size in plan.beam_sizes
    ]


def _hang_on_a_tie(
    reference: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodingOptions,
    manifest: Manifest,
    tolerance: float,
) -> list[bool]:
    """Whether the reference itself decides otherwise when two candidates move by ten tolerances between them."""
    if not sources:
        return []
    amplitude = TIE_TOLERANCES * tolerance / 2
    outcomes = outcomes_under_noise(reference, sources, options, manifest.special_ids, amplitude)
    return [len(tokens) > 1 for tokens in outcomes]


def _same_bits(one: Sequence[Hypothesis], other: Sequence[Hypothesis]) -> bool:
    return [_facts(hypothesis) for hypothesis in one] == [_facts(hypothesis) for hypothesis in other]


def _facts(hypothesis: Hypothesis) -> tuple[object, ...]:
    return hypothesis.token_ids, hypothesis.token_log_probs, hypothesis.log_prob, hypothesis.score
