"""How to search: the options that are built, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Options of one request. Callers validate: here they are assumed to be in range.

    Attributes:
        max_length: tokens after which a hypothesis is cut; BOS, EOS and padding don't count.
        beam_size: live hypotheses; 1 is greedy search.
        num_hypotheses: hypotheses returned; at most beam_size.
        length_penalty: GNMT's alpha (Wu et al. 2016, eq. 14); 0: none.
        min_length: EOS is banned before that many tokens; at most max_length.
        patience: search ends when patience * beam_size hypotheses have ended (Kasai et al. 2022), but not
            before num_hypotheses have; a beam of 1 is greedy, whatever the patience.
        suppress_unk: UNK is never generated.
        attention: keep the attention weights of the hypotheses.
    """

    max_length: int
    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 0.0
    min_length: int = 0
    patience: float = 1.0
    suppress_unk: bool = False
    attention: bool = False


def length_penalty(length: int, alpha: float) -> float:
    """What a log-probability of `length` summands is divided by: ((5 + |Y|) / 6) ^ alpha (Wu et al. 2016, eq. 14)."""
    return float(((5.0 + length) / 6.0) ** alpha) if alpha else 1.0
