"""golden.jsonl: sources with the tokens and scores they must give, on whatever host serves the bundle.

Examples are chosen at export so that every decision of the search has a clear margin: another host's last bits don't
change the tokens. Scores may differ by the certificate's `score_tolerance`.
"""

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from pydantic import ValidationError

from runtime.decoding.hypothesis import Hypothesis
from runtime.decoding.offline import decode_all
from runtime.decoding.options import DecodingOptions
from runtime.manifest import Precision, Section
from runtime.stepper import Stepper
from runtime.tokenizer import UnknownTokenError

if TYPE_CHECKING:
    from runtime.bundle import Bundle


class GoldenExample(Section):
    """One source, how it is decoded, and what must come out as the best hypothesis.

    Attributes:
        precision: of the graphs that must give it.
        source_tokens: as a request gives them: without the EOS that the bundle may append.
        score, log_prob: of the best hypothesis, as the exporting host computed them.
    """

    precision: Precision
    source_tokens: tuple[str, ...]
    beam_size: int
    length_penalty: float
    max_length: int
    target_tokens: tuple[str, ...]
    score: float
    log_prob: float

    @property
    def options(self) -> DecodingOptions:
        return DecodingOptions(beam_size=self.beam_size, length_penalty=self.length_penalty, max_length=self.max_length)


def parse_golden(text: str) -> tuple[GoldenExample, ...]:
    """Reads the lines of golden.jsonl.

    Raises:
        ValueError: naming the line that is no golden example.
    """
    examples = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            examples.append(GoldenExample.model_validate_json(line))
        except ValidationError as error:
            raise ValueError(f"golden.jsonl: line {number}: {error.errors()[0]['msg']}") from error
    return tuple(examples)


def golden_text(examples: tuple[GoldenExample, ...]) -> str:
    """golden.jsonl: one JSON object per line, keys sorted."""
    return "".join(
        json.dumps(example.model_dump(mode="json"), sort_keys=True, ensure_ascii=False) + "\n" for example in examples
    )


def check_golden(bundle: "Bundle", stepper: Stepper, precision: Precision, provider: str) -> list[str]:
    """Decodes the bundle's golden examples on this host.

    Args:
        stepper: the bundle's graphs of `precision` on `provider`.

    Returns:
        One line for each example that does not give its tokens, or not its scores; empty if all hold.
    """
    tolerance = score_tolerance(bundle, precision, provider)
    differences: list[str] = []
    groups: dict[DecodingOptions, list[tuple[int, GoldenExample, list[int]]]] = defaultdict(list)
    for number, example in enumerate(bundle.golden, 1):
        if example.precision != precision:
            continue
        try:
            ids = bundle.source_ids(bundle.source_tokenizer.ids_of(example.source_tokens))
        except UnknownTokenError as error:
            differences.append(f"golden example {number}: {error}")
        else:
            groups[example.options].append((number, example, ids))
    for options, members in groups.items():
        hypotheses = decode_all(stepper, [ids for _, _, ids in members], options, bundle.manifest.special_ids)
        for (number, example, _), found in zip(members, hypotheses, strict=True):
            tokens = bundle.target_tokenizer.tokens_of(found[0].token_ids)
            differences += _differences(f"golden example {number}", example, tokens, found[0], tolerance)
    return differences


def score_tolerance(bundle: "Bundle", precision: Precision, provider: str) -> float:
    """How far a score may be off: by the certificate of this provider, else by the widest one of this precision."""
    certificates = [one for one in bundle.manifest.certificates if one.precision == precision]
    own = [one for one in certificates if one.provider == provider]
    return max(certificate.score_tolerance for certificate in own or certificates)


def _differences(
    name: str, example: GoldenExample, tokens: list[str], found: Hypothesis, tolerance: float
) -> list[str]:
    where = f"{name} ({' '.join(example.source_tokens)}; beam_size {example.beam_size})"
    if tuple(tokens) != example.target_tokens:
        return [f"{where}: tokens are '{' '.join(tokens)}', must be '{' '.join(example.target_tokens)}'"]
    return [
        f"{where}: {field} is {value:.6f}, must be {expected:.6f} within {tolerance:g}"
        for field, value, expected in (
            ("score", found.score, example.score),
            ("log_prob", found.log_prob, example.log_prob),
        )
        # Written so that NaN fails.
        if not abs(value - expected) <= tolerance * max(1.0, abs(expected))
    ]
