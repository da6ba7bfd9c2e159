import pytest
import torch
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.model.readout import IMPOSSIBLE

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


def test_gradients_too() -> None:
    logits, targets = random_logits().double().requires_grad_(), torch.tensor([3, 1, 6, 4])
    assert torch.autograd.gradcheck(
        lambda possible: smoothed_cross_entropy(
            torch.full((4, 7), IMPOSSIBLE).double().index_copy(1, torch.tensor(POSSIBLE), possible),
            targets,
            label_smoothing=0.1,
        ),
        (logits[:, POSSIBLE].detach().requires_grad_(),),
    )


def test_low_precision_logits_are_summed_in_full() -> None:
    logits, targets = random_logits(), torch.tensor([3, 1, 6, 4])
    loss = smoothed_cross_entropy(logits.bfloat16(), targets, label_smoothing=0.1)
    assert loss.dtype == torch.float32
