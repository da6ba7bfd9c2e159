"""A side of a request, as text or as tokens, to ids."""

from collections.abc import Sequence

from runtime.tokenizer import Tokenizer, UnknownTokenError
from server.servicers.violations import Length, Violations

MAX_UNKNOWN_TOLD = 4


def read_text(text: str, field: str, tokenizer: Tokenizer, least: int, most: int, violations: Violations) -> list[int]:
    """The ids of a text; what is unknown in it becomes UNK. Its length is that of its tokens."""
    ids = tokenizer.encode(text)
    violations.require(least <= len(ids) <= most, field, Length(len(ids)), _range(least, most))
    return ids


def read_tokens(
    tokens: Sequence[str], field: str, tokenizer: Tokenizer, least: int, most: int, violations: Violations
) -> list[int]:
    """The ids of given tokens, all of which must be in the vocabulary.

    Args:
        field: of the repeated field itself: "tokens.tokens".
    """
    if not least <= len(tokens) <= most:
        violations.add(field, Length(len(tokens)), _range(least, most))
        return []
    try:
        return tokenizer.ids_of(tokens)
    except UnknownTokenError:
        unknown = [place for place, token in enumerate(tokens) if not _is_known(token, tokenizer)]
    for place in unknown[:MAX_UNKNOWN_TOLD]:
        violations.add(f"{field}[{place}]", tokens[place], "in the vocabulary")
    if len(unknown) > MAX_UNKNOWN_TOLD:
        violations.add(field, f"{len(unknown)} unknown tokens", "in the vocabulary throughout")
    return []


def _is_known(token: str, tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.ids_of([token])
    except UnknownTokenError:
        return False
    return True


def _range(least: int, most: int) -> str:
    return str(Length(most)) if least == most else f"{least} to {Length(most)}"
