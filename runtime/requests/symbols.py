"""A side of a request, as text or as tokens, to ids."""

from collections.abc import Sequence

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer, UnknownTokenError
from attendant.runtime.requests.violations import Violations

MAX_UNKNOWN_TOLD = 4

WORD_MARKS = "▁Ġ "
"""What tokenizers write for the space before a word."""


def read_side(
    field: str, given: str | Sequence[str], tokenizer: Tokenizer, least: int, most: int, violations: Violations
) -> list[int]:
    """The ids of a request's source or target, given as a text or as tokens.

    Args:
        field: that it was given in.
        least, most: tokens that it may have.
    """
    if not isinstance(given, str):
        return read_tokens(given, f"{field}.tokens", tokenizer, least, most, violations)
    # Before the tokenizer, which takes a long time for a long text.
    text, most_characters = given.strip(), tokenizer.max_characters(most)
    if len(text) > most_characters:
        limit = f"{least} to {_tokens_long(most)}, which {most_characters} characters are enough for"
        violations.say(field, f"{len(text)} characters long", limit)
        return []
    # Some tokenizers make symbols of blanks; there is nothing in them to decode all the same.
    ids = tokenizer.encode(text) if text else []
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
    """The ids of given tokens, all of which must be in the vocabulary.

    Args:
        field: of the repeated field itself: "tokens.tokens".
        remedy: what else to say, once, if a token is not.
    """
    if not _check_length(len(tokens), field, least, most, violations):
        return []
    try:
        return tokenizer.ids_of(tokens)
    except UnknownTokenError:
        unknown = [place for place, token in enumerate(tokens) if not _is_known(token, tokenizer)]
    for place in unknown[:MAX_UNKNOWN_TOLD]:
        violations.add(f"{field}[{place}]", tokens[place], "in the vocabulary" + remedy * (place == unknown[0]))
    if len(unknown) > MAX_UNKNOWN_TOLD:
        violations.say(field, f"a list with {len(unknown)} unknown tokens", "in the vocabulary throughout")
    return []


def unknown_symbols(given: str | Sequence[str], ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the parts of a text that the vocabulary lacks, each once, in their order.

    Args:
        given: the text; or tokens, of which none is unknown: a caller who writes UNK means UNK.
        ids: of the text.
    """
    if UNK_ID not in ids or not isinstance(given, str):
        return ()
    pieces = zip(tokenizer.words_of(given), ids, strict=False)
    return tuple(dict.fromkeys(piece for piece, token_id in pieces if token_id == UNK_ID))


def is_unknown(ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Returns whether the vocabulary has nothing of a side but marks of where a word begins."""
    return UNK_ID in ids and all(
        token_id == UNK_ID or not token.strip(WORD_MARKS)
        for token_id, token in zip(ids, tokenizer.tokens_of(ids), strict=True)
    )


def _is_known(token: str, tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.ids_of([token])
    except UnknownTokenError:
        return False
    return True


def _check_length(number: int, field: str, least: int, most: int, violations: Violations) -> bool:
    held = least <= number <= most
    if not held:
        violations.say(field, _tokens_long(number), f"{least} to {_tokens_long(most)}")
    return held


def _tokens_long(number: int) -> str:
    return f"{number} {'token' if number == 1 else 'tokens'} long"
