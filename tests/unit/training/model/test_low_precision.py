"""Mixed precision: bfloat16 where torch's autocast says so, gradients in full and pointing where they should."""

import os
import subprocess
import sys

import pytest
import torch

from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.model import ModelConfig, Seq2Seq
from tests.architectures import architectures
from tests.paths import ROOT

# Every eleventh: 11 shares no factor with the choices' numbers, so that all of them come up.
ARCHITECTURES = dict(list(architectures().items())[::11])

AS_ON_AVX2 = """
from attendant.training.kernels.hardware import _onednn_has_bfloat16_lstm
from tests.unit.training.model.test_low_precision import ARCHITECTURES, gradients_in_bfloat16

assert not _onednn_has_bfloat16_lstm(), "oneDNN ignores ONEDNN_MAX_CPU_ISA: this would show nothing"
lstms = [config for config in ARCHITECTURES.values() if config.cell == "lstm"]
for config in lstms:
    gradients_in_bfloat16(config)
print(len(lstms))
"""


def gradient(model: Seq2Seq, *, is_low: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    source_ids, previous_ids, next_ids = (torch.randint(3, 11, (4, 6), generator=generator) for _ in range(3))
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        logits = model(source_ids, torch.tensor([6, 3, 1, 5]), previous_ids, torch.arange(24))
        loss = smoothed_cross_entropy(logits, next_ids.flatten(), label_smoothing=0.1)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_gradients_in_bfloat16(config: ModelConfig) -> None:
    gradients_in_bfloat16(config)


def gradients_in_bfloat16(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(config, 11, 11).eval()
    full, low = gradient(model, is_low=False), gradient(model, is_low=True)
    assert low.dtype == torch.float32
    assert torch.cosine_similarity(full, low, dim=0) > 0.97


def test_gradients_in_bfloat16_without_avx512() -> None:
    """oneDNN has bfloat16 LSTMs for AVX-512 only; what it may use is limited in a process of its own."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", AS_ON_AVX2], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 5
