"""Teacher forcing as a search: the target is given, and each step says how probable its next symbol was.

It shares its steps with whatever else is decoded, like any search, and its log-probabilities are the decoder's own.
"""

from dataclasses import dataclass

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.beam import stack_attention
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Node
from attendant.runtime.decoding.search import Candidates


@dataclass(frozen=True, slots=True)
class ForcedSearch:
    """log P(target | source), symbol by symbol.

    Attributes:
        symbols: the target, with EOS at the end where its end counts; not empty.
        node: the last symbol scored.
        length: symbols scored.
    """

    symbols: tuple[int, ...]
    special_ids: SpecialIds
    attention: bool
    node: Node | None = None
    length: int = 0

    @classmethod
    def start(
        cls, target_ids: tuple[int, ...], special_ids: SpecialIds, *, include_eos: bool = True, attention: bool = False
    ) -> "ForcedSearch":
        """Raises ValueError where there is nothing to score."""
        symbols = (*target_ids, special_ids.eos) if include_eos else tuple(target_ids)
        if not symbols:
            raise ValueError("an empty target without EOS has no probability to speak of")
        return cls(symbols, special_ids, attention)

    @property
    def done(self) -> bool:
        return self.length == len(self.symbols)

    @property
    def rows(self) -> tuple[int, ...]:
        return () if self.done else (0,)

    @property
    def previous_ids(self) -> tuple[int, ...]:
        return (self.symbols[self.length - 1] if self.length else self.special_ids.start,)

    @property
    def num_candidates(self) -> int:
        return 1

    @property
    def banned_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def forced_ids(self) -> tuple[int, ...]:
        return (self.symbols[self.length],)

    def advance(self, candidates: Candidates) -> "ForcedSearch":
        log_prob = candidates.forced_log_probs[0]
        so_far = self.node.log_prob if self.node is not None else 0.0
        weights = candidates.attention[0] if self.attention and candidates.attention is not None else None
        node = Node(self.node, self.symbols[self.length], log_prob, so_far + log_prob, weights)
        return ForcedSearch(self.symbols, self.special_ids, self.attention, node, self.length + 1)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        assert self.node is not None
        path = self.node.path()
        ends = self.symbols[-1] == self.special_ids.eos
        return (
            Hypothesis(
                token_ids=self.symbols[:-1] if ends else self.symbols,
                token_log_probs=tuple([node.token_log_prob for node in path]),
                log_prob=self.node.log_prob,
                score=self.node.log_prob,
                finish_reason=FinishReason.EOS if ends else FinishReason.LENGTH,
                attention=stack_attention(path),
            ),
        )
