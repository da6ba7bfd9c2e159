"""Copying, against the papers' own sums; coverage loss, against See et al.'s."""

import numpy as np
import pytest
import torch

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.data.batches import Batch
from attendant.training.kernels.loss import mixed, repeated_attention
from attendant.training.loop.update import Objective
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.attention import Copying
from attendant.training.model.reference import reference_loss

CONFIG = ModelConfig.model_validate(
    {"embedding_size": 3, "hidden_size": 4, "dropout": 0.0, "shared_embeddings": True, "decoder": {"copying": True}}
)
V = 9


@pytest.fixture(name="model")
def _model() -> Seq2Seq:
    torch.manual_seed(3)
    return Seq2Seq(CONFIG, V, V).double()


def test_the_mixture_is_that_of_the_paper() -> None:
    """P(w) = g P_vocab(w) + (1 - g) sum of attention on w (See et al. 2017, eq. 8 and 9), in plain sums."""
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
    found = torch.softmax(mixed(tensor(logits), copies), -1)
    np.testing.assert_allclose(found.detach().numpy()[0], expected, rtol=1e-12, atol=1e-300)


def test_nothing_can_be_copied_that_is_never_generated(model: Seq2Seq) -> None:
    source = torch.tensor([[4, BOS_ID, 5, PAD_ID]])
    probabilities = model(source, torch.tensor([3]), torch.tensor([[2, 4]])).softmax(-1)
    assert not probabilities[..., [PAD_ID, BOS_ID]].any()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(1, 2).double())


def test_training_and_the_plain_reference_agree(model: Seq2Seq) -> None:
    source_ids = torch.tensor([[4, 5, 4, 3], [6, 3, PAD_ID, PAD_ID]])
    lengths, previous = torch.tensor([4, 2]), torch.tensor([[2, 4, 5], [2, 6, PAD_ID]])
    targets = torch.tensor([[4, 5, 3], [6, 3, PAD_ID]])
    positions = torch.tensor([0, 1, 2, 3, 4])
    batch = Batch(source_ids, lengths, previous, positions, targets.flatten()[positions])
    expected = reference_loss(model, source_ids, lengths, previous, targets, label_smoothing=0.1)
    total, _ = Objective(model, label_smoothing=0.1)(batch)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)
    found, wanted = (torch.autograd.grad(one, list(model.parameters())) for one in (total, expected))
    for (name, _), one, other in zip(model.named_parameters(), found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=name)


def test_the_coverage_loss_is_that_of_the_paper() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(4), (2, 5))
    positions = [0, 1, 2, 3, 4, 5, 6]  # the second pair has two target symbols
    expected = 0.0
    for position in positions:
        pair, step = divmod(position, 5)
        for place in range(4):
            covered = sum(weights[pair, before, place] for before in range(step))
            expected += min(weights[pair, step, place], covered)
    found = repeated_attention(torch.from_numpy(weights), torch.tensor(positions))
    assert found.item() == pytest.approx(expected, rel=1e-12)


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
def test_the_coverage_loss_is_added_whatever_the_order_of_the_decoder(tables: dict[str, object]) -> None:
    torch.manual_seed(3)
    sizes = {"embedding_size": 3, "hidden_size": 4, "dropout": 0.0}
    model = Seq2Seq(ModelConfig.model_validate(sizes | tables), V, V).double()
    source_ids, lengths = torch.tensor([[4, 5, 6, 3]]), torch.tensor([4])
    batch = Batch(source_ids, lengths, torch.tensor([[2, 4, 5]]), torch.arange(3), torch.tensor([4, 5, 3]))
    attention = model.forced(source_ids, lengths, batch.previous_ids, keep_attention=True).weights
    assert attention is not None
    plain, weighted = (
        Objective(model, label_smoothing=0.0, coverage_loss=weight)(batch)[0].detach() for weight in (0.0, 2.0)
    )
    torch.testing.assert_close(weighted - plain, 2 * repeated_attention(attention, batch.positions).detach())
