"""Words and punctuation marks: a length of texts that does not depend on a model's tokenizer."""

import re

WORD_OR_MARK = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def num_words(text: str) -> int:
    """How many words and punctuation marks a text has: `don't` is one, `x.y` three."""
    return len(WORD_OR_MARK.findall(text))
