"""The last word of a prefix that is given as text: hypotheses complete it in any segmentation.

A prefix "Cliquez sur Ouv" forces the tokens of its whole words. For "▁Ouv" a hypothesis may take any token that
continues it, "▁Ouvrez" as well as "▁Ou" and then "vrir": the model chooses. In state p of a completion, p characters of
that word have been written. There is a state for each of its characters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attendant.runtime.stepper import Ids


class Choice(NamedTuple):
    """The tokens that may come next in one state.

    Attributes:
        partial: tokens that stay within the word, each with the state that it leads to.
        complete: tokens that reach the end of the word or go beyond it, as the bytes of an int32 array: there may be
            thousands, and options are pickled.
    """

    partial: tuple[tuple[int, int], ...] = ()
    complete: bytes = b""

    @property
    def ids(self) -> Ids:
        """Returns every token that may come next."""
        partial = [token_id for token_id, _ in self.partial]
        return np.concatenate([np.array(partial, np.int64), np.frombuffer(self.complete, np.int32)])


Completion = tuple[Choice, ...]


def choice_after(completion: Completion, token_ids: Sequence[int]) -> Choice | None:
    """Returns the choice after the tokens that follow the forced ones; None if the word is complete."""
    state = 0
    for token_id in token_ids:
        following = dict(completion[state].partial).get(token_id)
        if following is None:
            return None
        state = following
    return completion[state] if state < len(completion) else None
