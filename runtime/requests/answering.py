"""What was found, as an answer holds it: by the names of the API."""

from typing import Any

from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.unknowns import replace_unknowns
from attendant.runtime.requests.model import BundleModel
from attendant.runtime.requests.reading import ReadRequest

UNKNOWN_SOURCE = "no symbol of the source is in the vocabulary: the answer does not depend on what it says"


def hypothesis_fields(hypothesis: Hypothesis, request: ReadRequest, model: BundleModel) -> dict[str, Any]:
    """One hypothesis of an answer to `generate`; `attention` is an array [summands, source tokens], or None."""
    tokenizer = model.bundle.target_tokenizer
    if request.source_words is None:
        tokens, text = tokenizer.tokens_of(hypothesis.token_ids), tokenizer.decode(hypothesis.token_ids)
    else:
        tokens, text = replace_unknowns(hypothesis, request.source_words, tokenizer)
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
    }


def source_tokens(request: ReadRequest, model: BundleModel) -> list[str]:
    """What the source was split into: the columns of attention."""
    return model.bundle.source_tokenizer.tokens_of(request.source_ids)


def warnings_of(request: ReadRequest) -> tuple[str, ...]:
    """Why its answer may be worth little."""
    return (UNKNOWN_SOURCE,) if request.is_unknown else ()
