"""Both sides decode the same sources: the tokens must be the same, and each request's own whatever its batch-mates."""

from collections.abc import Sequence
from dataclasses import dataclass

from attendant.export.verification.margins import outcomes_under_noise
from attendant.export.verification.plan import TIE_TOLERANCES, VerificationPlan
from attendant.runtime.bundle.manifest import Manifest, TokenAgreement
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
    for beam_size in plan.beam_sizes:
        options = DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=manifest.decoding.length_penalty,
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
