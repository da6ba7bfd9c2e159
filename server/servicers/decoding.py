"""DecodingOptions: the message against the limits in force, to the plain value. Nothing is clipped, nothing ignored."""

import math
from typing import Any

import numpy as np

from attendant.runtime.bundle.manifest import Limits, Manifest
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.servicers.violations import NOT_BUILT, Violations, tokens_long
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_LENGTH_PENALTY = 10.0
MAX_PATIENCE = 10.0

# What is not built may be set to what changes nothing.
NEUTRAL = {"coverage_penalty": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1}


def default_max_length(manifest: Manifest) -> int:
    """What an unset max_length takes."""
    return manifest.decoding.max_length or manifest.limits.max_target_tokens


def read_decoding(
    given: messages.DecodingOptions, *, attention: bool, manifest: Manifest, limits: Limits, violations: Violations
) -> DecodingOptions:
    """The options, with the bundle's defaults for what is unset; what is wrong goes to `violations`."""
    defaults = manifest.decoding

    def value(name: str, default: Any) -> Any:
        return getattr(given, name) if given.HasField(name) else default

    def require(held: bool, name: str, value: object, limit: str) -> None:
        violations.require(held, f"decoding.{name}", value, limit)

    beam_size = value("beam_size", defaults.beam_size)
    require(1 <= beam_size <= limits.max_beam_size, "beam_size", beam_size, f"1 to {limits.max_beam_size}")
    num_hypotheses = value("num_hypotheses", defaults.num_hypotheses)
    # A bad beam_size is told for itself, not once more as a bad limit.
    most = min(limits.max_num_hypotheses, max(1, beam_size))
    require(1 <= num_hypotheses <= most, "num_hypotheses", num_hypotheses, f"1 to {most}, and at most beam_size")
    max_length = value("max_length", default_max_length(manifest))
    require(1 <= max_length <= limits.max_target_tokens, "max_length", max_length, f"1 to {limits.max_target_tokens}")
    min_length = value("min_length", 0)
    longest = min(max_length, limits.max_target_tokens)
    require(min_length <= longest, "min_length", min_length, f"0 to {longest}, and at most max_length")
    # Written so that NaN fails.
    length_penalty = _as_typed(value("length_penalty", defaults.length_penalty))
    held = 0 <= length_penalty <= MAX_LENGTH_PENALTY
    require(held, "length_penalty", length_penalty, f"0 to {MAX_LENGTH_PENALTY:g}")
    patience = _as_typed(value("patience", 1.0))
    require(0 < patience <= MAX_PATIENCE, "patience", patience, f"more than 0 and at most {MAX_PATIENCE:g}")
    _refuse_what_is_not_built(given, violations)
    return DecodingOptions(
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty=length_penalty,
        min_length=min_length,
        max_length=max_length,
        patience=patience,
        suppress_unk=given.suppress_unk,
        attention=attention,
    )


def _refuse_what_is_not_built(given: messages.DecodingOptions, violations: Violations) -> None:
    for name, neutral in NEUTRAL.items():
        if given.HasField(name) and getattr(given, name) != neutral:
            violations.add(f"decoding.{name}", getattr(given, name), f"{neutral} or unset: {NOT_BUILT}")
    if number := len(given.target_prefix.tokens):
        violations.say("decoding.target_prefix", tokens_long(number), f"empty or unset: {NOT_BUILT}")
    if given.HasField("sampling"):
        violations.say("decoding.sampling", "set", f"unset: {NOT_BUILT}")


def _as_typed(value: float) -> float:
    """The shortest decimal that single precision holds as this: 0.6 arrives as 0.60000002384, and was 0.6."""
    return float(str(np.float32(value))) if math.isfinite(value) else value
