"""The `[training]` and `[validation]` tables of a recipe."""

from typing import Annotated, Literal

from pydantic import Field

from training.metrics import MetricName
from training.table import Table

Count = Annotated[int, Field(ge=1)]


class TrainerConfig(Table):
    """`[training]`. Whichever limit comes first ends the training.

    Attributes:
        max_epochs: passes over the training part.
        max_steps: updates.
        max_seconds: of training and validation together, over all resumptions.
        label_smoothing: e of Szegedy et al. 2016, section 7.
        clip_norm: gradients of a larger norm are scaled down to it (Pascanu et al. 2013); 0: never.
        checkpoint_every_seconds: how much work a killed run loses at most; beside it, each validation leaves one.
        checkpoint_every_steps: the same by steps.
        log_every_steps: steps that a line of metrics.jsonl sums up.
        device: "auto": CUDA where there is a device, else the CPU.
        num_threads: of torch on the CPU; None: all cores. A run resumes bit for bit with the same number only.
    """

    max_epochs: Count | None = None
    max_steps: Count | None = None
    max_seconds: Annotated[float, Field(gt=0.0)] | None = None
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    checkpoint_every_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    checkpoint_every_steps: Count | None = None
    log_every_steps: Count = 20
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: Count | None = None


class ValidationConfig(Table):
    """`[validation]`. Decodes with the search that serves, greedily.

    Attributes:
        metric: what decides which checkpoint is best, and when to stop early. "loss" decodes nothing.
        every_steps: None: after each epoch.
        max_examples: decode that many examples at even distances; None: all. The loss is over all in any case.
        patience: stop after that many validations without a new best; None: never.
    """

    metric: MetricName | Literal["loss"] = "loss"
    every_steps: Count | None = None
    max_examples: Count | None = None
    patience: Count | None = None
