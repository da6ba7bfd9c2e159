"""What was found, as an answer holds it: by the names of the API."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.unknowns import replace_unknowns
from attendant.runtime.requests.model import BundleModel
from attendant.runtime.requests.reading import ReadRequest
from attendant.runtime.requests.violations import shortened

MAX_SHOWN_SYMBOLS: Final = 8


def hypothesis_fields(hypothesis: Hypothesis, request: ReadRequest, model: BundleModel) -> dict[str, Any]:
    """One hypothesis of an answer to `generate`; `attention` is an array [summands, source tokens], or None."""
    tokenizer = model.bundle.target_tokenizer
    if request.source_words is None:
        tokens, text = tokenizer.tokens_of(hypothesis.token_ids), tokenizer.decode(hypothesis.token_ids)
    else:
        tokens, text = replace_unknowns(hypothesis, request.source_words, request.source_ids, tokenizer)
    return {
        "text": text,
        "tokens": tokens,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "token_log_probs": hypothesis.token_log_probs if request.token_log_probs else (),
        "attention": hypothesis.attention if request.attention else None,
        "finish_reason": hypothesis.finish_reason,
    }


def score_fields(target: Hypothesis, request: ReadRequest, model: BundleModel) -> dict[str, Any]:
    """An answer to `score`; `attention` likewise."""
    return {
        "log_prob": target.log_prob,
        "source_tokens": source_tokens(request, model),
        "target_tokens": model.bundle.target_tokenizer.tokens_of(target.token_ids),
        "token_log_probs": target.token_log_probs,
        "attention": target.attention,
        "warnings": tuple(_of_unknown(request)),
    }


def source_tokens(request: ReadRequest, model: BundleModel) -> list[str]:
    """What the source was split into: the columns of attention."""
    return model.bundle.source_tokenizer.tokens_of(request.source_ids)


def warnings_of(hypotheses: Sequence[Hypothesis], request: ReadRequest, model: BundleModel) -> tuple[str, ...]:
    """Returns why an answer to `generate` may be worth little.

    Args:
        hypotheses: best first.
    """
    warnings = list(_of_unknown(request))
    best, options = hypotheses[0], request.options
    if best.finish_reason is FinishReason.LENGTH and len(best.token_ids) < options.max_length:
        warnings.append(f"the answer ends after {len(best.token_ids)} tokens because the bans left no other token")
    elif best.finish_reason is FinishReason.LENGTH:
        most = model.limits.max_target_tokens
        remedy = f"raise max_length, up to {most}" if options.max_length < most else "split the source"
        warnings.append(f"the answer was cut after max_length = {options.max_length} tokens: {remedy}")
    return tuple(warnings)


def _of_unknown(request: ReadRequest) -> Iterator[str]:
    """Yields a warning for each side with symbols that its vocabulary lacks."""
    shown = _shown(request.unknown_source)
    if request.is_unknown:
        yield f"no symbol of the source is in the vocabulary{shown}: the answer does not depend on what it says"
    elif shown:
        yield f"the vocabulary lacks symbols of the source{shown}: the model can't tell them apart"
    if shown := _shown(request.unknown_target):
        yield f"the vocabulary lacks symbols of the target{shown}: the score is that of an unknown symbol there"


def _shown(symbols: Sequence[str]) -> str:
    """Returns the first few symbols, quoted and escaped, in brackets; an empty text if there are none."""
    if not symbols:
        return ""
    more = [f"and {len(symbols) - MAX_SHOWN_SYMBOLS} more"] if len(symbols) > MAX_SHOWN_SYMBOLS else []
    return f" ({', '.join([*map(shortened, symbols[:MAX_SHOWN_SYMBOLS]), *more])})"
