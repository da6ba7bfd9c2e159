"""Attention as an alignment: each target token is linked to the source token that has most of its attention.

Links are pairs (source place, target place), counted from 0, written `0-0 1-2` as aligners of bitexts do. A token with
most attention on the source's end has no link, nor has the target's end. Attention is not an alignment by itself:
docs/experiments/alignment.md measures the difference.
"""

from collections.abc import Collection, Sequence

from attendant_client.types import EOS, Generation, Score, attention_of

Link = tuple[int, int]


def links(answer: Generation | Score, *, hypothesis: int = 0) -> tuple[Link, ...]:
    """Returns the links of an answer, in the order of the target.

    Args:
        answer: of `generate` or `score`, called with `attention=True`.
        hypothesis: its place in a generation; 0 is the best.

    Raises:
        ValueError: the answer has no attention.
    """
    weights, tokens = attention_of(answer, hypothesis)
    ends = [place for place, token in enumerate(answer.source_tokens) if token == EOS]  # each part of a text has one
    return hard_links(weights, len(tokens), ends)


def hard_links(weights: Sequence[Sequence[float]], num_tokens: int, ends: Collection[int] = ()) -> tuple[Link, ...]:
    """Returns the links of attention weights [T, S].

    Args:
        num_tokens: of the target; a row of its end has no link.
        ends: columns of the source's ends.
    """
    rows = weights[:num_tokens]
    largest = (max(range(len(row)), key=row.__getitem__) for row in rows)
    return tuple((source, target) for target, source in enumerate(largest) if source not in ends)


def as_text(pairs: Sequence[Link]) -> str:
    """Formats links as `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in pairs)
