"""DecodingOptions: the message against the limits in force, to the plain value. Nothing is clipped, nothing ignored."""

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from attendant.runtime.decoding.options import (
    MAX_SAMPLED_CANDIDATES,
    DecodingOptions,
    Sampling,
    default_max_length,
    length_by_ratio,
)
from attendant.server.errors import Violation
from attendant.server.models import ServedModel
from attendant.server.servicers.symbols import read_tokens
from attendant.server.servicers.violations import Violations
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_PENALTY: Final = 10.0
MAX_PATIENCE: Final = 10.0
MAX_TEMPERATURE: Final = 10.0
MAX_LENGTH_RATIO: Final = 100.0
MAX_OPTIONS_KEPT: Final = 1024


def read_decoding(
    given: messages.DecodingOptions,
    output: messages.OutputOptions,
    model: ServedModel,
    num_source_tokens: int,
    violations: Violations,
) -> DecodingOptions | None:
    """The options, with the bundle's defaults for what is unset; what is wrong goes to `violations`."""
    attention = output.attention or output.replace_unknowns
    by_length = given.HasField("min_length_ratio") or given.HasField("max_length_ratio")
    by_length |= model.manifest.decoding.max_length_ratio is not None and not given.HasField("max_length")
    options, found = _read(model, given.SerializeToString(), attention, num_source_tokens if by_length else 0)
    violations.found += found
    if options is not None and options.sampling is not None and not given.sampling.HasField("seed"):
        return replace(options, sampling=replace(options.sampling, seed=secrets.randbits(64)))
    return options


