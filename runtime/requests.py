"""Reads requests against a bundle and the limits in force, and reports everything that is wrong with them together.

Values are plain here, and named as in the API; unset options are absent. Nothing is clipped or ignored: each check
that fails adds a violation with the allowed values, and reading continues.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer, UnknownTokenError
from attendant.runtime.decoding.options import (
    RANGES,
    Completion,
    DecodingOptions,
    Sampling,
    completion_of,
    default_max_length,
    length_by_ratio,
    scoring_options,
)
from attendant.runtime.decoding.trace import max_trace_bytes
from attendant.runtime.errors import Violation, Violations, cut, shortened
from attendant.runtime.spans import Part, parts_of, spell_stand_ins

MAX_SHOWN_UNKNOWN: Final = 4

WORD_MARKS = "▁Ġ "  # Marks of tokenizers for the space before a word.
TOKENS_ONLY: Final = "given as tokens: this model's texts are segmented by a program of its own"


def read_side(
    field: str, value: str | Sequence[str], tokenizer: Tokenizer, least: int, most: int, violations: Violations
) -> list[int]:
    """Returns the ids of a request's source or target, a text or tokens, of `least` to `most` tokens."""
    if not isinstance(value, str):
        return read_tokens(value, f"{field}.tokens", tokenizer, least, most, violations)
    if not tokenizer.takes_texts:
        violations.add_state(field, "a text", TOKENS_ONLY)
        return []
    # Checked before tokenizing, which is slow for a long text.
    text, most_characters = value.strip(), tokenizer.max_characters(most)
    if len(text) > most_characters:
        limit = f"{least} to {_tokens_long(most)}, which {most_characters} characters are enough for"
        violations.add_state(field, f"{len(text)} characters long", limit)
        return []
    # Some tokenizers make symbols of blanks, which have no content.
    ids = tokenizer.encode(text) if text else []
    if text and len(ids) < least:
        state = f"{shortened(value)}, of which normalization leaves nothing"
        violations.append(Violation(field, state, f"{least} to {_tokens_long(most)}", quoted=True))
    else:
        _check_length(len(ids), field, least, most, violations)
    return ids


def read_tokens(
    tokens: Sequence[str],
    field: str,
    tokenizer: Tokenizer,
    least: int,
    most: int,
    violations: Violations,
    remedy: str = "",
) -> list[int]:
    """Returns the ids of tokens, all of which must be in the vocabulary.

    Args:
        field: of the repeated field itself: "tokens.tokens".
        remedy: added to the first message about an unknown token.
    """
    if not _check_length(len(tokens), field, least, most, violations):
        return []
    try:
        return tokenizer.ids_of(tokens)
    except UnknownTokenError as error:
        unknown = error.positions
    for place in unknown[:MAX_SHOWN_UNKNOWN]:
        violations.add(f"{field}[{place}]", tokens[place], "in the vocabulary" + remedy * (place == unknown[0]))
    if len(unknown) > MAX_SHOWN_UNKNOWN:
        violations.add_state(field, f"a list with {len(unknown)} unknown tokens", "in the vocabulary throughout")
    return []


