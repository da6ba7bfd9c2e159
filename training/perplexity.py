"""Perplexity: among how many equally likely symbols a model wavers, on average.

    perplexity = exp(-sum log P / count)

The sum is of the true symbols' log-probabilities, each given the source and the true symbols before it (teacher
forcing). The end of each target counts: EOS is in the sum, and is one of the count. Label smoothing is in neither.

Per token the count is of the target tokens, and per word of the words, which white space separates. The sum is the
same. So models of unlike tokenizers can be compared per word, and those of one tokenizer in either way; where tokens
are words the two are equal.
"""

import math
from typing import Final

LARGEST_EXPONENT: Final = 700.0
"""Above it a float has no number for exp(x)."""


def perplexity(log_prob: float, count: float) -> float:
    """exp(-log_prob / count); of nothing at all it is 1."""
    return math.exp(min(-log_prob / count, LARGEST_EXPONENT)) if count else 1.0


def num_words_and_end(target: str) -> int:
    """The words of a target, and one more for its end."""
    return len(target.split()) + 1
