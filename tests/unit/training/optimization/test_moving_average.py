import pytest
import torch
from torch import nn

from attendant.training.optimization import MovingAverage


def test_averages_with_a_memory_that_grows_to_its_limit() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(8.0)
    average = MovingAverage(model, 0.5)
    expected = 8.0
    for num_updates in range(1, 20):
        with torch.no_grad():
            model.weight.fill_(float(num_updates))
        average.update(model, num_updates)
        decay = min(0.5, (1 + num_updates) / (10 + num_updates))
        expected = decay * expected + (1 - decay) * num_updates
        assert average.model.weight.item() == pytest.approx(expected)
    # The trained weights are not touched, and nothing is learned through the average.
    assert model.weight.item() == 19.0
    assert not average.model.weight.requires_grad and model.weight.requires_grad
