"""Requests as an engine takes them, or everything that is wrong with them, told together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.runtime.requests.model import BundleModel
from attendant.runtime.requests.symbols import is_unknown, read_side, unknown_symbols
from attendant.runtime.requests.violations import Violations

ReadOptions = Callable[[int, bool, Violations], DecodingOptions | None]
"""What reads the decoding options: for so many source tokens, with attention or not."""


class Side(NamedTuple):
    """A source or a target: the field that it was given in, and its text or its tokens."""

    field: str
    given: str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What a request asks of its model.

    Attributes:
        source_ids: as the encoder takes them, the end symbol included where the model wants it.
        num_source_tokens: of the source itself.
        attention, token_log_probs: whether they are to be in the answer.
        source_words: what stands at each position of the source; None: unknown symbols are not to be replaced.
        unknown_source, unknown_target: parts of the texts that the vocabularies lack.
        is_unknown: the source's vocabulary has nothing of the source.
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


def read_generate(
    source: Side | None,
    output: Mapping[str, bool],
    model: BundleModel,
    read_options: ReadOptions,
    violations: Violations,
) -> ReadRequest | None:
    """A request to generate; None where something is wrong with it, which is then among the violations.

    Args:
        source: None: there is none, which has been told.
        output: attention, token_log_probs and replace_unknowns, where they are asked for.
    """
    source_ids = _source_ids(source, model, violations)
    attention, replaces = output.get("attention", False), output.get("replace_unknowns", False)
    options = read_options(len(source_ids), attention or replaces, violations)
    _check_output(output, model, violations)
    if violations.found or source is None or options is None:
        return None
    request = _request(source, source_ids, options, output, model)
    return replace(request, source_words=_source_words(source, source_ids, model)) if replaces else request


def read_score(
    source: Side | None,
    target: Side | None,
    output: Mapping[str, bool],
    model: BundleModel,
    violations: Violations,
    *,
    include_eos: bool,
) -> ReadRequest | None:
    """A request to score a target, likewise."""
    source_ids = _source_ids(source, model, violations)
    # The end alone has a probability too.
    least, most = int(not include_eos), model.limits.max_target_tokens
    target_ids = [] if target is None else read_side(*target, model.bundle.target_tokenizer, least, most, violations)
    _check_output(output, model, violations)
    if output.get("replace_unknowns"):
        violations.add("output.replace_unknowns", True, "false: a target that is scored stands as it is")
    if violations.found or source is None or target is None:
        return None
    eos = model.manifest.special_ids.eos
    options = scoring_options(target_ids, eos, include_eos=include_eos, attention=output.get("attention", False))
    unknown = unknown_symbols(target.given, target_ids, model.bundle.target_tokenizer)
    return replace(_request(source, source_ids, options, output, model), unknown_target=unknown)


def _source_ids(source: Side | None, model: BundleModel, violations: Violations) -> list[int]:
    if source is None:
        return []
    return read_side(*source, model.bundle.source_tokenizer, 1, model.limits.max_source_tokens, violations)


def _request(
    source: Side, source_ids: list[int], options: DecodingOptions, output: Mapping[str, bool], model: BundleModel
) -> ReadRequest:
    tokenizer = model.bundle.source_tokenizer
    return ReadRequest(
        source_ids=tuple(model.bundle.source_ids(source_ids)),
        num_source_tokens=len(source_ids),
        options=options,
        attention=output.get("attention", False),
        token_log_probs=output.get("token_log_probs", False),
        unknown_source=unknown_symbols(source.given, source_ids, tokenizer),
        is_unknown=is_unknown(source_ids, tokenizer),
    )


def _source_words(source: Side, source_ids: list[int], model: BundleModel) -> list[str]:
    """What stands at each position of the source, its end not among them."""
    tokenizer = model.bundle.source_tokenizer
    return tokenizer.words_of(source.given) if isinstance(source.given, str) else tokenizer.tokens_of(source_ids)


def _check_output(output: Mapping[str, bool], model: BundleModel, violations: Violations) -> None:
    for name in ("attention", "replace_unknowns"):
        if output.get(name) and not model.has_attention:
            violations.add(f"output.{name}", True, "false: this model has no attention")