@lru_cache(maxsize=MAX_OPTIONS_KEPT)
def _read(
    model: ServedModel, asked: bytes, attention: bool, num_source_tokens: int
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """Most requests have the same few options: each is read once."""
    reading = _Reading(messages.DecodingOptions.FromString(asked), model, num_source_tokens)
    options = reading.options(attention)
    found = tuple(reading.violations.found)
    return (None if found else options), found


class _Reading:
    """One message being read."""

    def __init__(self, given: messages.DecodingOptions, model: ServedModel, num_source_tokens: int) -> None:
        self.violations = Violations()
        self._given = given
        self._model = model
        self._limits = model.limits
        self._defaults = model.manifest.decoding
        self._num_source_tokens = num_source_tokens

    def options(self, attention: bool) -> DecodingOptions:
        """All of them; those that are out of range have been told of."""
        given, limits = self._given, self._limits
        sampling = self._sampling()
        beam_size, num_hypotheses = self._beam(sampling is not None)
        min_length, max_length = self._lengths()
        coverage = self._number("coverage_penalty", 0.0, _at_most(MAX_PENALTY), f"0 to {MAX_PENALTY:g}")
        if coverage and not self._model.has_attention:
            self.violations.add("decoding.coverage_penalty", coverage, "0: this model has no attention")
        ngram_size = self._value("no_repeat_ngram_size", 0)
        most = limits.max_target_tokens
        self._require(ngram_size <= most, "no_repeat_ngram_size", f"0 to {most}", ngram_size)
        return DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=self._number(
                "length_penalty", self._defaults.length_penalty, _at_most(MAX_PENALTY), f"0 to {MAX_PENALTY:g}"
            ),
            coverage_penalty=coverage,
            min_length=min_length,
            max_length=max_length,
            patience=self._patience(),
            no_repeat_ngram_size=ngram_size,
            repetition_penalty=self._number(
                "repetition_penalty", 1.0, lambda value: 1 <= value <= MAX_PENALTY, f"1 to {MAX_PENALTY:g}"
            ),
            suppress_unk=given.suppress_unk,
            target_prefix=self._prefix(max_length),
            alternatives=given.alternatives,
            sampling=sampling,
            attention=attention,
        )

    def _beam(self, samples: bool) -> tuple[int, int]:
        given, limits = self._given, self._limits
        beam_size = self._value("beam_size", 1 if samples else self._defaults.beam_size)
        if samples:
            self._require(beam_size == 1, "beam_size", "1 or unset: sampling searches no beam", beam_size)
        else:
            self._require(
                1 <= beam_size <= limits.max_beam_size, "beam_size", f"1 to {limits.max_beam_size}", beam_size
            )
        num_hypotheses = self._value("num_hypotheses", self._defaults.num_hypotheses)
        most, why = limits.max_num_hypotheses, ""
        if not samples and not given.alternatives:
            # A bad beam_size is told for itself, not once more as a bad limit.
            most, why = min(most, max(1, beam_size)), ", and at most beam_size"
        elif given.alternatives:
            most = max(1, min(most, limits.max_beam_size // max(1, beam_size)))
            why = f", and {limits.max_beam_size} live hypotheses at most: alternatives have beam_size each"
        self._require(1 <= num_hypotheses <= most, "num_hypotheses", f"1 to {most}{why}", num_hypotheses)
        if samples:
            self._require(not given.alternatives, "alternatives", "false or unset: draws differ by themselves", True)
        return beam_size, num_hypotheses

    def _lengths(self) -> tuple[int, int]:
        longest = self._limits.max_target_tokens
        default = default_max_length(self._model.manifest, self._num_source_tokens)
        max_length = self._value("max_length", longest if self._given.HasField("max_length_ratio") else default)
        self._require(1 <= max_length <= longest, "max_length", f"1 to {longest}", max_length)
        max_length = min(max_length, longest, self._by_ratio("max_length_ratio", longest))
        min_length = self._value("min_length", 0)
        self._require(min_length <= max_length, "min_length", f"0 to {max_length}, and at most max_length", min_length)
        by_ratio = self._by_ratio("min_length_ratio", 0)
        if by_ratio > max_length:
            what = f"{self._given.min_length_ratio:g}, {by_ratio} tokens of this source"
            self.violations.say("decoding.min_length_ratio", what, f"0 to {max_length} tokens, and at most max_length")
        return max(min_length, by_ratio), max_length

    def _by_ratio(self, name: str, unset: int) -> int:
        if not self._given.HasField(name):
            return unset
        limit = f"more than 0 and at most {MAX_LENGTH_RATIO:g}"
        ratio = self._number(name, 1.0, lambda value: 0 < value <= MAX_LENGTH_RATIO, limit)
        return length_by_ratio(ratio, self._num_source_tokens) if 0 < ratio <= MAX_LENGTH_RATIO else unset

    def _patience(self) -> float | None:
        if not self._given.HasField("patience") and self._defaults.patience is None:
            return None
        limit = f"more than 0 and at most {MAX_PATIENCE:g}"
        return self._number("patience", self._defaults.patience or 1.0, lambda value: 0 < value <= MAX_PATIENCE, limit)

    def _prefix(self, max_length: int) -> tuple[int, ...]:
        tokenizer = self._model.bundle.target_tokenizer
        given, field = self._given.target_prefix.tokens, "decoding.target_prefix.tokens"
        return tuple(read_tokens(given, field, tokenizer, 0, max_length, self.violations))

    def _sampling(self) -> Sampling | None:
        if not self._given.HasField("sampling"):
            return None
        given = self._given.sampling
        temperature = _as_typed(given.temperature) if given.HasField("temperature") else 1.0
        top_p = _as_typed(given.top_p) if given.HasField("top_p") else 1.0
        for held, name, value, limit in (
            (
                0 < temperature <= MAX_TEMPERATURE,
                "temperature",
                temperature,
                f"more than 0 and at most {MAX_TEMPERATURE:g}",
            ),
            (given.top_k <= MAX_SAMPLED_CANDIDATES, "top_k", given.top_k, f"0 to {MAX_SAMPLED_CANDIDATES}"),
            (0 < top_p <= 1, "top_p", top_p, "more than 0 and at most 1"),
        ):
            self.violations.require(held, f"decoding.sampling.{name}", value, limit)
        return Sampling(seed=given.seed, temperature=temperature, top_k=given.top_k, top_p=top_p)

    def _value(self, name: str, default: Any) -> Any:
        return getattr(self._given, name) if self._given.HasField(name) else default

    def _number(self, name: str, default: float, is_held: Callable[[float], bool], limit: str) -> float:
        value = _as_typed(self._value(name, default))
        self._require(is_held(value), name, limit, value)
        return value

    def _require(self, held: bool, name: str, limit: str, value: object) -> None:
        self.violations.require(held, f"decoding.{name}", value, limit)


def _at_most(most: float) -> Callable[[float], bool]:
    # Written so that NaN fails.
    return lambda value: 0 <= value <= most


def _as_typed(value: float) -> float:
    """The shortest decimal that single precision holds as this: 0.6 arrives as 0.60000002384, and was 0.6."""
    return float(str(np.float32(value))) if math.isfinite(value) else value
