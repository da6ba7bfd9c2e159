"""The client's answers, whose attention is an array."""

from dataclasses import dataclass

import attendant_client
from attendant.runtime.stepper import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hypothesis(attendant_client.Hypothesis):
    """As the client's.

    Attributes:
        attention: float32 [summands of `log_prob`, source tokens]; None unless asked for.
    """

    attention: Floats | None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation(attendant_client.Generation):
    """As the client's; `request_id` is empty."""

    hypotheses: tuple[Hypothesis, ...]

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score(attendant_client.Score):
    """As the client's; `request_id` is empty.

    Attributes:
        attention: float32 [summands of `log_prob`, source tokens]; None unless asked for.
    """

    attention: Floats | None  # type: ignore[assignment]
