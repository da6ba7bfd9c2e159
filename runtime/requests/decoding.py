"""Decoding options against the limits in force. Nothing is clipped, nothing ignored."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from attendant.runtime.decoding.completion import Completion
from attendant.runtime.decoding.options import (
    MAX_SAMPLED_CANDIDATES,
    DecodingOptions,
    Sampling,
    default_max_length,
    length_by_ratio,
)
from attendant.runtime.requests.model import BundleModel
from attendant.runtime.requests.prefix import read_prefix_text
from attendant.runtime.requests.symbols import read_tokens
from attendant.runtime.requests.violations import Violation, Violations

MAX_PENALTY: Final = 10
MAX_PATIENCE: Final = 10
MAX_TEMPERATURE: Final = 10
MAX_LENGTH_RATIO: Final = 100

Number = TypeVar("Number", int, float)


def read_decoding(
    given: Mapping[str, Any], model: BundleModel, num_source_tokens: int, *, attention: bool
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """The options, with the bundle's defaults for what is absent; or None, and all that is wrong with them.

    Args:
        given: by the names of the API; `sampling` is a mapping in turn.
        attention: whether the answer needs it.
    """
    reading = _Reading(given, model, num_source_tokens)
    options = reading.options(attention)
    found = tuple(reading.violations.found)
    return (None if found else options), found


def drawn(options: DecodingOptions) -> DecodingOptions:
    """The options with a seed of their own, where they sample."""
    if options.sampling is None:
        return options
    return replace(options, sampling=replace(options.sampling, seed=secrets.randbits(64)))


class _Reading:
    """One request's options being read."""

    def __init__(self, given: Mapping[str, Any], model: BundleModel, num_source_tokens: int) -> None:
        self.violations = Violations()
        self._given = given
        self._model = model
        self._limits = model.limits
        self._defaults = model.manifest.decoding
        self._num_source_tokens = num_source_tokens
        self._alternatives: bool = given.get("alternatives", False)

    def options(self, attention: bool) -> DecodingOptions:
        """All of them; those that are out of range have been told of."""
        sampling = self._sampling()
        beam_size, num_hypotheses = self._beam(sampling is not None)
        min_length, max_length = self._lengths()
        prefix, completion = self._prefix(max_length)
        coverage = self._within("coverage_penalty", 0.0, 0, MAX_PENALTY)
        if coverage and not self._model.has_attention:
            self.violations.add("decoding.coverage_penalty", coverage, "0: this model has no attention")
        return DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            coverage_penalty=coverage,
            min_length=min_length,
            max_length=max_length,
            no_repeat_ngram_size=self._within("no_repeat_ngram_size", 0, 0, self._limits.max_target_tokens),
            length_penalty=self._within("length_penalty", self._defaults.length_penalty, 0, MAX_PENALTY),
            length_penalty_offset=self._within(
                "length_penalty_offset", self._defaults.length_penalty_offset, 0, MAX_PENALTY
            ),
            patience=self._patience(),
            repetition_penalty=self._within("repetition_penalty", 1.0, 1, MAX_PENALTY),
            suppress_unk=self._given.get("suppress_unk", False),
            target_prefix=prefix,
            completion=completion,
            alternatives=self._alternatives,
            sampling=sampling,
            attention=attention,
        )

    def _beam(self, samples: bool) -> tuple[int, int]:
        limits = self._limits
        if samples:
            beam_size = self._value("beam_size", 1)
            self._require(beam_size == 1, "beam_size", "1 or unset: sampling searches no beam", beam_size)
        else:
            beam_size = self._within("beam_size", self._defaults.beam_size, 1, limits.max_beam_size)
        most, why = limits.max_num_hypotheses, ""
        if not samples and not self._alternatives:
            # A bad beam_size is told for itself, not once more as a bad limit.
            most, why = min(most, max(1, beam_size)), ", and at most beam_size"
        elif self._alternatives:
            most = max(1, min(most, limits.max_beam_size // max(1, beam_size)))
            why = f", and {limits.max_beam_size} live hypotheses at most: alternatives have beam_size each"
        num_hypotheses = self._within("num_hypotheses", self._defaults.num_hypotheses, 1, most, why)
        if samples:
            self._require(not self._alternatives, "alternatives", "false or unset: draws differ by themselves", True)
        return beam_size, num_hypotheses

    def _lengths(self) -> tuple[int, int]:
        longest = self._limits.max_target_tokens
        default = default_max_length(self._model.manifest, self._num_source_tokens)
        unset = longest if "max_length_ratio" in self._given else default
        max_length = self._within("max_length", unset, 1, longest)
        max_length = min(max_length, longest, self._by_ratio("max_length_ratio", longest))
        min_length = self._within("min_length", 0, 0, max_length, ", and at most max_length")
        by_ratio = self._by_ratio("min_length_ratio", 0)
        if by_ratio > max_length:
            what = f"{self._value('min_length_ratio', 0.0):g}, {by_ratio} tokens of this source"
            self.violations.say("decoding.min_length_ratio", what, f"0 to {max_length} tokens, and at most max_length")
        return max(min_length, by_ratio), max_length

    def _by_ratio(self, name: str, unset: int) -> int:
        if name not in self._given:
            return unset
        ratio = self._positive(name, 1.0, MAX_LENGTH_RATIO)
        return length_by_ratio(ratio, self._num_source_tokens) if 0 < ratio <= MAX_LENGTH_RATIO else unset

    def _patience(self) -> float | None:
        if "patience" not in self._given and self._defaults.patience is None:
            return None
        return self._positive("patience", self._defaults.patience or 1.0, MAX_PATIENCE)

    def _prefix(self, max_length: int) -> tuple[tuple[int, ...], Completion]:
        tokenizer = self._model.bundle.target_tokenizer
        given, text = self._given.get("target_prefix", ()), self._given.get("target_prefix_text")
        if text is not None:
            self._require(not given, "target_prefix_text", "unset where target_prefix is set", text)
            return read_prefix_text(text, tokenizer, max_length, self.violations)
        field, why = "decoding.target_prefix.tokens", "; a text belongs into target_prefix_text"
        return tuple(read_tokens(given, field, tokenizer, 0, max_length, self.violations, why)), ()

    def _sampling(self) -> Sampling | None:
        if "sampling" not in self._given:
            return None
        temperature = self._positive("sampling.temperature", 1.0, MAX_TEMPERATURE)
        top_k = self._within("sampling.top_k", 0, 0, MAX_SAMPLED_CANDIDATES)
        top_p = self._positive("sampling.top_p", 1.0, 1)
        return Sampling(seed=self._value("sampling.seed", 0), temperature=temperature, top_k=top_k, top_p=top_p)

    def _value(self, path: str, default: Any) -> Any:
        """Of an option, or of one within another: "sampling.top_p"."""
        within, _, name = path.rpartition(".")
        value = (self._given[within] if within else self._given).get(name, default)
        return _as_typed(value) if isinstance(value, float) else value

    def _within(self, path: str, default: Number, least: int, most: int, why: str = "") -> Number:
        """A number in a closed range; `why`: what else there is to say of the limit."""
        value: Number = self._value(path, default)
        # Written so that NaN fails, here and below.
        self._require(least <= value <= most, path, f"{least} to {most}{why}", value)
        return value

    def _positive(self, path: str, default: float, most: int) -> float:
        value: float = self._value(path, default)
        self._require(0 < value <= most, path, f"more than 0 and at most {most}", value)
        return value

    def _require(self, held: bool, path: str, limit: str, value: object) -> None:
        self.violations.require(held, f"decoding.{path}", value, limit)


def _as_typed(value: float) -> float:
    """The shortest decimal that single precision holds as this: 0.6 arrives as 0.60000002384, and was 0.6."""
    return float(str(np.float32(value))) if math.isfinite(value) else value
