"""What a search finds."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from attendant.runtime.stepper import Floats


class FinishReason(Enum):
    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One target with its probability.

    Attributes:
        token_ids: the target, without BOS and EOS.
        token_log_probs: the summands of log_prob in order; EOS's is the last where the hypothesis ended there.
        log_prob: natural-log probability of the target, EOS included where it ended there.
        score: what hypotheses are ranked by: log_prob over the penalties.
        attention: [number of summands, source length], or None unless asked for.
    """

    token_ids: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    log_prob: float
    score: float
    finish_reason: FinishReason
    attention: Floats | None = None


class Node(NamedTuple):
    """The last symbol of a partial hypothesis, and what came before it.

    Hypotheses that share a beginning share its nodes: extending one copies nothing. A named tuple because one is made
    per row and step: a frozen dataclass takes several times as long to make.
    """

    parent: "Node | None"
    token_id: int
    token_log_prob: float
    log_prob: float
    attention: Floats | None

    def path(self) -> list["Node"]:
        """The nodes from the first symbol to this one."""
        nodes = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes
