"""Each score against its published formula, one query and one position at a time."""

import math

import pytest
import torch
from torch import Tensor

from attendant.training.model import ModelConfig
from attendant.training.model.attention import SCORES, Score
from attendant.training.model.config import ScoreKind

H, D = 4, 4
CONFIGS: dict[str, dict[str, object]] = {
    "dot": {"score": "dot"},
    "dot, projected": {"score": "dot", "key_size": 3},
    "scaled_dot": {"score": "scaled_dot"},
    "scaled_dot, projected": {"score": "scaled_dot", "key_size": 3},
    "general": {"score": "general"},
    "additive": {"score": "additive", "key_size": 3},
    "concat": {"score": "concat"},
}


def build(attention: dict[str, object]) -> Score:
    torch.manual_seed(0)
    config = ModelConfig(hidden_size=H, encoder={"hidden_size": D // 2}, attention=attention)
    score = SCORES[config.attention.score](config)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    return score


def formula(name: str, score: Score, s: Tensor, h: Tensor) -> Tensor:
    """score(s, h) of one state [H] and one encoder state [D], as the papers write it."""
    w_k = score.project_keys.weight if score.project_keys is not None else torch.eye(D)
    w_q = score.project_query.weight if score.project_query is not None else torch.eye(H)
    match name:
        case "dot" | "dot, projected" | "general":
            return (w_q @ s).dot(w_k @ h)
        case "scaled_dot":
            return s.dot(h) / math.sqrt(4)
        case "scaled_dot, projected":
            return (w_q @ s).dot(w_k @ h) / math.sqrt(3)
        case "additive":
            return score.weight.dot(torch.tanh(w_q @ s + w_k @ h + score.project_keys.bias))
        case "concat":
            return score.weight.dot(torch.tanh(torch.cat([w_q, w_k], 1) @ torch.cat([s, h])))
    raise AssertionError(name)


def test_every_score_is_tried() -> None:
    assert {config["score"] for config in CONFIGS.values()} == set(SCORES) == set(ScoreKind.__args__)


@pytest.mark.parametrize("name", CONFIGS)
def test_as_published(name: str) -> None:
    score = build(CONFIGS[name])
    hidden, memory = torch.randn(2, 3, H), torch.randn(2, 5, D)
    scores = score(score.query(hidden), score.keys(memory))
    assert scores.shape == (2, 3, 5)
    for b in range(2):
        for q in range(3):
            for s in range(5):
                torch.testing.assert_close(scores[b, q, s], formula(name, score, hidden[b, q], memory[b, s]))
