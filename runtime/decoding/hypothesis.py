"""What a search finds."""

from enum import Enum
from typing import NamedTuple

from attendant.runtime.stepper import Floats


class FinishReason(Enum):
    EOS = "eos"
    LENGTH = "length"


class Hypothesis(NamedTuple):
    """One target with its probability. A named tuple, because it crosses from worker processes.

    Attributes:
        token_ids: the target, without BOS and EOS.
        token_log_probs: the summands of log_prob in order; EOS's is the last where the hypothesis ended there.
        log_prob: natural-log probability of the target, EOS included where it ended there.
        score: what hypotheses are ranked by: log_prob over the penalties.
        attention: float32 [number of summands, source length], or None unless asked for.
    """

    token_ids: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    log_prob: float
    score: float
    finish_reason: FinishReason
    attention: Floats | None = None


class Progress(NamedTuple):
    """Tokens of a request's best hypothesis that no later step can change.

    Attributes:
        first: the place of the first of them in the target.
    """

    first: int
    token_ids: tuple[int, ...]
