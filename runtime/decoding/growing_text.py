"""An answer that is told while it grows: its tokens, and what they add to its text, in pieces that fit together."""

from collections.abc import Sequence
from typing import NamedTuple

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer, combines

UNFINISHED = "\ufffd"
"""What a tokenizer of bytes shows for a character that is not whole."""


class Piece(NamedTuple):
    """Tokens, and what they add to the text."""

    tokens: list[str]
    text: str


class GrowingText:
    """Cuts an answer into pieces that are never taken back: put together they are its tokens and its text.

    No piece ends inside a character, or before a mark that combines with the last one, so a token may be held until the
    next is there. Where a tokenizer's text of the first tokens need not be how the whole text begins, all is held.
    """

    def __init__(self, tokenizer: Tokenizer, *, replaces_unknowns: bool = False) -> None:
        """`replaces_unknowns`: what stands in place of UNK is known at the end: from the first one on all is held."""
        self._tokenizer = tokenizer
        self._replaces_unknowns = replaces_unknowns
        self._num_tokens = self._num_characters = 0

    def grow(self, token_ids: Sequence[int]) -> Piece | None:
        """The next piece, of all tokens that are certain so far; None: it is not whole yet."""
        if not self._tokenizer.grows:
            return None
        if self._replaces_unknowns and UNK_ID in token_ids:
            token_ids = token_ids[: token_ids.index(UNK_ID)]
        text, end = self._tokenizer.decode(token_ids), len(token_ids)
        known = text.rstrip(UNFINISHED)
        if len(known) < len(text) or self._tokenizer.combines:
            while end > self._num_tokens:
                end -= 1
                text = self._tokenizer.decode(token_ids[:end])
                if _is_whole(text, known):
                    break
        return self._next(self._tokenizer.tokens_of(token_ids[:end]), text)

    def rest(self, tokens: Sequence[str], text: str) -> Piece | None:
        """The last piece, now that the whole answer is known; None: nothing is missing."""
        return self._next(tokens, text)

    def _next(self, tokens: Sequence[str], text: str) -> Piece | None:
        piece = Piece(list(tokens[self._num_tokens :]), text[self._num_characters :])
        if not piece.tokens:
            return None
        self._num_tokens, self._num_characters = len(tokens), len(text)
        return piece


def _is_whole(text: str, known: str) -> bool:
    """Whether a text ends where a character does, given how it goes on."""
    return known.startswith(text) and len(text) < len(known) and not combines(known[len(text)], text[-1:])
