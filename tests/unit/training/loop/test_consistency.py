"""R-Drop is the paper's loss halved: against a plain computation, with its gradients, and nothing without dropout."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.data.batches import Batch
from attendant.training.kernels import output_loss as module
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.kernels.output_loss import consistent_output_loss
from attendant.training.loop.consistency import symmetric_divergence, twice
from attendant.training.loop.objective import Objective
from attendant.training.loop.processes import Processes
from attendant.training.loop.update import Updater
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.output import IMPOSSIBLE
from attendant.training.optimization.optimizer import OptimizerConfig, make_optimizer

N, H, V = 13, 5, 11
ALPHA = 3.0


@pytest.fixture(params=[True, False], ids=["in-parts", "at-once"])
def _some_rows_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        # Odd numbers: neighbors stay together all the same.
        monkeypatch.setattr(module, "MIN_ROWS", 7)
        monkeypatch.setattr(module, "MAX_BYTES", 7 * V * torch.float32.itemsize)
        monkeypatch.setattr(module, "MAX_CACHED_LOGITS", 3 * V)


def random_inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2 * N, H), (V, H), (V,)
    inputs, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    bias[[PAD_ID, BOS_ID]] += IMPOSSIBLE
    target_ids = torch.randint(3, V, (N,), generator=generator).repeat_interleave(2)
    return inputs.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target_ids


def by_the_paper(inputs: Tensor, weight: Tensor, bias: Tensor, target_ids: Tensor, smoothing: float) -> Tensor:
    """Equation 4, position by position, on what can be generated."""
    possible = [index for index in range(V) if index not in (PAD_ID, BOS_ID)]
    total = inputs.new_zeros(())
    for place in range(0, len(inputs), 2):
        p, q = (torch.log_softmax(weight[possible] @ inputs[place + side] + bias[possible], 0) for side in (0, 1))
        true = possible.index(int(target_ids[place]))
        for log_probs in (p, q):
            total = total - (1 - smoothing) * log_probs[true] - smoothing * log_probs.mean()
        kl = [F.kl_div(other, own, reduction="sum", log_target=True) for own, other in ((p, q), (q, p))]
        total = total + ALPHA / 2 * (kl[0] + kl[1])
    return total


@pytest.mark.usefixtures("_some_rows_at_a_time")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
def test_value_and_gradients_are_the_papers(dtype: torch.dtype, tolerance: float, smoothing: float) -> None:
    exact, layer = random_inputs(torch.float64), random_inputs(dtype)
    expected = by_the_paper(*exact, smoothing)
    (expected / 7).backward()
    total, cross_entropy = consistent_output_loss(*layer, label_smoothing=smoothing, r_drop=ALPHA)
    (total / 7).backward()
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(total, expected, **close)
    logits = F.linear(*exact[:3])
    torch.testing.assert_close(
        cross_entropy, smoothed_cross_entropy(logits, exact[3], label_smoothing=smoothing), **close
    )
    assert not cross_entropy.requires_grad
    for one, other in zip(layer[:3], exact[:3], strict=True):
        torch.testing.assert_close(one.grad, other.grad, **close)


def test_the_gradient_is_that_of_finite_differences() -> None:
    *layer, target_ids = random_inputs(torch.float64)

    def total(step: float) -> Tensor:
        moved = [tensor.detach() + step * direction for tensor, direction in zip(layer, directions, strict=True)]
        return consistent_output_loss(*moved, target_ids, label_smoothing=0.1, r_drop=ALPHA)[0]

    directions = [torch.ones_like(tensor).cumsum(-1).cos() for tensor in layer]
    consistent_output_loss(*layer, target_ids, label_smoothing=0.1, r_drop=ALPHA)[0].backward()
    slope = sum((tensor.grad * direction).sum() for tensor, direction in zip(layer, directions, strict=True))
    assert float(slope) == pytest.approx(float(total(1e-5) - total(-1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_rounds_the_products_only(dtype: torch.dtype) -> None:
    exact, rounded = random_inputs(torch.float32), random_inputs(torch.float32)
    expected = consistent_output_loss(*exact, label_smoothing=0.1, r_drop=ALPHA)
    with torch.autocast("cpu", dtype):
        found = consistent_output_loss(*rounded, label_smoothing=0.1, r_drop=ALPHA)
    for totals in (expected, found):
        totals[0].backward()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32 and float(one.detach()) == pytest.approx(float(other.detach()), rel=0.02)
    for one, other in zip(rounded[:3], exact[:3], strict=True):
        assert torch.cosine_similarity(one.grad.flatten(), other.grad.flatten(), dim=0) > 0.999


def small_batch() -> Batch:
    torch.manual_seed(0)
    source_ids, previous_ids, next_ids = (torch.randint(3, V, (4, 6)) for _ in range(3))
    positions = torch.arange(24)[::2]
    return Batch(source_ids, torch.tensor([6, 3, 1, 5]), previous_ids, positions, next_ids.flatten()[positions])


def test_twice_makes_neighbors_of_equal_positions() -> None:
    batch = small_batch()
    doubled = twice(batch)
    fed = doubled.previous_ids.flatten()[doubled.positions].unflatten(0, (-1, 2))
    assert torch.equal(fed[:, 0], batch.previous_ids.flatten()[batch.positions]) and torch.equal(fed[:, 0], fed[:, 1])
    assert torch.equal(doubled.target_ids[::2], batch.target_ids)
    assert torch.equal(doubled.target_ids[1::2], batch.target_ids)
    rows = (doubled.positions // 6).unflatten(0, (-1, 2))
    assert torch.equal(rows[:, 0] + 4, rows[:, 1])
    assert torch.equal(doubled.source_ids[rows[:, 0]], doubled.source_ids[rows[:, 1]])
    assert torch.equal(doubled.source_lengths[rows[:, 0]], doubled.source_lengths[rows[:, 1]])


def objective(dropout: float, r_drop: float) -> Objective:
    torch.manual_seed(1)
    sizes = {"embedding_size": H, "hidden_size": 8, "dropout": dropout, "encoder": {"hidden_size": 4}}
    return Objective(Seq2Seq(ModelConfig.model_validate(sizes), V, V).double(), label_smoothing=0.1, r_drop=r_drop)


def test_without_dropout_it_is_the_cross_entropy() -> None:
    plain, consistent = objective(0.0, 0.0), objective(0.0, ALPHA)
    batch = small_batch()
    (expected, same), (total, cross_entropy) = plain(batch), consistent(batch)
    assert same == expected
    for found in (total, cross_entropy):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, check_dtype=False)
    gradients = (
        torch.autograd.grad(each, list(of.parameters())) for each, of in ((expected, plain), (total, consistent))
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    empty, _ = consistent(batch.without_targets())
    assert empty == 0


def test_with_dropout_the_passes_differ_and_the_divergence_is_paid_for() -> None:
    batch = small_batch()
    trained = objective(0.5, ALPHA)
    torch.manual_seed(2)
    total, cross_entropy = trained(batch)
    torch.manual_seed(2)
    doubled = twice(batch)
    logits = trained.model(doubled.source_ids, doubled.source_lengths, doubled.previous_ids, doubled.positions)
    divergence = symmetric_divergence(torch.log_softmax(logits, 1))
    assert divergence > 0.01
    torch.testing.assert_close(total - cross_entropy, ALPHA / 4 * divergence)


class TwoMinds(nn.Module):
    """Predicts from the symbol before, in the second half of its rows a little otherwise: dropout that is always the
    same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(V, H)
        self.output = nn.Linear(H, V)

    def joined(self, source_ids: Tensor, source_lengths: Tensor, previous_ids: Tensor, positions: Tensor) -> Tensor:
        del source_ids, source_lengths
        embedded = self.embedding(previous_ids)
        first, second = embedded.chunk(2)
        return torch.cat((first, -second)).flatten(0, 1)[positions]

    def output_layer(self) -> tuple[Tensor, Tensor]:
        return self.output.weight, self.output.bias


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3)])
def test_accumulated_batches_are_one_batch(sizes: tuple[int, ...]) -> None:
    whole = small_batch()
    ends = list(itertools.accumulate(sizes))
    parts = [rows_of(whole, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    found = []
    for batches in ([whole], parts):
        trained = TwoMinds()
        updater = Updater(
            trained,
            make_optimizer(OptimizerConfig(kind="sgd", learning_rate=0.1), trained.parameters()),
            label_smoothing=0.1,
            r_drop=ALPHA,
            clip_norm=0.0,
            precision="fp32",
            device=torch.device("cpu"),
            processes=Processes(),
        )
        gradient = updater.gradient(batches, whole.num_target_tokens)
        found.append((gradient.loss, gradient.norm))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    doubled = twice(whole)
    logits = F.linear(
        trained.joined(doubled.source_ids, doubled.source_lengths, doubled.previous_ids, doubled.positions),
        *trained.output_layer(),
    )
    # What is journaled is comparable with other runs' losses: no divergence in it, and of one pass.
    mean = smoothed_cross_entropy(logits, doubled.target_ids, label_smoothing=0.1).item() / len(doubled.target_ids)
    assert found[0][0] == pytest.approx(mean, rel=1e-5)


def rows_of(batch: Batch, begin: int, end: int) -> Batch:
    width = batch.previous_ids.shape[1]
    inside = (batch.positions >= begin * width) & (batch.positions < end * width)
    return Batch(
        batch.source_ids[begin:end],
        batch.source_lengths[begin:end],
        batch.previous_ids[begin:end],
        batch.positions[inside] - begin * width,
        batch.target_ids[inside],
    )
