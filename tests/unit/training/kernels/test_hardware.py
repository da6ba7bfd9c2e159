"""Tests of the choice of precision by the hardware, of the faster library for products, and of memory.

A model that can't fit is refused before it is built, and a failed allocation is reported in one line. The kernel's
count of page faults shows that freed memory stays with the process.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.kernels import hardware
from attendant.training.kernels.hardware import (
    choose_precision,
    computes_bfloat16,
    fast_products,
    make_autocast,
    onednn_is_exact,
    product_dtype,
    total_memory,
    translate_memory_errors,
    usual_products,
    without_autocast,
)
from attendant.training.loop.experiment import check_memory
from attendant.training.model import ModelConfig

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cpu_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    def pretend(**capabilities: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation: capabilities.get("cuda", including_emulation)
        )

    return pretend


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16"])
def test_auto_is_bfloat16_if_the_hardware_has_it(cpu_with: Any, capability: str) -> None:
    cpu_with(**{capability: True}, cuda=True)
    assert choose_precision("auto", CPU) == choose_precision("bf16", CPU) == "bf16"
    assert choose_precision("auto", CUDA) == "bf16"


def test_auto_falls_back_without_bfloat16_hardware(cpu_with: Any) -> None:
    cpu_with(avx512_f=True, cuda=False)
    assert choose_precision("auto", CPU) == "fp32"
    assert choose_precision("auto", CUDA) == "fp16"
    for device in (CPU, CUDA):
        assert not computes_bfloat16(device)
        with pytest.raises(UserError, match=r'training\.precision = "bf16", and this .* set "auto"'):
            choose_precision("bf16", device)


def test_float16_is_refused_without_a_gpu() -> None:
    assert choose_precision("fp16", CUDA) == "fp16"
    with pytest.raises(UserError, match=r'training\.precision = "fp16" is for CUDA'):
        choose_precision("fp16", CPU)


def test_fp32_disables_autocast_of_products() -> None:
    assert choose_precision("fp32", CPU) == "fp32"
    product = torch.ones(2, 2)
    with make_autocast("fp32", CPU):
        assert (product @ product).dtype == torch.float32
    with make_autocast("bf16", CPU):
        assert (product @ product).dtype == torch.bfloat16


def test_products_have_the_type_of_autocast() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    assert product_dtype(like) == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert product_dtype(like) == torch.bfloat16
        with pytest.raises(KeyError), without_autocast(CPU):
            assert product_dtype(like) == torch.float64
            raise KeyError
        assert product_dtype(like) == torch.bfloat16
    assert product_dtype(like) == torch.float64


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


def test_fast_products_keep_float32_and_restore_the_setting() -> None:
    before = setting()
    with fast_products(CPU):
        assert (setting() == "bf16") == onednn_is_exact()
        assert relative_error() < 1e-6
    assert setting() == before
    with pytest.raises(KeyError), fast_products(CPU):
        raise KeyError
    assert setting() == before


def test_usual_products_restore_torchs_choice_inside_fast_products() -> None:
    usual = setting()
    with fast_products(CPU):
        fast = setting()
        with usual_products():
            assert setting() == usual
        assert setting() == fast


def test_a_library_that_rounds_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_model_that_can_not_fit_is_refused_with_its_sizes() -> None:
    largest = ModelConfig(hidden_size=10**6, embedding_size=10**6)
    with pytest.raises(UserError, match=r"model\.hidden_size = 1000000, model\.embedding_size = 1000000: .* lower"):
        check_memory(largest, 5, 5, optimizer="adam", device=CPU)


def test_a_model_that_fits_passes() -> None:
    check_memory(ModelConfig(), 8000, 8000, optimizer="sgd", device=CPU)
    limit = total_memory(CPU)
    assert limit is not None and limit > 2**28


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce] not enough memory: you tried"),
                                   torch.OutOfMemoryError("CUDA out of memory")])  # fmt: skip
def test_a_failed_allocation_names_the_remedy(error: Exception) -> None:
    with pytest.raises(UserError, match=r"halve batches\.max_tokens"), translate_memory_errors():
        raise error


def test_other_errors_are_not_translated() -> None:
    with pytest.raises(RuntimeError, match="shape"), translate_memory_errors():
        raise RuntimeError("shape mismatch")


FAULTS = """
import resource
import sys

import torch

from attendant.training.kernels.hardware import keep_freed_memory


def num_faults():
    for _ in range(10):  # until the heap has grown to what it takes
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(num_faults())
if not keep_freed_memory():
    sys.exit("another C library")
# The kernel may reclaim pages between two tensors. That only adds faults, so the fewest of three trials count.
print(min(num_faults() for _ in range(3)))
"""


def test_large_tensors_reuse_freed_memory() -> None:
    process = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=False)
    if "another C library" in process.stderr:
        pytest.skip("only glibc keeps freed memory")
    assert process.returncode == 0, process.stderr
    returned, kept = map(int, process.stdout.split())
    # 64 MiB are 16,384 pages, or 32 huge ones.
    assert returned >= 5 * 32
    assert kept < returned / 10
