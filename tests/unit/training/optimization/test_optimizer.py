"""Optimizers at steps worked out by hand."""

import math

import pytest
import torch
from torch import nn

from attendant.training.optimization import OptimizerConfig, make_optimizer


def test_adadelta_takes_the_steps_of_its_paper() -> None:
    """Zeiler 2012, algorithm 1, with rho = 0.95 and epsilon = 1e-6."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = make_optimizer(OptimizerConfig(kind="adadelta", learning_rate=1.0, epsilon=1e-6), [weight])
    wanted, squares, updates = 1.0, 0.0, 0.0
    for gradient in (0.5, -2.0, 1.0):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        squares = 0.95 * squares + 0.05 * gradient**2
        update = -math.sqrt(updates + 1e-6) / math.sqrt(squares + 1e-6) * gradient
        updates = 0.95 * updates + 0.05 * update**2
        wanted += update
        assert weight.item() == pytest.approx(wanted, abs=1e-6)


def test_a_value_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.rho = 0\.9 means nothing to .*: leave it out, or take adadelta"):
        OptimizerConfig(kind="adam", rho=0.9)


def test_the_table_of_an_earlier_run_is_read() -> None:
    """A run directory keeps every field resolved, those that mean nothing to its kind included."""
    config = OptimizerConfig(kind="sgd", learning_rate=0.1, betas=(0.9, 0.999), epsilon=1e-8, momentum=0.9)
    assert config.momentum == 0.9
