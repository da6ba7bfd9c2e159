"""What a training computes on: device, threads, precision, and the library that multiplies float32 on a CPU."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor, nn

from attendant.runtime.errors import UserError
from attendant.runtime.process import available_cpus

WantedDevice = Literal["auto", "cpu", "cuda"]


def choose_device(wanted: WantedDevice, local_rank: int | None = None) -> torch.device:
    """The device that a recipe asks for.

    Args:
        wanted: "auto": CUDA where there is a device, else the CPU.
        local_rank: of several processes on this machine, each with a GPU of its own, the number of this one; None:
            there is one process.

    Raises:
        UserError: CUDA is asked for and absent, or has fewer devices than processes here.
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
        wanted: how many; None: torch's own choice (OMP_NUM_THREADS, or the machine's cores), but no more than the
            CPUs that the process's affinity and its container's quota grant. More would wait for each other.
    """
    torch.set_num_threads(min(torch.get_num_threads(), available_cpus()) if wanted is None else wanted)


PrecisionName = Literal["fp32", "bf16", "fp16"]
WantedPrecision = Literal["fp32", "bf16", "fp16", "auto"]

LOW_DTYPES: Final[dict[PrecisionName, torch.dtype]] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(wanted: WantedPrecision, device: torch.device) -> PrecisionName:
    """The precision to train in, by the hardware where the recipe leaves it open.

    Raises:
        UserError: the device can't compute in what the recipe insists on, or only slower than in float32.
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
    """Whether the hardware multiplies bfloat16 itself. Emulation is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


@contextmanager
def runnable_lstm(inputs: Tensor) -> Iterator[None]:
    """Lets torch run LSTMs on `inputs` [...]: without oneDNN if it has no LSTM in the type of their products.

    The setting is the whole process's; it is restored at the end.
    """
    if inputs.device.type != "cpu" or product_dtype(inputs) != torch.bfloat16 or _onednn_has_bfloat16_lstm():
        yield
        return
    with _onednn_switched_off():
        yield


@contextmanager
def _onednn_switched_off() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@cache
def _onednn_has_bfloat16_lstm() -> bool:
    """Runs a tiny LSTM: torch leaves those in bfloat16 to oneDNN, which has none for processors without AVX-512."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        try:
            nn.LSTM(1, 1, batch_first=True)(torch.zeros(1, 1, 1))
        except RuntimeError as error:
            if "primitive" not in str(error):
                raise
            return False
    return True


def product_dtype(like: Tensor) -> torch.dtype:
    """The type that products of such tensors [...] are computed in: autocast's within it, else their own."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Within, operations run in the types of what they are given. Enters in far less time than torch's own."""
    before = torch.is_autocast_enabled(device.type)
    torch.set_autocast_enabled(device.type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, before)


def make_autocast(precision: PrecisionName, device: torch.device) -> torch.autocast:
    """What the forward pass runs within."""
    dtype = LOW_DTYPES.get(precision)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def make_scaler(precision: PrecisionName, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss so that small gradients stay above fp16's smallest number; does nothing in other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


PROBED_SHAPES: Final = ((512, 512, 512), (64, 512, 2048))
"""Rows, summands and columns of the products that are looked at: a layer's over all steps, and one of a single step."""

LARGEST_ERROR_RATIO: Final = 4.0
"""Of one order of summation to another; rounding to bfloat16 multiplies the error by thousands."""


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Within, the CPU's products of float32 are by oneDNN where they stay products of float32.

    Which library it is depends on the hardware alone. The setting is the whole process's; it is restored at the end.

    Args:
        device: that training is on; another than a CPU needs none of this.
    """
    with _products_in("bf16") if device.type == "cpu" and onednn_is_exact() else nullcontext():
        yield


def usual_products() -> AbstractContextManager[None]:
    """Within, torch's own choice again: for a vector times a matrix each, where oneDNN takes three times as long."""
    return _products_in("none")


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN, permitted to round float32 to bfloat16, does not."""
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
    """Of each probed product, relative to the one in float64."""
    generator = torch.Generator().manual_seed(0)  # training's random numbers are left alone
    errors = []
    for num_rows, num_summands, num_columns in PROBED_SHAPES:
        left = torch.randn(num_rows, num_summands, generator=generator)
        right = torch.randn(num_summands, num_columns, generator=generator)
        exact = left.double() @ right.double()
        errors.append(float((left @ right - exact).norm() / exact.norm()))
    return errors
