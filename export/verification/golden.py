"""Chooses the golden examples: sources whose decoding has margins so clear that it is the same on any host."""

from collections.abc import Mapping, Sequence
from typing import Final

from attendant.export.verification.margins import outcomes_under_noise
from attendant.runtime.bundle.bundle import Bundle, GoldenExample
from attendant.runtime.bundle.manifest import Manifest, Precision
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import VerificationFailed

MARGIN: Final[Mapping[Precision, float]] = {"fp32": 1e-3, "int8": 2e-2, "fp16": 5e-2}
"""An example's tokens must not change when every log-probability moves by up to this: far more than hosts differ by."""

NUM_TRIED = 32
NUM_KEPT = 12
"""Of each beam size."""

GOLDEN_BEAM_SIZE = 4
MAX_LENGTHS = (64, 16, 4)
"""Tried in turn: a model that has learned little has no clear margins over many symbols."""


def choose_golden(
    bundle: Bundle, stepper: BundleStepper, sources: Sequence[Sequence[int]]
) -> tuple[GoldenExample, ...]:
    """Greedy and beam examples with clear margins.

    Args:
        bundle: a draft, whose golden examples are not looked at.
        sources: ids as a request gives them, without EOS; what a request may not give is left out.

    Raises:
        VerificationFailed: no source has a clear margin: the model's outcomes are ties.
    """
    manifest, margin = bundle.manifest, MARGIN[stepper.precision]
    candidates = [source for source in sources if _can_be_asked_for(source, manifest)][:NUM_TRIED]
    encoded = [bundle.source_ids(source) for source in candidates]
    for length in MAX_LENGTHS:
        examples: list[GoldenExample] = []
        for beam_size in (1, min(GOLDEN_BEAM_SIZE, manifest.limits.max_beam_size)):
            options = DecodingOptions(
                beam_size=beam_size,
                length_penalty=manifest.decoding.length_penalty,
                length_penalty_offset=manifest.decoding.length_penalty_offset,
                max_length=min(length, manifest.limits.max_target_tokens),
            )
            outcomes = outcomes_under_noise(stepper, encoded, options, manifest.special_ids, margin)
            kept = [place for place, tokens in enumerate(outcomes) if len(tokens) == 1][:NUM_KEPT]
            found = decode_all(stepper, [encoded[place] for place in kept], options, manifest.special_ids)
            examples += [
                GoldenExample(
                    precision=stepper.precision,
                    source_tokens=tuple(bundle.source_tokenizer.tokens_of(candidates[place])),
                    beam_size=beam_size,
                    length_penalty=options.length_penalty,
                    length_penalty_offset=options.length_penalty_offset,
                    max_length=options.max_length,
                    target_tokens=tuple(bundle.target_tokenizer.tokens_of(hypotheses[0].token_ids)),
                    score=hypotheses[0].score,
                    log_prob=hypotheses[0].log_prob,
                )
                for place, hypotheses in zip(kept, found, strict=True)
            ]
        if examples:
            return tuple(examples)
    raise VerificationFailed(
        "no golden example can be chosen",
        [f"of {len(candidates)} sources none keeps its tokens when log-probabilities move by {margin:g}"],
    )


def _can_be_asked_for(source: Sequence[int], manifest: Manifest) -> bool:
    """Whether a request could give this source by its tokens, within the limits."""
    return 0 < len(source) <= manifest.limits.max_source_tokens and all(
        token_id == UNK_ID or token_id >= len(SPECIAL_TOKENS) for token_id in source
    )
