"""Tests of attention scores, copying and the coverage loss against the formulas of their papers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.data.batches import Batch
from attendant.training.kernels.loss import mixed, repeated_attention
from attendant.training.loop.update import training_loss
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.attention import MAX_FERTILITY, SCORES, Attention, Copying, Score
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
    """Returns score(s, h) of one state [H] and one encoder state [D], as in the papers."""
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


def test_every_score_is_tested() -> None:
    assert {config["score"] for config in CONFIGS.values()} == set(SCORES) == set(ScoreKind.__args__)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_equal_the_published_formulas(name: str) -> None:
    score = build(CONFIGS[name])
    hidden, memory = torch.randn(2, 3, H), torch.randn(2, 5, D)
    scores = score(score.query(hidden), score.keys(memory))
    assert scores.shape == (2, 3, 5)
    for b in range(2):
        for q in range(3):
            for s in range(5):
                torch.testing.assert_close(scores[b, q, s], formula(name, score, hidden[b, q], memory[b, s]))


def build_attention(**attention: object) -> Attention:
    torch.manual_seed(0)
    module = Attention(ModelConfig(hidden_size=4, encoder={"hidden_size": 2}, attention=attention))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])


@pytest.mark.parametrize("value_size", [None, 3])
def test_contexts_are_weighted_means_of_valid_values(value_size: int | None) -> None:
    attention = build_attention(score="dot", value_size=value_size)
    outputs, hidden = torch.randn(2, 4, 4), torch.randn(2, 3, 4)
    source = attention.source_tensors(outputs, MASK)
    contexts, weights, _ = attention(attention.score.query(hidden), source)
    values = outputs if value_size is None else outputs @ attention.project_values.weight.T
    for b in range(2):
        valid = int(MASK[b].sum())
        expected = (hidden[b] @ outputs[b, :valid].T).softmax(-1)
        torch.testing.assert_close(weights[b, :, :valid], expected)
        assert not weights[b, :, valid:].any()
        torch.testing.assert_close(contexts[b], expected @ values[b, :valid])


def test_coverage_accumulates_over_fertility() -> None:
    attention = build_attention(score="additive", coverage=True)
    source = attention.source_tensors(torch.randn(2, 4, 4), MASK)
    assert ((source["fertility"] > 0) & (source["fertility"] < MAX_FERTILITY)).all()
    query, before = attention.score.query(torch.randn(2, 1, 4)), torch.rand(2, 1, 4) * MASK.unsqueeze(1)
    _, weights, after = attention(query, source, before)
    torch.testing.assert_close(after, before + weights / source["fertility"].unsqueeze(1))
    assert not after[~MASK.unsqueeze(1)].any()
    # The coverage c changes the score: v . tanh(W s + U h + b + V c).
    inner = query.unsqueeze(2) + source["keys"].unsqueeze(1)
    scores = torch.tanh(inner + before.unsqueeze(-1) @ attention.coverage.project.weight.T) @ attention.score.weight
    torch.testing.assert_close(weights[0, 0, :3], scores[0, 0, :3].softmax(-1))


CONFIG = ModelConfig.model_validate(
    {"embedding_size": 3, "hidden_size": 4, "dropout": 0.0, "shared_embeddings": True, "decoder": {"copying": True}}
)
V = 9


@pytest.fixture(name="model")
def _model() -> Seq2Seq:
    torch.manual_seed(3)
    return Seq2Seq(CONFIG, V, V).double()


def test_the_mixture_is_that_of_the_paper() -> None:
    """Compares with P(w) = g P_vocab(w) + (1 - g) sum of attention on w (See et al. 2017, eq. 8 and 9)."""
    generator = np.random.default_rng(0)
    torch.manual_seed(0)
    copying = Copying(CONFIG).double()
    symbols = np.array([4, 6, 4, 5, PAD_ID])
    attention = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    context, hidden, embedded = generator.normal(size=8), generator.normal(size=4), generator.normal(size=3)
    logits = generator.normal(size=V)
    logits[[PAD_ID, BOS_ID]] = -1e9
    weight, bias = copying.gate.weight.detach().numpy()[0], copying.gate.bias.item()
    gate = 1 / (1 + np.exp(-(weight @ np.concatenate([context, hidden, embedded]) + bias)))
    expected = gate * np.exp(logits) / np.exp(logits).sum()
    for symbol, share in zip(symbols, attention, strict=True):
        expected[symbol] += (1 - gate) * share

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).unsqueeze(0)

    shares = copying.shares(tensor(attention).unsqueeze(0), tensor(symbols)).squeeze(0)
    copies = copying.copies(tensor(symbols), shares, tensor(context), tensor(hidden), tensor(embedded))
    result = torch.softmax(mixed(tensor(logits), copies), -1)
    np.testing.assert_allclose(result.detach().numpy()[0], expected, rtol=1e-12, atol=1e-300)


def test_symbols_that_are_never_generated_can_not_be_copied(model: Seq2Seq) -> None:
    source = torch.tensor([[4, BOS_ID, 5, PAD_ID]])
    probabilities = model(source, torch.tensor([3]), torch.tensor([[2, 4]])).softmax(-1)
    assert not probabilities[..., [PAD_ID, BOS_ID]].any()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(1, 2).double())


def test_the_coverage_loss_is_that_of_the_paper() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(4), (2, 5))
    positions = [0, 1, 2, 3, 4, 5, 6]  # the second pair has two target symbols
    expected = 0.0
    for position in positions:
        pair, step = divmod(position, 5)
        for place in range(4):
            covered = sum(weights[pair, before, place] for before in range(step))
            expected += min(weights[pair, step, place], covered)
    result = repeated_attention(torch.from_numpy(weights), torch.tensor(positions))
    assert result.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "tables",
    [
        {"shared_embeddings": True, "decoder": {"copying": True}},
        {},
        {"decoder": {"input_feeding": True}},
        {"attention": {"score": "additive", "query": "previous"}},
        {"attention": {"score": "additive", "coverage": True}},
    ],
    ids=["copying", "plain", "input-feeding", "previous", "coverage"],
)
def test_the_coverage_loss_is_added_in_every_kind_of_decoder(tables: dict[str, object]) -> None:
    torch.manual_seed(3)
    sizes = {"embedding_size": 3, "hidden_size": 4, "dropout": 0.0}
    model = Seq2Seq(ModelConfig.model_validate(sizes | tables), V, V).double()
    source_ids, lengths = torch.tensor([[4, 5, 6, 3]]), torch.tensor([4])
    batch = Batch(source_ids, lengths, torch.tensor([[2, 4, 5]]), torch.arange(3), torch.tensor([4, 5, 3]))
    attention = model.teacher_forcing(source_ids, lengths, batch.previous_ids, keep_attention=True).weights
    assert attention is not None
    plain, weighted = (
        training_loss(model, batch, label_smoothing=0.0, coverage_loss=weight)[0].detach() for weight in (0.0, 2.0)
    )
    torch.testing.assert_close(weighted - plain, 2 * repeated_attention(attention, batch.positions).detach())
