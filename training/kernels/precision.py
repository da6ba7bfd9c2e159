"""Mixed precision: products in 16 bits where the hardware is faster at them, weights and sums in 32.

torch's autocast decides which operation runs in which format (Micikevicius et al. 2018); the weights themselves, the
optimizer and the loss stay in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor, nn

from attendant.runtime.errors import UserError

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
