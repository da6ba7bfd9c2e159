"""A prefix that is given as text: the tokens that are forced, and the ways to complete its last word."""

from typing import Final

import numpy as np

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer
from attendant.runtime.decoding.completion import Choice, Completion
from attendant.runtime.requests.violations import Violations

FIELD: Final = "decoding.target_prefix_text"

MAX_COMPLETED_CHARACTERS: Final = 64
"""A longer last word is taken in the tokenizer's own segmentation, and as complete."""


def read_prefix_text(
    text: str, tokenizer: Tokenizer, most: int, violations: Violations
) -> tuple[tuple[int, ...], Completion]:
    """Returns the ids that are forced, and the completion of the last word.

    Args:
        tokenizer: of the target.
        most: tokens that the prefix may have.
    """
    if len(text) > (most_characters := tokenizer.max_characters(most)):
        violations.say(FIELD, f"{len(text)} characters long", f"at most {most_characters} characters long")
        return (), ()
    ids, word = tokenizer.opening(text)
    spelled = tokenizer.spelled(word)
    completion = completion_of(word, tokenizer) if len(word) <= MAX_COMPLETED_CHARACTERS else ()
    if UNK_ID in ids or (UNK_ID in spelled and not completion):
        violations.add(FIELD, text, "a text that the symbols of the target's vocabulary spell")
    elif len(ids) + len(spelled) > most:
        violations.say(FIELD, f"{len(ids) + len(spelled)} tokens long", f"0 to {most} tokens long")
    elif not completion:
        return (*ids, *spelled), ()
    elif len(completion) == 1 and len(only := completion[0].ids) == 1:
        return (*ids, int(only[0])), ()
    return tuple(ids), completion


def completion_of(word: str, tokenizer: Tokenizer) -> Completion:
    """Returns every way to write a word, or a longer one, in the symbols of a vocabulary; empty: there is none."""
    choices: list[Choice] = []
    is_open = [False] * len(word)
    for place in reversed(range(len(word))):
        rest = word[place:]
        within = []
        if not tokenizer.joins_by_blanks:
            ends = [end for end in range(place + 1, len(word)) if is_open[end]]
            within = [(token_id, end) for end in ends if (token_id := tokenizer.id_of(word[place:end])) is not None]
        complete = tokenizer.ids_beginning_with(rest)
        is_open[place] = bool(within or complete)
        choices.append(Choice(tuple(within), np.array(complete, np.int32).tobytes()))
    return tuple(reversed(choices)) if word and is_open[0] else ()
