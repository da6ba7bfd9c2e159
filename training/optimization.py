"""The optimizer, the learning rate's schedule and the moving average of the weights, with their tables of a recipe."""

import copy
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Final, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from attendant.training.model import Seq2Seq
from attendant.training.table import Share, Table


class OptimizerConfig(Table):
    """`[optimizer]`.

    Attributes:
        kind: "adam" (Kingma and Ba 2015), "adamw" (Loshchilov and Hutter 2019), "adadelta" (Zeiler 2012), or "sgd".
        learning_rate: the highest rate; `[schedule]` changes it over time. Adadelta adapts its own step; its paper has
            learning_rate = 1 and epsilon = 1e-6.
        betas: Adam's decay rates of the averages of the gradient and of its square.
        rho: Adadelta's decay rate of the averages of the squares of the gradient and of the update.
        epsilon: constant of Adam and Adadelta against division by zero.
        momentum: momentum of SGD.
        weight_decay: decoupled from the gradient in adamw, an L2 penalty in the others. With 0, adamw equals adam.
    """

    kind: Literal["adam", "adamw", "adadelta", "sgd"] = "adam"
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    rho: Share = 0.95
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    momentum: Share = 0.0
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0

    @field_validator("betas", mode="before")
    @classmethod
    def betas_are_two(cls, value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != 2:
            raise ValueError("must be two numbers, e.g. [0.9, 0.999]")
        return value

    @model_validator(mode="after")
    def each_value_has_an_effect(self) -> Self:
        adams = ("adam", "adamw")
        owners = {"betas": adams, "rho": ("adadelta",), "epsilon": (*adams, "adadelta"), "momentum": ("sgd",)}
        self.refuse_idle("optimizer", self.kind, owners)
        return self


def make_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    rate, decay = config.learning_rate, config.weight_decay
    match config.kind:
        case "sgd":
            return torch.optim.SGD(parameters, rate, momentum=config.momentum, weight_decay=decay)
        case "adadelta":
            return torch.optim.Adadelta(parameters, rate, config.rho, config.epsilon, weight_decay=decay)
        case "adam" | "adamw":
            kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
            # Fused: one pass over the weights, on CPUs and GPUs.
            return kind(parameters, rate, config.betas, config.epsilon, weight_decay=decay, fused=True)


ScheduleKind = Literal["constant", "inverse_sqrt", "linear", "cosine", "one_cycle", "plateau", "milestones"]
DECAYS_TO_AN_END: Final = ("linear", "cosine", "one_cycle")
CYCLE_RISE, CYCLE_START = 0.3, 0.04  # One cycle rises over this share of the run, from this share of the peak.


class ScheduleConfig(Table):
    """`[schedule]`. The rate first rises linearly over `warmup_steps`, then:

    Attributes:
        kind: "constant"; "inverse_sqrt": falls as the root of warmup_steps / step (Vaswani et al. 2017, 5.3); "linear"
            and "cosine": fall to `final_factor` at the run's limit; "one_cycle": rises from 1/25 of the peak over the
            first 30 % of the run, of steps or of time, and then falls to `final_factor`, both by half a cosine (Smith
            and Topin 2019); "plateau": is multiplied by `factor` whenever more than `patience` validations in a row
            brought no improvement; "milestones": is multiplied by `factor` at each of `milestones` (Sutskever et al.
            2014, section 3.4).
        warmup_steps: steps during which the rate rises; inverse_sqrt needs at least one, one_cycle takes none.
        final_factor: share of the peak at which linear, cosine and one_cycle end.
        factor: factor of plateau and milestones.
        milestones: epochs after which the rate falls, e.g. [5.0, 5.5, 6.0].
        patience: patience of plateau, in validations.
    """

    kind: ScheduleKind = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    milestones: tuple[Annotated[float, Field(gt=0.0)], ...] = ()
    patience: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def values_fit_the_kind(self) -> Self:
        if self.kind == "inverse_sqrt" and not self.warmup_steps:
            raise ValueError(
                'schedule.kind = "inverse_sqrt" is relative to its warm-up: set schedule.warmup_steps, e.g. to 4000'
            )
        if self.kind == "one_cycle" and self.warmup_steps:
            raise ValueError(
                f'schedule.warmup_steps = {self.warmup_steps}: "one_cycle" rises over the first 30 % of the run; leave '
                'it out, or take "cosine", which rises over warmup_steps'
            )
        if self.kind == "milestones" and not self.milestones:
            raise ValueError(
                'schedule.kind = "milestones" falls at none: set schedule.milestones to epochs, e.g. to [5.0, 5.5, 6.0]'
            )
        owners = {
            "final_factor": DECAYS_TO_AN_END,
            "factor": ("plateau", "milestones"),
            "patience": ("plateau",),
            "milestones": ("milestones",),
        }
        self.refuse_idle("schedule", self.kind, owners)
        return self


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of the peak learning rate at each step.

    With a time limit, linear, cosine and one_cycle follow the greater progress, of steps or of time. So the rate has
    fallen at the end even if the machine is too slow for the planned steps. They need one of the run's limits.
    """

    config: ScheduleConfig
    _: KW_ONLY
    steps_of_an_epoch: int
    max_steps: int | None
    max_seconds: float | None

    def factor(self, step: int, seconds: float, plateau_factor: float = 1.0) -> float:
        """Returns the share for the step after `step` finished ones, `seconds` into the training.

        Args:
            plateau_factor: the product of all results of `plateau_fall`.
        """
        config = self.config
        rise = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        match config.kind:
            case "constant":
                return rise
            case "plateau":
                return rise * plateau_factor
            case "milestones":
                num_passed = sum(step >= milestone * self.steps_of_an_epoch for milestone in config.milestones)
                return rise * config.factor**num_passed
            case "inverse_sqrt":
                return rise * min(1.0, math.sqrt(config.warmup_steps / (step + 1)))
            case "one_cycle":
                return self._cycle(self.progress(step, seconds))
            case "linear" | "cosine":
                done = self.progress(step, seconds)
                left = 1.0 - done if config.kind == "linear" else (1.0 + math.cos(math.pi * done)) / 2
                return rise * (config.final_factor + (1.0 - config.final_factor) * left)

    def plateau_fall(self, num_flat: int) -> float:
        """Returns the factor of plateau's rate after `num_flat` validations in a row without a new best."""
        falls = self.config.kind == "plateau" and num_flat > 0 and num_flat % (self.config.patience + 1) == 0
        return self.config.factor if falls else 1.0

    def _cycle(self, done: float) -> float:
        if done < CYCLE_RISE:
            return CYCLE_START + (1.0 - CYCLE_START) * (1.0 - math.cos(math.pi * done / CYCLE_RISE)) / 2
        final, fallen = self.config.final_factor, (done - CYCLE_RISE) / (1.0 - CYCLE_RISE)
        return final + (1.0 - final) * (1.0 + math.cos(math.pi * fallen)) / 2

    def progress(self, step: int, seconds: float) -> float:
        """Returns the training's progress from its warm-up's end, 0, to its limit, 1; 0 without a limit."""
        warmup = self.config.warmup_steps
        by_steps = (step - warmup) / max(1, self.max_steps - warmup) if self.max_steps is not None else 0.0
        by_time = seconds / self.max_seconds if self.max_seconds is not None else 0.0
        return min(1.0, max(0.0, by_steps, by_time))


WARM_UP = 10


class MovingAverage:
    """A moving average of the weights. After n updates a' = d a + (1 - d) w, with d = min(decay, (1 + n) / (10 + n)),
    so that the first weights, which are random, lose their influence fast.

    Attributes:
        model: a copy with the averaged weights.
    """

    def __init__(self, model: Seq2Seq, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.model.requires_grad_(False)
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                # The copies of its weights do not share one block of a GPU's memory, which cuDNN expects.
                module.flatten_parameters()
        self._decay = decay

    @torch.no_grad()
    def update(self, model: Seq2Seq, num_updates: int) -> None:
        """Adds the weights after an update."""
        decay = min(self._decay, (1 + num_updates) / (WARM_UP + num_updates))
        averages: list[Tensor] = list(self.model.parameters())
        weights: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)
