"""Tests of the training loss: `output_loss` returns the loss and gradients of a separate output layer and loss."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.data.batches import Batch
from attendant.training.kernels import loss as module
from attendant.training.kernels.loss import Copies, SoftTargets, mixed, output_loss, smoothed_cross_entropy
from attendant.training.loop.update import training_loss
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.attention import NOTHING
from attendant.training.model.readout import IMPOSSIBLE
from attendant.training.model.reference import reference_loss

POSSIBLE = [symbol for symbol in range(7) if symbol not in (PAD_ID, BOS_ID)]


def random_logits() -> torch.Tensor:
    torch.manual_seed(0)
    logits = torch.randn(4, 7)
    logits[:, [PAD_ID, BOS_ID]] += IMPOSSIBLE
    return logits


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
def test_the_smoothing_goes_to_possible_symbols_only(label_smoothing: float) -> None:
    logits, targets = random_logits(), torch.tensor([3, 1, 6, 4])
    among_possible = torch.tensor([POSSIBLE.index(target) for target in targets])
    expected = F.cross_entropy(logits[:, POSSIBLE], among_possible, label_smoothing=label_smoothing, reduction="sum")
    loss = smoothed_cross_entropy(logits, targets, label_smoothing=label_smoothing)
    torch.testing.assert_close(loss, expected)


def test_low_precision_logits_are_summed_in_full() -> None:
    logits, targets = random_logits(), torch.tensor([3, 1, 6, 4])
    loss = smoothed_cross_entropy(logits.bfloat16(), targets, label_smoothing=0.1)
    assert loss.dtype == torch.float32


N, H, V, S = 23, 5, 11, 6


@pytest.fixture(params=[True, False], ids=["in-parts", "at-once"], autouse=True)
def _some_rows_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(module, "MIN_ROWS", 4)
        monkeypatch.setattr(module, "MAX_BYTES", 4 * V * torch.float32.itemsize)
        monkeypatch.setattr(module, "MAX_CACHED_LOGITS", 3 * V)


def random_inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((N, H), (V, H), (V,)))
    bias[[PAD_ID, BOS_ID]] += IMPOSSIBLE
    target_ids = torch.randint(3, V, (N,), generator=generator)
    return inputs.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target_ids


def together(inputs: Tensor, weight: Tensor, bias: Tensor, target_ids: Tensor, label_smoothing: float) -> Tensor:
    return output_loss(inputs, weight, bias, target_ids, label_smoothing=label_smoothing)[0]


def apart(inputs: Tensor, weight: Tensor, bias: Tensor, target_ids: Tensor, label_smoothing: float) -> Tensor:
    return smoothed_cross_entropy(F.linear(inputs, weight, bias), target_ids, label_smoothing=label_smoothing)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
def test_the_joint_loss_equals_a_separate_layer_and_loss(
    dtype: torch.dtype, tolerance: float, label_smoothing: float
) -> None:
    result = []
    for loss in (together, apart):
        *layer, target_ids = random_inputs(dtype)
        total = loss(*layer, target_ids, label_smoothing)
        (total / 7).backward()
        assert all(tensor.grad is not None and tensor.grad.dtype == dtype for tensor in layer)
        result.append((total.detach(), *(tensor.grad for tensor in layer)))
    for item, other in zip(*result, strict=True):
        torch.testing.assert_close(item, other, rtol=tolerance, atol=tolerance)
    of_weight, of_bias = result[0][2:]
    # Symbols that can't be generated have no gradient.
    assert not of_weight[[PAD_ID, BOS_ID]].any() and not of_bias[[PAD_ID, BOS_ID]].any()


def random_soft_targets(weight: float) -> SoftTargets:
    """Returns a teacher's probabilities of four symbols per target, which sometimes include the true symbol."""
    generator = torch.Generator().manual_seed(2)
    symbols = torch.stack([torch.randperm(V - 3, generator=generator)[:4] + 3 for _ in range(N)])
    return SoftTargets(symbols, weight * torch.softmax(torch.randn(N, 4, generator=generator).double(), 1))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_teachers_have_their_weight_in_the_loss(weight: float, label_smoothing: float) -> None:
    """Compares with (1 - w) of the loss without teachers plus w of the cross-entropy with their distribution."""
    soft_targets, result = random_soft_targets(weight), []
    for how in ("together", "apart", "plainly"):
        *layer, target_ids = random_inputs(torch.float64)
        if how == "together":
            total, true_total = output_loss(
                *layer, target_ids, label_smoothing=label_smoothing, soft_targets=soft_targets
            )
            expected = F.cross_entropy(F.linear(*layer), target_ids, reduction="sum")
            torch.testing.assert_close(true_total, expected.detach())
            assert not true_total.requires_grad
        else:
            logits = F.linear(*layer)
            total = smoothed_cross_entropy(
                logits, target_ids, label_smoothing=label_smoothing, soft_targets=soft_targets
            )
            if how == "plainly":
                hard = smoothed_cross_entropy(logits, target_ids, label_smoothing=label_smoothing)
                log_probs = torch.log_softmax(logits, 1).gather(1, soft_targets.symbols)
                total = (1 - weight) * hard - (soft_targets.probabilities * log_probs).sum()
        (total / 7).backward()
        result.append((total.detach(), *(tensor.grad for tensor in layer)))
    for item, other in ((result[0], result[2]), (result[1], result[2])):
        for each, same in zip(item, other, strict=True):
            torch.testing.assert_close(each, same, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_joint_loss_mixes_copies_in(label_smoothing: float) -> None:
    """Uses sources with repeated symbols and padding."""
    generator = torch.Generator().manual_seed(1)
    symbols = torch.randint(3, 7, (N, S), generator=generator)
    symbols[:, -1] = PAD_ID
    attention = torch.softmax(torch.randn(N, S, generator=generator).double(), 1)
    result = []
    for is_together in (True, False):
        *layer, target_ids = random_inputs(torch.float64)
        weights, gates = attention.clone().requires_grad_(), torch.linspace(-3, 3, N).double().requires_grad_()
        same = (symbols.unsqueeze(1) == symbols.unsqueeze(2)).double()
        shares = torch.einsum("ns,nst->nt", weights, same)
        scores = torch.where(symbols == PAD_ID, NOTHING, shares.log() - gates.unsqueeze(1))
        copies = Copies(symbols, scores)
        if is_together:
            total, true_total = output_loss(*layer, target_ids, label_smoothing=label_smoothing, copies=copies)
            own = smoothed_cross_entropy(mixed(F.linear(*layer), copies), target_ids, label_smoothing=0.0)
            torch.testing.assert_close(true_total, own.detach())
        else:
            probabilities = torch.sigmoid(gates).unsqueeze(1) * torch.softmax(F.linear(*layer), 1)
            copied = (weights * (symbols != PAD_ID)).mul(1 - torch.sigmoid(gates).unsqueeze(1))
            plain = torch.log(probabilities.scatter_add(1, symbols, copied) + 1e-300)
            total = smoothed_cross_entropy(plain, target_ids, label_smoothing=label_smoothing)
            unmixed = mixed(F.linear(*layer), copies)
            torch.testing.assert_close(torch.softmax(unmixed, 1)[:, 3:], _normalized(plain.exp())[:, 3:])
        total.backward()
        result.append((total.detach(), *(tensor.grad for tensor in (*layer, weights, gates))))
    for item, other in zip(*result, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-8, atol=1e-8)


def _normalized(probabilities: Tensor) -> Tensor:
    return probabilities / probabilities.sum(1, keepdim=True)


@pytest.mark.parametrize("inputs_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_rounds_the_products_only(inputs_dtype: torch.dtype) -> None:
    exact, rounded = random_inputs(torch.float32), random_inputs(torch.float32)
    expected = apart(*exact, 0.1)
    expected.backward()
    with torch.autocast("cpu", torch.bfloat16):
        total = together(rounded[0].to(inputs_dtype), *rounded[1:], 0.1)
    total.backward()
    assert total.dtype == torch.float32 and total != expected
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=0.01)
    for item, other in zip(exact[:3], rounded[:3], strict=True):
        assert other.grad.dtype == torch.float32
        assert torch.cosine_similarity(item.grad.flatten(), other.grad.flatten(), dim=0) > 0.999


def test_float16_is_left_to_autograd_which_scales_first() -> None:
    *layer, target_ids = random_inputs(torch.float32)
    with torch.autocast("cpu", torch.float16):
        total = together(*layer, target_ids, 0.1)
    expected = apart(*random_inputs(torch.float32), 0.1)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=0.01)
    (total * 2.0**40).backward()
    assert not torch.isfinite(layer[1].grad).all()


