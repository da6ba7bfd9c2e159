import pytest
import torch

from attendant.training.model import ModelConfig
from attendant.training.model.attention import MAX_FERTILITY, Attention


def build(**attention: object) -> Attention:
    torch.manual_seed(0)
    module = Attention(ModelConfig(hidden_size=4, encoder={"hidden_size": 2}, attention=attention))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])


@pytest.mark.parametrize("value_size", [None, 3])
def test_contexts_are_weighted_means_of_valid_values(value_size: int | None) -> None:
    attention = build(score="dot", value_size=value_size)
    outputs, hidden = torch.randn(2, 4, 4), torch.randn(2, 3, 4)
    source = attention.source_tensors(outputs, MASK)
    contexts, weights, _ = attention(attention.query(hidden), source)
    values = outputs if value_size is None else outputs @ attention.project_values.weight.T
    for b in range(2):
        valid = int(MASK[b].sum())
        expected = (hidden[b] @ outputs[b, :valid].T).softmax(-1)
        torch.testing.assert_close(weights[b, :, :valid], expected)
        assert not weights[b, :, valid:].any()
        torch.testing.assert_close(contexts[b], expected @ values[b, :valid])


def test_coverage_accumulates_over_fertility() -> None:
    attention = build(score="additive", coverage=True)
    source = attention.source_tensors(torch.randn(2, 4, 4), MASK)
    assert ((source["fertility"] > 0) & (source["fertility"] < MAX_FERTILITY)).all()
    query, before = attention.query(torch.randn(2, 1, 4)), torch.rand(2, 1, 4) * MASK.unsqueeze(1)
    _, weights, after = attention(query, source, before)
    torch.testing.assert_close(after, before + weights / source["fertility"].unsqueeze(1))
    assert not after[~MASK.unsqueeze(1)].any()
    # What has been covered changes the score: v . tanh(W s + U h + b + V c).
    inner = query.unsqueeze(2) + source["keys"].unsqueeze(1)
    scores = torch.tanh(inner + before.unsqueeze(-1) @ attention.coverage.project.weight.T) @ attention.score.weight
    torch.testing.assert_close(weights[0, 0, :3], scores[0, 0, :3].softmax(-1))
