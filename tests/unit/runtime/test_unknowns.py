"""Which source symbol takes the place of each UNK."""

import numpy as np
import pytest

from attendant.runtime.answers import replace_unknowns
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from tests.serving import symbol_tokenizer


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        # Plainly one after the other.
        ([[0.9, 0.0, 0.1], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9]], "XYZ"),
        # The second looks at the first once more, and nearly as much at what comes next.
        ([[0.9, 0.0, 0.1], [0.5, 0.4, 0.1], [0.0, 0.1, 0.9]], "XYZ"),
        # The surest ones choose first, whatever their order.
        ([[0.1, 0.3, 0.2], [0.0, 0.9, 0.1], [0.8, 0.1, 0.1]], "ZYX"),
        # What is looked at alone may be meant twice.
        ([[0.9, 0.0, 0.1], [0.8, 0.1, 0.1], [0.0, 0.1, 0.9]], "XXZ"),
    ],
)
def test_each_unknown_symbol_is_used_once_where_that_is_nearly_as_probable(
    weights: list[list[float]], text: str
) -> None:
    tokenizer = symbol_tokenizer("ab", characters=True)
    attention = np.array([[*row, 0.0] for row in weights] + [[0.0] * 4], np.float32)
    found = Hypothesis((UNK_ID,) * 3, (), 0.0, 0.0, FinishReason.EOS, attention)
    assert replace_unknowns(found, "XYZ", [UNK_ID] * 3 + [3], tokenizer) == (list(text), text)


def test_a_known_word_may_be_used_as_often_as_it_is_looked_at() -> None:
    tokenizer = symbol_tokenizer("ab", characters=True)
    attention = np.array([[0.6, 0.4], [0.6, 0.4], [0.0, 0.0]], np.float32)
    found = Hypothesis((UNK_ID, UNK_ID), (), 0.0, 0.0, FinishReason.EOS, attention)
    assert replace_unknowns(found, "aX", [4, UNK_ID], tokenizer) == (["a", "a"], "aa")
