"""The hardware of a training: device, threads, memory, precision, and the library that multiplies float32 on a CPU.

Mixed precision has products in 16 bits if the hardware is faster at them, and weights, optimizer and loss in 32:
torch's autocast decides which operation runs in which format (Micikevicius et al. 2018).

Products of float32 on a CPU: torch takes MKL for them. oneDNN takes about half the time on processors that MKL does not
favor, but torch uses it only if products may be rounded to bfloat16. oneDNN rounds on processors with AMX, not on every
other. So `fast_products` gives the permission if test products show that oneDNN does not round.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from attendant.runtime.errors import UserError
from attendant.runtime.process import available_cpus

WantedDevice = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["fp32", "bf16", "fp16"]
WantedPrecision = Literal["fp32", "bf16", "fp16", "auto"]

LOW_DTYPES: Final[dict[PrecisionName, torch.dtype]] = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Rows, summands and columns of the test products: a layer's over all steps, and that of a single step.
PROBED_SHAPES: Final = ((512, 512, 512), (64, 512, 2048))
# Between two orders of summation; rounding to bfloat16 multiplies the error by thousands.
LARGEST_ERROR_RATIO: Final = 4.0
CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
MEMORY_REMEDY: Final = "lower model.hidden_size, model.embedding_size or the vocabulary sizes"
# Parts of the messages of torch's allocators.
ALLOCATION_FAILED: Final = ("can't allocate memory", "not enough memory", "out of memory")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # From glibc's malloc.h.
NEVER: Final = 2**31 - 1


def choose_device(wanted: WantedDevice, local_rank: int | None = None) -> torch.device:
    """Returns the device for a recipe's choice.

    Args:
        wanted: "auto" is CUDA if there is a device, else the CPU.
        local_rank: the number of this process on this machine, if several processes have a GPU each.

    Raises:
        UserError: CUDA is wanted and absent, or has fewer devices than there are processes.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda", and torch finds no CUDA device here: set it to "cpu" or "auto"')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"a process for each GPU, and there are {torch.cuda.device_count()} here: lower --nproc_per_node, or set "
            'training.device to "cpu"'
        )
    return torch.device("cuda", local_rank)


def use_threads(wanted: int | None) -> None:
    """Sets torch's threads on the CPU.

    Args:
        wanted: if None, torch's own choice (OMP_NUM_THREADS, or the machine's cores), but at most the CPUs that the
            process's affinity and its container's quota grant. More threads would wait for each other.
    """
    torch.set_num_threads(min(torch.get_num_threads(), available_cpus()) if wanted is None else wanted)


def total_memory(device: torch.device) -> int | None:
    """Returns the bytes of memory of a GPU, or of this machine or its container; None if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = []
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            sizes.append(int(text))
    if "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes, default=None)


@contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Raises UserError, with a remedy, for an allocation that fails in its context."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
            part in str(error) for part in ALLOCATION_FAILED
        ):
            raise
        raise UserError(
            "memory ran out: halve batches.max_tokens (with training.accumulate_batches = 2 an update uses as many "
            f"tokens), or {MEMORY_REMEDY}"
        ) from None


def keep_freed_memory() -> bool:
    """Makes the process keep the memory that it frees, for reuse; its resident memory stays at the peak.

    A training step allocates the same large tensors again and again. glibc would return them to the kernel each time,
    which clears every page again, within the step.

    Returns:
        False if the C library is not glibc, and nothing changes.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # Large blocks come from the heap, not from a mapping each, which would return to the kernel with its tensor; and
    # the heap is never trimmed.
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, NEVER))


def choose_precision(wanted: WantedPrecision, device: torch.device) -> PrecisionName:
    """Returns the precision to train in; "auto" is decided by the hardware.

    Raises:
        UserError: the device can't compute in the wanted precision, or only slower than in float32.
    """
    if wanted == "auto":
        if computes_bfloat16(device):
            return "bf16"
        return "fp16" if device.type == "cuda" else "fp32"
    if wanted == "bf16" and not computes_bfloat16(device):
        raise UserError(
            f'training.precision = "bf16", and this {device.type.upper()} has no bfloat16 arithmetic (a CPU needs '
            'avx512_bf16 or AMX, a GPU compute capability 8): set "auto", which then takes another, or "fp32"'
        )
    if wanted == "fp16" and device.type != "cuda":
        raise UserError(
            'training.precision = "fp16" is for CUDA: a CPU emulates it and is slower than in fp32; set "auto" or '
            '"fp32"'
        )
    return wanted


def computes_bfloat16(device: torch.device) -> bool:
    """Returns True if the hardware multiplies bfloat16 itself. Emulation is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def product_dtype(like: Tensor) -> torch.dtype:
    """Returns the type of products of such tensors [...]: autocast's inside autocast, else their own."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def at_least_float32(tensor: Tensor) -> Tensor:
    """Returns [...] in 32 bits if it has 16: sums of exponentials need them, and -1e9 is beyond float16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Runs operations in the types of their inputs. Enters in far less time than torch's own context."""
    before = torch.is_autocast_enabled(device.type)
    torch.set_autocast_enabled(device.type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, before)


def make_autocast(precision: PrecisionName, device: torch.device) -> torch.autocast:
    """Returns the context of the forward pass."""
    dtype = LOW_DTYPES.get(precision)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def fast_products(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context in which oneDNN multiplies float32 on the CPU, if it does so exactly.

    The choice depends on the hardware alone. The setting is the whole process's; it is restored at the end.

    Args:
        device: device of the training; only a CPU needs this.
    """
    return _products_in("bf16") if device.type == "cpu" and onednn_is_exact() else nullcontext()


def usual_products() -> AbstractContextManager[None]:
    """Returns a context with torch's own choice again: for a vector times a matrix oneDNN takes three times as long."""
    return _products_in("none")


@cache
def onednn_is_exact() -> bool:
    """Returns True if oneDNN does not round float32 to bfloat16 when it may."""
    usual = _errors()
    with _products_in("bf16"):
        permitted = _errors()
    return all(ours <= LARGEST_ERROR_RATIO * theirs for ours, theirs in zip(permitted, usual, strict=True))


@contextmanager
def _products_in(precision: str) -> Iterator[None]:
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = precision
    try:
        yield
    finally:
        products.fp32_precision = before


def _errors() -> list[float]:
    """Returns the error of each test product, relative to the product in float64."""
    generator = torch.Generator().manual_seed(0)  # training's random numbers are left alone
    errors = []
    for num_rows, num_summands, num_columns in PROBED_SHAPES:
        left = torch.randn(num_rows, num_summands, generator=generator)
        right = torch.randn(num_summands, num_columns, generator=generator)
        exact = left.double() @ right.double()
        errors.append(float((left @ right - exact).norm() / exact.norm()))
    return errors
