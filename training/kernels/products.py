"""Matrix products in float32 on a CPU, by the faster of the two libraries that torch brings.

torch takes MKL for them. oneDNN, whose products take about half the time where MKL does not favor the processor, it
takes only when told that products may be rounded to bfloat16. oneDNN makes use of that on processors with AMX, not on
every other. So the permission is given where products show that it is not used.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Final

import torch

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
