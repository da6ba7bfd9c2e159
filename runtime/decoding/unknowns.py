"""Unknown words replaced by the source words that they attend to (Jean et al. 2015)."""

from collections.abc import Sequence
from typing import Final

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.stepper import Floats

ENOUGH_ATTENTION: Final = 0.5
"""Share of the most attention that an unknown source symbol must have to take the place of one that is used already."""


def replace_unknowns(
    hypothesis: Hypothesis, source_words: Sequence[str], source_ids: Sequence[int], tokenizer: Tokenizer
) -> tuple[list[str], str]:
    """The tokens of a hypothesis, and their text, in which no UNK is left that attends to a source word.

    Args:
        hypothesis: with its attention [summands, source length].
        source_words: what stands in the source at each position; positions behind them (EOS) are no words.
        source_ids: their ids.
        tokenizer: of the target.
    """
    tokens = tokenizer.tokens_of(hypothesis.token_ids)
    if UNK_ID not in hypothesis.token_ids:
        return tokens, tokenizer.decode(hypothesis.token_ids)
    assert hypothesis.attention is not None, "unknowns are replaced by attention"
    places = [place for place, token_id in enumerate(hypothesis.token_ids) if token_id == UNK_ID]
    unknown = {position for position in range(len(source_words)) if source_ids[position] == UNK_ID}
    attention = hypothesis.attention[places, : len(source_words)]
    for place, position in zip(places, _positions(attention, unknown), strict=True):
        tokens[place] = source_words[position]
    return tokens, tokenizer.decode_tokens(tokens)


def _positions(attention: Floats, unknown: set[int]) -> list[int]:
    """Returns the source position that replaces each UNK: the one with the most attention.

    A model can't tell unknown symbols apart, so it often divides its attention among several, and looks at one of them
    twice. Therefore each of them is used once as long as another one, not used yet, has nearly as much attention.

    Args:
        attention: [UNKs, source positions].
        unknown: the positions of unknown symbols.
    """
    chosen: list[int] = attention.argmax(axis=1).tolist()
    unused = set(unknown)
    # The surest ones choose first.
    for row in (-attention.max(axis=1)).argsort(kind="stable").tolist():
        if chosen[row] in unknown:
            least = ENOUGH_ATTENTION * float(attention[row, chosen[row]])
            able = [position for position in sorted(unused) if attention[row, position] >= least]
            chosen[row] = max(able, key=attention[row].__getitem__, default=chosen[row])
            unused.discard(chosen[row])
    return chosen
