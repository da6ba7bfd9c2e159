"""The faster library multiplies where it is as exact, and only as long as it is asked to."""

from collections.abc import Iterator

import pytest
import torch

from attendant.training.kernels import hardware
from attendant.training.kernels.hardware import fast_products, onednn_is_exact, usual_products

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _probed_anew() -> Iterator[None]:
    onednn_is_exact.cache_clear()
    yield
    onednn_is_exact.cache_clear()


def setting() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)


def relative_error() -> float:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(96, 300, generator=generator), torch.randn(300, 200, generator=generator)
    exact = left.double() @ right.double()
    return float((left @ right - exact).norm() / exact.norm())


def test_products_are_of_float32_and_the_setting_is_restored() -> None:
    before = setting()
    with fast_products(CPU):
        assert (setting() == "bf16") == onednn_is_exact()
        assert relative_error() < 1e-6
    assert setting() == before
    with pytest.raises(KeyError), fast_products(CPU):
        raise KeyError
    assert setting() == before


def test_within_them_torch_has_its_own_choice_again() -> None:
    usual = setting()
    with fast_products(CPU):
        fast = setting()
        with usual_products():
            assert setting() == usual
        assert setting() == fast


def test_a_library_that_rounds_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = hardware._errors()
    monkeypatch.setattr(hardware, "_errors", lambda: [4e-3, exact[1]] if setting() == "bf16" else exact)
    assert not onednn_is_exact()
    before = setting()
    with fast_products(CPU):
        assert setting() == before


def test_a_gpu_needs_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_errors", lambda: pytest.fail("probed"))
    before = setting()
    with fast_products(torch.device("cuda")):
        assert setting() == before


def test_the_probe_leaves_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    onednn_is_exact()
    assert torch.equal(torch.get_rng_state(), before)
