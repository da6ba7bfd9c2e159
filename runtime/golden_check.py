"""Decodes a bundle's golden examples on this host, and says which of them don't hold."""

from collections import defaultdict

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.golden import GoldenExample
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle.tokenizer import UnknownTokenError
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import Stepper


def check_golden(bundle: Bundle, stepper: Stepper, precision: Precision, provider: str) -> list[str]:
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
            groups[options_of(example)].append((number, example, ids))
    for options, members in groups.items():
        hypotheses = decode_all(stepper, [ids for _, _, ids in members], options, bundle.manifest.special_ids)
        for (number, example, _), found in zip(members, hypotheses, strict=True):
            tokens = bundle.target_tokenizer.tokens_of(found[0].token_ids)
            differences += _differences(f"golden example {number}", example, tokens, found[0], tolerance)
    return differences


def score_tolerance(bundle: Bundle, precision: Precision, provider: str) -> float:
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


def options_of(example: GoldenExample) -> DecodingOptions:
    """How the example is decoded."""
    return DecodingOptions(
        beam_size=example.beam_size, length_penalty=example.length_penalty, max_length=example.max_length
    )
