"""The `[training]` and `[validation]` tables of a recipe."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from attendant.training.evaluation.metrics import MetricName
from attendant.training.kernels.device import WantedDevice
from attendant.training.kernels.precision import WantedPrecision
from attendant.training.table import Table

Count = Annotated[int, Field(ge=1)]


class TrainerConfig(Table):
    """`[training]`. Whichever limit comes first ends the training.

    Attributes:
        start_from: a run directory whose best weights this training begins with, and whose tokenizers it takes;
            `[source]`, `[target]` and `[model]` must be equal but for `model.dropout`. --resume needs it no more. None:
            random weights.
        max_epochs: passes over the training split.
        max_steps: updates.
        max_seconds: of training and validation together, over all resumptions.
        label_smoothing: e of Szegedy et al. 2016, section 7.
        clip_norm: gradients of a larger norm are scaled down to it (Pascanu et al. 2013); 0: never.
        accumulate_batches: batches whose gradients make one update, as if they were one batch; an epoch's last update
            may have fewer.
        ema_decay: d of an exponential moving average of the weights (Polyak and Juditsky 1992), which is then what is
            validated and published; between 0.99 and 0.9999, the higher the longer the training. None: the weights
            themselves.
        precision: "fp32"; "bf16" and "fp16": mixed, products in 16 bits (bf16: GPUs, and CPUs with avx512_bf16 or AMX;
            fp16: GPUs only); "auto": bf16 where the hardware has it, else fp16 on a GPU and fp32 on a CPU.
        divergence_margin: in nats per target token; a loss so far above its lowest counts as diverging.
        divergence_updates: so many of them in a row stop the training; 0: never. No number at all stops it at once.
        checkpoint_every_seconds: how much work a killed run loses at most; beside it, each validation leaves one.
        checkpoint_every_steps: the same by steps.
        keep_checkpoints: so many of the last validated checkpoints stay, for `python -m training average`; beside them
            the best and the last one always do.
        log_every_steps: steps that a line of metrics.jsonl sums up.
        device: "auto": CUDA where there is a device, else the CPU.
        num_threads: of torch on the CPU; None: all cores. A run resumes bit for bit with the same number only.
    """

    start_from: str | None = None
    max_epochs: Count | None = None
    max_steps: Count | None = None
    max_seconds: Annotated[float, Field(gt=0.0)] | None = None
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    accumulate_batches: Count = 1
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    precision: WantedPrecision = "fp32"
    divergence_margin: Annotated[float, Field(gt=0.0)] = 2.0
    divergence_updates: Annotated[int, Field(ge=0)] = 300
    checkpoint_every_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    checkpoint_every_steps: Count | None = None
    keep_checkpoints: Annotated[int, Field(ge=0)] = 0
    log_every_steps: Count = 20
    device: WantedDevice = "auto"
    num_threads: Count | None = None

    @model_validator(mode="after")
    def fp16_is_for_gpus(self) -> Self:
        if self.precision == "fp16" and self.device == "cpu":
            raise ValueError(
                'training.precision = "fp16" is for CUDA, and training.device = "cpu": set precision to "auto" or '
                '"fp32", or device to "cuda"'
            )
        return self


class ValidationConfig(Table):
    """`[validation]`. Decodes with the search that serves, greedily.

    Attributes:
        metric: what decides which checkpoint is best, and when to stop early; of equal values the one with the lower
            loss is better. "loss" decodes nothing.
        every_steps: None: after each epoch.
        max_examples: decode that many examples at even distances; None: all. The loss is over all in any case.
        patience: stop after that many validations without a new best; None: never.
    """

    metric: MetricName | Literal["loss"] = "loss"
    every_steps: Count | None = None
    max_examples: Count | None = None
    patience: Count | None = None