def test_the_loss_without_targets_is_zero() -> None:
    inputs, weight, bias, target_ids = random_inputs(torch.float32)
    total = together(inputs[:0], weight, bias, target_ids[:0], 0.1)
    total.backward()
    assert total == 0 and not inputs.grad.any() and not weight.grad.any() and not bias.grad.any()


def test_a_second_backward_pass_is_refused() -> None:
    total = together(*random_inputs(torch.float32), 0.1)
    total.backward(retain_graph=True)
    with pytest.raises(ValueError):
        total.backward()


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 8},
        {"hidden_size": H, "decoder": {"tied_embeddings": True}},
        {"hidden_size": 8, "shared_embeddings": True, "decoder": {"copying": True}},
    ],
    ids=["own", "tied", "copying"],
)
def test_a_model_has_the_same_loss_and_gradients(options: dict[str, object]) -> None:
    sizes = {"embedding_size": H, "dropout": 0.0, "encoder": {"hidden_size": 4}}
    torch.manual_seed(0)
    model = Seq2Seq(ModelConfig.model_validate(sizes | options), V, V).double()
    source_ids, previous_ids, next_ids = (torch.randint(3, V, (4, 6)) for _ in range(3))
    positions = torch.arange(24)[::2]
    batch = Batch(source_ids, torch.tensor([6, 3, 1, 5]), previous_ids, positions, next_ids.flatten()[positions])
    wanted = next_ids.clone()
    wanted.view(-1)[1::2] = PAD_ID
    inputs = (source_ids, batch.source_lengths, previous_ids)
    expected = reference_loss(model, *inputs, wanted, label_smoothing=0.1)
    logits = model(*inputs, positions)
    together = smoothed_cross_entropy(logits, batch.target_ids, label_smoothing=0.1)
    torch.testing.assert_close(together, expected, rtol=1e-10, atol=1e-10)
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    total, _ = training_loss(model, batch, label_smoothing=0.1)
    gradients = torch.autograd.grad(total, list(model.parameters()))
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)
    for (name, _), item, other in zip(model.named_parameters(), gradients, expected_gradients, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-10, atol=1e-10, msg=name)
