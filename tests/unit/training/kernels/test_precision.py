"""Which precision a recipe gets, by the hardware; what can't be is refused with the way out."""

from typing import Any

import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.kernels.hardware import (
    choose_precision,
    computes_bfloat16,
    make_autocast,
    product_dtype,
    without_autocast,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Any:
    def pretend(**capabilities: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation: capabilities.get("cuda", including_emulation)
        )

    return pretend


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16"])
def test_auto_is_bfloat16_where_the_hardware_has_it(hardware: Any, capability: str) -> None:
    hardware(**{capability: True}, cuda=True)
    assert choose_precision("auto", CPU) == choose_precision("bf16", CPU) == "bf16"
    assert choose_precision("auto", CUDA) == "bf16"


def test_auto_falls_back_where_it_has_not(hardware: Any) -> None:
    hardware(avx512_f=True, cuda=False)
    assert choose_precision("auto", CPU) == "fp32"
    assert choose_precision("auto", CUDA) == "fp16"
    for device in (CPU, CUDA):
        assert not computes_bfloat16(device)
        with pytest.raises(UserError, match=r'training\.precision = "bf16", and this .* set "auto"'):
            choose_precision("bf16", device)


def test_float16_is_for_gpus() -> None:
    assert choose_precision("fp16", CUDA) == "fp16"
    with pytest.raises(UserError, match=r'training\.precision = "fp16" is for CUDA'):
        choose_precision("fp16", CPU)


def test_full_precision_is_left_alone() -> None:
    assert choose_precision("fp32", CPU) == "fp32"
    product = torch.ones(2, 2)
    with make_autocast("fp32", CPU):
        assert (product @ product).dtype == torch.float32
    with make_autocast("bf16", CPU):
        assert (product @ product).dtype == torch.bfloat16


def test_products_are_in_autocasts_type() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    assert product_dtype(like) == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert product_dtype(like) == torch.bfloat16
        with pytest.raises(KeyError), without_autocast(CPU):
            assert product_dtype(like) == torch.float64
            raise KeyError
        assert product_dtype(like) == torch.bfloat16
    assert product_dtype(like) == torch.float64