def unknown_symbols(value: str | Sequence[str], ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the parts of a text that the vocabulary lacks, each once, in their order.

    Args:
        value: the text; or tokens, none of which is unknown, since a caller may write UNK on purpose.
    """
    if UNK_ID not in ids or not isinstance(value, str):
        return ()
    pieces = zip(tokenizer.words_of(value), ids, strict=False)
    # A joiner within an emoji is nothing by itself.
    return tuple(dict.fromkeys(piece for piece, token_id in pieces if token_id == UNK_ID and piece))


def is_unknown(ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Returns True if a side has only unknown symbols and marks of the beginning of words."""
    return UNK_ID in ids and all(
        token_id == UNK_ID or not token.strip(WORD_MARKS)
        for token_id, token in zip(ids, tokenizer.tokens_of(ids), strict=True)
    )


def _check_length(number: int, field: str, least: int, most: int, violations: Violations) -> bool:
    held = least <= number <= most
    if not held:
        violations.add_state(field, _tokens_long(number), f"{least} to {_tokens_long(most)}")
    return held


def _tokens_long(number: int) -> str:
    return f"{number} {'token' if number == 1 else 'tokens'} long"


PREFIX_TEXT: Final = "decoding.target_prefix_text"

MAX_COMPLETED_CHARACTERS: Final = 64  # A longer last word is segmented by the tokenizer and taken as complete.


def read_prefix_text(
    text: str, tokenizer: Tokenizer, most: int, violations: Violations
) -> tuple[tuple[int, ...], Completion]:
    """Returns the ids that are forced, and the completion of the last word; both have `most` target tokens at most."""
    if not tokenizer.takes_texts:
        violations.add_state(PREFIX_TEXT, "a text", TOKENS_ONLY)
        return (), ()
    if len(text) > (most_characters := tokenizer.max_characters(most)):
        violations.add_state(PREFIX_TEXT, f"{len(text)} characters long", f"at most {most_characters} characters long")
        return (), ()
    ids, word = tokenizer.opening(text)
    spelled = tokenizer.spelled(word)
    completion = completion_of(word, tokenizer) if len(word) <= MAX_COMPLETED_CHARACTERS else ()
    if UNK_ID in ids or (UNK_ID in spelled and not completion):
        violations.add(PREFIX_TEXT, text, "a text that the symbols of the target's vocabulary spell")
    elif len(ids) + len(spelled) > most:
        violations.add_state(PREFIX_TEXT, f"{len(ids) + len(spelled)} tokens long", f"0 to {most} tokens long")
    elif not completion:
        return (*ids, *spelled), ()
    elif len(completion) == 1 and len(only := completion[0].ids) == 1:
        return (*ids, int(only[0])), ()
    return tuple(ids), completion


Number = TypeVar("Number", int, float)


def read_decoding(
    fields: Mapping[str, Any], model: BundleModel, num_source_tokens: int, *, attention: bool, trace: int
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """Returns the options, with the bundle's defaults for absent ones; or None and all violations.

    Args:
        fields: the set options by the names of the API; `sampling` is a mapping in turn.
        num_source_tokens: 0 if the source is wrong.
        attention: keep the attention weights.
        trace: candidates of each live hypothesis in the trace; 0 for none.
    """
    reading = _DecodingReader(fields, model, num_source_tokens)
    options = reading.options(attention, trace)
    violations = tuple(reading.violations)
    return (None if violations else options), violations


class _DecodingReader:
    """Reads the decoding options of one request."""

    def __init__(self, fields: Mapping[str, Any], model: BundleModel, num_source_tokens: int) -> None:
        self.violations = Violations()
        self._fields = fields
        self._model = model
        self._limits = model.limits
        self._defaults = model.manifest.decoding
        self._num_source_tokens = num_source_tokens
        self._alternatives: bool = fields.get("alternatives", False)

    def options(self, attention: bool, trace: int) -> DecodingOptions:
        """Returns all options; adds a violation for each that is out of range."""
        sampling = self._sampling()
        beam_size, num_hypotheses = self._beam(sampling is not None)
        min_length, max_length = self._lengths()
        prefix, completion = self._prefix(max_length)
        coverage = self._number("coverage_penalty", 0.0)
        if coverage and not self._model.has_attention:
            self.violations.add("decoding.coverage_penalty", coverage, "0: this model has no attention")
        return DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            coverage_penalty=coverage,
            min_length=min_length,
            max_length=max_length,
            no_repeat_ngram_size=self._number("no_repeat_ngram_size", 0, self._limits.max_target_tokens),
            length_penalty=self._number("length_penalty", self._defaults.length_penalty),
            length_penalty_offset=self._number("length_penalty_offset", self._defaults.length_penalty_offset),
            patience=self._number("patience", self._defaults.patience or 0.0) or None,
            repetition_penalty=self._number("repetition_penalty", 1.0),
            suppress_unk=self._fields.get("suppress_unk", False),
            target_prefix=prefix,
            completion=completion,
            alternatives=self._alternatives,
            sampling=sampling,
            attention=attention,
            trace=trace,
            masked_source_positions=self._masked(),
        )

    def _beam(self, samples: bool) -> tuple[int, int]:
        limits = self._limits
        if samples:
            beam_size = self._value("beam_size", 1)
            self._require(beam_size == 1, "beam_size", "1 or unset: sampling searches no beam", beam_size)
        else:
            beam_size = self._number("beam_size", self._defaults.beam_size, limits.max_beam_size)
        most, why = limits.max_num_hypotheses, ""
        if not samples and not self._alternatives:
            # A bad beam_size has its own violation, and is not used as a limit.
            most, why = min(most, max(1, beam_size)), ", and at most beam_size"
        elif self._alternatives:
            most = max(1, min(most, limits.max_beam_size // max(1, beam_size)))
            why = f", and {limits.max_beam_size} live hypotheses at most: alternatives have beam_size each"
        num_hypotheses = self._number("num_hypotheses", self._defaults.num_hypotheses, most, why)
        if samples:
            self._require(not self._alternatives, "alternatives", "false or unset: draws differ by themselves", True)
        return beam_size, num_hypotheses

    def _lengths(self) -> tuple[int, int]:
        longest = self._limits.max_target_tokens
        default = default_max_length(self._model.manifest, self._num_source_tokens)
        unset = longest if "max_length_ratio" in self._fields else default
        max_length = self._number("max_length", unset, longest)
        max_length = min(max_length, longest, self._by_ratio("max_length_ratio", longest))
        min_length = self._number("min_length", 0, max_length, ", and at most max_length")
        by_ratio = self._by_ratio("min_length_ratio", 0)
        if by_ratio > max_length:
            state = f"{self._value('min_length_ratio', 0.0):g}, {by_ratio} tokens of this source"
            self.violations.add_state(
                "decoding.min_length_ratio", state, f"0 to {max_length} tokens, and at most max_length"
            )
        return max(min_length, by_ratio), max_length

    def _by_ratio(self, name: str, unset: int) -> int:
        if name not in self._fields:
            return unset
        ratio = self._number(name, 1.0)
        is_valid = ratio in RANGES[name] and self._num_source_tokens > 0
        return length_by_ratio(ratio, self._num_source_tokens) if is_valid else unset

    def _masked(self) -> tuple[int, ...]:
        positions = sorted(set(self._fields.get("masked_source_positions", ())))
        if not positions:
            return ()
        num_positions = self._num_source_tokens + self._model.manifest.source.num_special
        limit = ""
        if not self._model.masks_positions:
            limit = f"empty: this model {'does not support masks' if self._model.has_attention else 'has no attention'}"
        elif self._num_source_tokens and num_positions <= max(positions[-1], len(positions)):
            limit = f"positions from 0 to {num_positions - 1}, but not all of them"
        if limit:
            self.violations.add_state("decoding.masked_source_positions", cut(", ".join(map(str, positions))), limit)
        return tuple(positions)

    def _prefix(self, max_length: int) -> tuple[tuple[int, ...], Completion]:
        tokenizer = self._model.bundle.target_tokenizer
        tokens, text = self._fields.get("target_prefix", ()), self._fields.get("target_prefix_text")
        if text is not None:
            self._require(not tokens, "target_prefix_text", "unset where target_prefix is set", text)
            return read_prefix_text(text, tokenizer, max_length, self.violations)
        field, why = "decoding.target_prefix.tokens", "; a text belongs into target_prefix_text"
        return tuple(read_tokens(tokens, field, tokenizer, 0, max_length, self.violations, why)), ()

    def _sampling(self) -> Sampling | None:
        if "sampling" not in self._fields:
            return None
        temperature = self._number("sampling.temperature", 1.0)
        top_k = self._number("sampling.top_k", 0)
        top_p = self._number("sampling.top_p", 1.0)
        return Sampling(seed=self._value("sampling.seed", None), temperature=temperature, top_k=top_k, top_p=top_p)

    def _value(self, path: str, default: Any) -> Any:
        """Returns the value of an option, or of one within another, such as "sampling.top_p"."""
        within, _, name = path.rpartition(".")
        value = (self._fields[within] if within else self._fields).get(name, default)
        # The shortest decimal of a single-precision number: 0.6 arrives as 0.60000002384, and was 0.6.
        return float(str(np.float32(value))) if isinstance(value, float) and math.isfinite(value) else value

    def _number(self, path: str, default: Number, most: int | None = None, why: str = "") -> Number:
        """Returns an option's number, which must be in its range.

        Args:
            most: the range's end for this model and request; None for that of any model.
            why: added to the range in the message.
        """
        value: Number = self._value(path, default)
        allowed = RANGES[path.rpartition(".")[2]]
        if most is not None:
            allowed = replace(allowed, most=most)
        self._require(value in allowed, path, f"{allowed}{why}", value)
        return value

    def _require(self, held: bool, path: str, limit: str, value: object) -> None:
        self.violations.require(held, f"decoding.{path}", value, limit)


class Side(NamedTuple):
    """A source or a target: the request's field, and its value, a text or tokens."""

    field: str
    value: str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A checked request, as the engine takes it.

    Attributes:
        source_ids: as the encoder takes them, including the end symbol if the model expects it.
        num_source_tokens: without the end symbol.
        attention, token_log_probs: the answer contains them.
        source_words: the word at each position of the source; None if unknown symbols are not replaced.
        unknown_source, unknown_target: parts of the texts that are not in the vocabularies.
        is_unknown: the vocabulary has no symbol of the source.
        spans, openings: the source's protected spans, as `Part` has them.
        parts: of a text that is decoded in several parts, a request for each; otherwise empty. The fields above are
            those of all parts together; `options` has the sum of their maximum lengths.
        before, after: the texts around a part, which its answer gets unchanged.
    """

    source_ids: tuple[int, ...]
    num_source_tokens: int
    options: DecodingOptions
    attention: bool = False
    token_log_probs: bool = False
    source_words: list[str] | None = None
    unknown_source: tuple[str, ...] = ()
    unknown_target: tuple[str, ...] = ()
    is_unknown: bool = False
    spans: tuple[str, ...] = ()
    openings: frozenset[int] = frozenset()
    parts: "tuple[ReadRequest, ...]" = ()
    before: str = ""
    after: str = ""

    @property
    def units(self) -> "tuple[ReadRequest, ...]":
        """The requests that the engine gets: the parts, or the request itself."""
        return self.parts or (self,)

    @property
    def num_attention_cells(self) -> int:
        """Upper bound of the attention weights of the answer; 0 if they are not kept."""
        if self.parts and not self.attention:
            return sum(part.num_attention_cells for part in self.parts)
        options = self.options
        return (options.max_length + 1) * len(self.source_ids) * options.num_hypotheses if options.attention else 0


MAX_PARTS: Final = 256  # The limit of a list's requests: the engine gets a request for each part.
MAX_ATTENTION_CELLS: Final = 1 << 24  # A text in parts has a matrix of all tokens by all tokens: 64 MiB.

ReadOptions = Callable[..., tuple[DecodingOptions | None, tuple[Violation, ...]]]
"""`read_decoding` of one request's options, for a number of source tokens and its keywords."""


def read_generate(
    source: Side | None,
    decoding: Mapping[str, Any],
    read_options: ReadOptions,
    output: Mapping[str, Any],
    model: BundleModel,
    violations: Violations,
) -> ReadRequest | None:
    """Returns a request to generate; None if there are violations.

    Args:
        source: None if it is missing; the caller has added the violation.
        decoding: the set options; may be empty if neither they nor the bundle protect spans or split texts.
        output: attention, token_log_probs, replace_unknowns and trace, if the request sets them.
    """
    attention = output.get("attention", False) or output.get("replace_unknowns", False)
    read_options = partial(read_options, attention=attention, trace=output.get("trace", 0))
    chosen = {**decoding, "trace": output.get("trace")}
    parts = [] if source is None else _parts_of(source, chosen, model, violations)
    # Positions in the source tokens of all parts.
    masked = decoding.get("masked_source_positions", ()) if len(parts) > 1 else ()
    num_positions = 0
    requests: list[ReadRequest] = []
    for place, part in enumerate(parts, 1):
        assert source is not None, "it has parts"
        side, num_others = Side(source.field, part.text), len(violations)
        source_ids = read_side(*side, model.bundle.source_tokenizer, 1, model.limits.max_source_tokens, violations)
        if len(parts) > 1:
            in_part = violations[num_others:]
            violations[num_others:] = [replace(each, value=f"{each.value} in part {place}") for each in in_part]
        if masked:
            first, num_positions = num_positions, num_positions + len(source_ids) + model.manifest.source.num_special
            own = [position - first for position in masked if first <= position < num_positions]
            if source_ids and model.masks_positions and len(set(own)) == num_positions - first:
                limit = f"positions, but not all of part {place}, {first} to {num_positions - 1}"
                violations.add_state("decoding.masked_source_positions", cut(", ".join(map(str, masked))), limit)
                own = []
            read_options = partial(
                read_decoding, {**decoding, "masked_source_positions": own}, model, attention=attention, trace=0
            )
        options, wrong = read_options(len(source_ids))
        violations += wrong
        if options is not None and options.trace:
            _check_trace(options, len(source_ids) + model.manifest.source.num_special, violations)
        if violations or options is None:
            break
        if options.sampling is not None and options.sampling.seed is None:
            options = replace(options, sampling=replace(options.sampling, seed=secrets.randbits(64)))
        request = _request(side, source_ids, options, output, model)
        requests.append(
            replace(request, spans=part.spans, openings=part.openings, before=part.before, after=part.after)
        )
    if not parts:
        violations += read_options(0)[1]
    if len(requests) > 1 and max(masked, default=0) >= num_positions > 0:
        violations.add("decoding.masked_source_positions", max(masked), f"positions from 0 to {num_positions - 1}")
    _check_output(output, model, violations)
    if len(requests) > 1 and not violations:
        whole = _whole(requests)
        if whole.num_attention_cells <= MAX_ATTENTION_CELLS:
            return whole
        violations.add("output.attention", True, "false or unset for so long a text in parts")
    return None if violations else requests[0]


OF_ONE_SEARCH: Final = ("target_prefix", "alternatives", "trace")
"""The options that a text of several parts can't have, since each part is searched by itself."""

EXCLUDED: Final = {"protect_spans": ("target_prefix_text",), "split_sentences": ("target_prefix_text", *OF_ONE_SEARCH)}
"""The options that change a text before it is tokenized -> those that they can't be combined with."""


def _parts_of(source: Side, decoding: Mapping[str, Any], model: BundleModel, violations: Violations) -> list[Part]:
    """Returns the parts of a source, which the request or the bundle's defaults cut and protect; none if too many."""
    is_text, chosen = isinstance(source.value, str), {}
    for name, others in EXCLUDED.items():
        excluding = [other for other in others if decoding.get(other)] if is_text else [source.field]
        # The bundle's default is switched off; the request's own option is refused.
        if excluding and decoding.get(name):
            violations.add(f"decoding.{name}", True, f"false or unset where {excluding[0]} is set")
        is_excluded = not set(excluding).issubset(OF_ONE_SEARCH)
        chosen[name] = not is_excluded and decoding.get(name, getattr(model.manifest.decoding, name))
    if not isinstance(source.value, str) or not any(chosen.values()):
        return [Part(source.value)]
    parts = parts_of(source.value, split=chosen["split_sentences"], protect=chosen["protect_spans"])
    if len(parts) > 1 and any(map(decoding.get, OF_ONE_SEARCH)):
        parts = parts_of(source.value, split=False, protect=chosen["protect_spans"])
    if len(parts) > MAX_PARTS:
        violations.add_state(
            source.field, f"{len(parts)} lines and sentences long", f"1 to {MAX_PARTS} lines and sentences"
        )
        return []
    bundle = model.bundle
    if any(part.spans for part in parts) and not spell_stand_ins(bundle.source_tokenizer, bundle.target_tokenizer):
        violations.add("decoding.protect_spans", True, "false: the model's vocabularies can't spell the stand-in {1}")
    return parts


def _whole(parts: Sequence[ReadRequest]) -> ReadRequest:
    first = parts[0]
    return ReadRequest(
        source_ids=tuple(token_id for part in parts for token_id in part.source_ids),
        num_source_tokens=sum(part.num_source_tokens for part in parts),
        options=replace(first.options, max_length=sum(part.options.max_length for part in parts)),
        attention=first.attention,
        token_log_probs=first.token_log_probs,
        parts=tuple(parts),
    )


def read_score(
    source: Side | None,
    target: Side | None,
    output: Mapping[str, Any],
    model: BundleModel,
    violations: Violations,
    *,
    include_eos: bool,
) -> ReadRequest | None:
    """Returns a request to score a target; None if there are violations, which the caller adds for a missing side."""
    bundle, limits = model.bundle, model.limits
    source_ids, target_ids = list[int](), list[int]()
    if source is not None:
        source_ids = read_side(*source, bundle.source_tokenizer, 1, limits.max_source_tokens, violations)
    if target is not None:
        # The end alone has a probability, too.
        least, most = int(not include_eos), limits.max_target_tokens
        target_ids = read_side(*target, bundle.target_tokenizer, least, most, violations)
    _check_output(output, model, violations)
    if output.get("replace_unknowns"):
        violations.add("output.replace_unknowns", True, "false: a target that is scored is not changed")
    if trace := output.get("trace"):
        violations.add("output.trace", trace, "0: a target that is scored is not searched")
    if violations or source is None or target is None:
        return None
    eos = model.manifest.special_ids.eos
    options = scoring_options(target_ids, eos, include_eos=include_eos, attention=output.get("attention", False))
    unknown = unknown_symbols(target.value, target_ids, bundle.target_tokenizer)
    return replace(_request(source, source_ids, options, output, model), unknown_target=unknown)


def _request(
    source: Side, source_ids: list[int], options: DecodingOptions, output: Mapping[str, Any], model: BundleModel
) -> ReadRequest:
    tokenizer, value, words = model.bundle.source_tokenizer, source.value, None
    if output.get("replace_unknowns"):
        words = tokenizer.words_of(value) if isinstance(value, str) else tokenizer.tokens_of(source_ids)
    return ReadRequest(
        source_ids=tuple(model.bundle.source_ids(source_ids)),
        num_source_tokens=len(source_ids),
        options=options,
        attention=output.get("attention", False),
        token_log_probs=output.get("token_log_probs", False),
        source_words=words,
        unknown_source=unknown_symbols(value, source_ids, tokenizer),
        is_unknown=is_unknown(source_ids, tokenizer),
    )


def _check_output(output: Mapping[str, Any], model: BundleModel, violations: Violations) -> None:
    for name in ("attention", "replace_unknowns"):
        if output.get(name) and not model.has_attention:
            violations.add(f"output.{name}", True, "false: this model has no attention")


MAX_TRACE_BYTES: Final = 1 << 20  # Writing it as JSON takes about a second of a thread.


def _check_trace(options: DecodingOptions, num_positions: int, violations: Violations) -> None:
    allowed = RANGES["trace"]
    if violations.require(options.trace in allowed, "output.trace", options.trace, str(allowed)):
        num_bytes = max_trace_bytes(options, num_positions)
        if num_bytes > MAX_TRACE_BYTES:
            state = f"{options.trace} candidates of {options.max_rows} hypotheses in {options.max_length} steps, "
            state += f"which may take {num_bytes / 2**20:.1f} MiB"
            limit = f"one that takes {MAX_TRACE_BYTES >> 20} MiB at most: lower trace, max_length or beam_size"
            violations.add_state("output.trace", state, limit)
