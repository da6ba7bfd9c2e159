"""Unknown words replaced by the source words that they attend to (Jean et al. 2015)."""

from collections.abc import Sequence

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer
from attendant.runtime.decoding.hypothesis import Hypothesis


def replace_unknowns(
    hypothesis: Hypothesis, source_words: Sequence[str], tokenizer: Tokenizer
) -> tuple[list[str], str]:
    """The tokens of a hypothesis, and their text, in which no UNK is left that attends to a source word.

    Args:
        hypothesis: with its attention [summands, source length].
        source_words: what stands in the source at each position; positions behind them (EOS) are no words.
        tokenizer: of the target.
    """
    tokens = tokenizer.tokens_of(hypothesis.token_ids)
    if UNK_ID not in hypothesis.token_ids:
        return tokens, tokenizer.decode(hypothesis.token_ids)
    assert hypothesis.attention is not None, "unknowns are replaced by attention"
    for place, token_id in enumerate(hypothesis.token_ids):
        if token_id == UNK_ID:
            tokens[place] = source_words[int(hypothesis.attention[place, : len(source_words)].argmax())]
    return tokens, tokenizer.decode_tokens(tokens)
