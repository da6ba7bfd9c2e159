"""Attention as an alignment: each target token is linked to the source token that got most of its attention.

Links are pairs (source place, target place), counted from 0, written `0-0 1-2` as aligners of bitexts do. A token that
looks at the source's end most has no link; the target's end has none either. Attention is no alignment by itself:
docs/experiments/alignment.md says how near it comes.
"""

from collections.abc import Sequence

from attendant_client.answers import EOS, Generation, Score, attention_of

Link = tuple[int, int]


def links(answer: Generation | Score, *, hypothesis: int = 0) -> tuple[Link, ...]:
    """The links of an answer, in the order of the target.

    Args:
        answer: of `generate` or `score`, asked with `attention=True`.
        hypothesis: which one of a generation's, 0 being the best.

    Raises:
        ValueError: there is no attention in the answer.
    """
    weights, tokens = attention_of(answer, hypothesis)
    end = len(answer.source_tokens) - 1 if answer.source_tokens[-1] == EOS else None
    return hard_links(weights, len(tokens), end)


def hard_links(weights: Sequence[Sequence[float]], num_tokens: int, end: int | None = None) -> tuple[Link, ...]:
    """The links of attention weights [T, S].

    Args:
        num_tokens: of the target; a row of its end, where there is one, has no link.
        end: the column of the source's end; None: it has none.
    """
    rows = weights[:num_tokens]
    return tuple((source, target) for target, row in enumerate(rows) if (source := _largest(row)) != end)


def as_text(found: Sequence[Link]) -> str:
    """Links as `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in found)


def _largest(row: Sequence[float]) -> int:
    """The first place of the largest weight."""
    return max(range(len(row)), key=row.__getitem__)
