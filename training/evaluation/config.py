"""The `[evaluation]` table of a recipe."""

from typing import Annotated

from pydantic import Field

from attendant.training.evaluation.metrics import MetricName
from attendant.training.table import Table


class EvaluationConfig(Table):
    """`[evaluation]`: what is measured on the test split once the training is over.

    Attributes:
        metrics: which.
        beam_size: live hypotheses; 1: greedy.
        length_penalty: GNMT's alpha (Wu et al. 2016, eq. 14).
        patience: a beam ends when patience * beam_size hypotheses have ended (Kasai et al. 2022); None: by the rule
            that the server has by default.
        max_length: target tokens after which an output is cut; None: data.max_target_tokens. To be raised where the
            model is measured on longer texts than it was trained on.
    """

    metrics: Annotated[tuple[MetricName, ...], Field(min_length=1)] = ("exact_match",)
    beam_size: Annotated[int, Field(ge=1)] = 1
    length_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    patience: Annotated[float, Field(gt=0.0)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
