"""Streamed answers: the text of tokens that are certain, cut into pieces that are final."""

from collections.abc import Sequence
from typing import NamedTuple

from attendant.runtime.answers import tokens_and_text
from attendant.runtime.bundle.tokenizer import UNFINISHED, UNK_ID, Tokenizer, combines
from attendant.runtime.decoding.hypothesis import Hypothesis, Progress
from attendant.runtime.requests import ReadRequest
from attendant.runtime.spans import OPEN_STAND_IN, restored


class Piece(NamedTuple):
    """Tokens, and the text that they add."""

    tokens: list[str]
    text: str


class GrowingText:
    """Cuts an answer into pieces that are final: joined, they are its tokens and its text.

    No piece ends inside a character, before a mark that combines with the last one, or inside a stand-in, so a token
    may be held until the next one. If a tokenizer's text of the first tokens may differ from the beginning of the whole
    text, all is held.
    """

    def __init__(self, tokenizer: Tokenizer, unit: ReadRequest) -> None:
        """Begins an empty answer to a request without parts."""
        self._tokenizer = tokenizer
        self._unit = unit
        self._num_tokens = self._num_characters = 0

    def grow(self, token_ids: Sequence[int]) -> Piece | None:
        """Returns the next piece after all tokens that are certain so far; None if it is not complete yet."""
        if not self._tokenizer.grows:
            return None
        if self._unit.source_words is not None and UNK_ID in token_ids:
            # The replacement of an unknown symbol is known at the end.
            token_ids = token_ids[: token_ids.index(UNK_ID)]
        text, end = self._tokenizer.decode(token_ids), len(token_ids)
        known = text.rstrip(UNFINISHED)
        if len(known) < len(text) or self._tokenizer.combines or self._ends_in_stand_in(text):
            while end > self._num_tokens:
                end -= 1
                text = self._tokenizer.decode(token_ids[:end])
                if _is_whole(text, known) and not self._ends_in_stand_in(text):
                    break
        text = self._unit.before + restored(text, self._unit.spans, self._unit.openings)
        return self.rest(self._tokenizer.tokens_of(token_ids[:end]), text)

    def _ends_in_stand_in(self, text: str) -> bool:
        return bool(self._unit.spans) and OPEN_STAND_IN.search(text) is not None

    def rest(self, tokens: Sequence[str], text: str) -> Piece | None:
        """Returns the part of an answer after the former pieces; None if there is none."""
        piece = Piece(list(tokens[self._num_tokens :]), text[self._num_characters :])
        if not (piece.tokens or piece.text):
            return None
        self._num_tokens, self._num_characters = len(tokens), len(text)
        return piece


class GrowingAnswer:
    """Cuts the answer to a request into pieces, part after part: joined, they are its best hypothesis.

    The parts of a text are decoded at the same time. A part's tokens are held until the parts before it have ended.
    """

    def __init__(self, request: ReadRequest, tokenizer: Tokenizer) -> None:
        self._units = request.units
        self._tokenizer = tokenizer
        self._texts = [GrowingText(tokenizer, unit) for unit in self._units]
        self._certain: list[list[int]] = [[] for _ in self._units]
        self._best: list[Hypothesis | None] = [None] * len(self._units)
        self._place = 0  # The part that grows.

    def add(self, place: int, progress: Progress) -> None:
        """Adds tokens of a part that are certain. They may come twice."""
        self._certain[place][progress.first :] = progress.token_ids

    def end(self, place: int, best: Hypothesis) -> None:
        self._best[place] = best

    def grow(self) -> Piece | None:
        """Returns the next piece of the certain tokens; None if there is none."""
        tokens, text = list[str](), ""
        while self._place < len(self._units):
            growing, best = self._texts[self._place], self._best[self._place]
            if best is None:
                piece = growing.grow(self._certain[self._place])
            else:
                piece = growing.rest(*tokens_and_text(best, self._units[self._place], self._tokenizer))
            if piece is not None:
                tokens, text = tokens + piece.tokens, text + piece.text
            if best is None:
                break
            self._place += 1
        return Piece(tokens, text) if tokens or text else None


def _is_whole(text: str, known: str) -> bool:
    """Returns True if a text ends at the end of a character of the longer text `known`."""
    return known.startswith(text) and len(text) < len(known) and not combines(known[len(text)], text[-1:])
