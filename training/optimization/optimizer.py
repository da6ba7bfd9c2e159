"""The `[optimizer]` table of a recipe, and the optimizer it means."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from attendant.training.table import Table

Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimizerConfig(Table):
    """`[optimizer]`.

    Attributes:
        kind: "adam" (Kingma and Ba 2015), "adamw" (Loshchilov and Hutter 2019), "adadelta" (Zeiler 2012), or "sgd".
        learning_rate: the highest rate; `[schedule]` says how it rises and falls. Adadelta finds its own step; its
            paper has learning_rate = 1 and epsilon = 1e-6.
        betas: Adam's decay rates of the averages of the gradient and of its square.
        rho: Adadelta's decay rate of the averages of the squares of the gradient and of the update.
        epsilon: of Adam and Adadelta, against division by zero.
        momentum: of SGD.
        weight_decay: decoupled from the gradient in adamw, an L2 penalty in the others.
    """

    kind: Literal["adam", "adamw", "adadelta", "sgd"] = "adam"
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    rho: Share = 0.95
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    momentum: Share = 0.0
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0

    @model_validator(mode="after")
    def each_value_has_an_effect(self) -> Self:
        adams = ("adam", "adamw")
        owners = {"betas": adams, "rho": ("adadelta",), "epsilon": (*adams, "adadelta"), "momentum": ("sgd",)}
        self.refuse_idle("optimizer", self.kind, owners)
        return self


def make_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    match config.kind:
        case "sgd":
            return torch.optim.SGD(
                parameters, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
            )
        case "adadelta":
            return torch.optim.Adadelta(
                parameters,
                config.learning_rate,
                config.rho,
                config.epsilon,
                weight_decay=config.weight_decay,
            )
        case "adam" | "adamw":
            kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
            return kind(
                parameters,
                config.learning_rate,
                config.betas,
                config.epsilon,
                weight_decay=config.weight_decay,
                fused=True,  # one pass over the weights, on CPUs and GPUs
            )
