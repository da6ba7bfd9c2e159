"""Decides whether this host computes a bundle's integer products exactly.

ONNX Runtime's products of uint8 by int8 add pairs of them in 16 bits on x86 processors without VNNI, and cut off what
is beyond. int8 graphs whose factors can exceed 64 then give other answers than those that were certified. Bundles that
this version exports have no such factors, older ones have.
"""

import functools
from typing import Final

import numpy as np

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.integer_range import wide_factors
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle.reading import Unfit
from attendant.runtime.cpu import processor
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import run_once

PRODUCT: Final = (
    b"\x08\x08:i\n\x1b\n\x01a\n\x01b\n\x01z\x12\x01y\x22\x0dMatMulInteger\x12\x01p*\x08\x10\x02B\x01zJ\x01\x80"
    b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x02\n\x02\x08\x08"
    b"Z\x13\n\x01b\x12\x0e\n\x0c\x08\x03\x12\x08\n\x02\x08\x08\n\x02\x08\x10"
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x02\n\x02\x08\x10B\x04\n\x00\x10\x0d"
)
"""An ONNX graph: y [2, 16] = MatMulInteger(a [2, 8] uint8 with the zero at 128, b [8, 16] int8)."""

ROW_PRODUCT: Final = (
    b"\x08\x08:\\\n\x18\n\x01a\n\x01b\x12\x01y\x22\x0dMatMulInteger\x12\x01p"
    b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08\x08"
    b"Z\x13\n\x01b\x12\x0e\n\x0c\x08\x03\x12\x08\n\x02\x08\x08\n\x02\x08\x10"
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x10B\x04\n\x00\x10\x0d"
)
"""The same of one row, with the zero at 0: a kernel of its own."""


@functools.cache
def kernels_are_exact() -> bool:
    """Runs the kernels with factors whose pairs need 17 bits, and returns whether their sums are right."""
    a, b = np.full((2, 8), 255, np.uint8), np.full((8, 16), 127, np.int8)
    (product,) = run_once(PRODUCT, {"a": a, "b": b})
    (row,) = run_once(ROW_PRODUCT, {"a": a[:1], "b": b})
    return bool((product == 8 * (255 - 128) * 127).all() and (row == 8 * 255 * 127).all())


def refuse_inexact(bundle: Bundle, precision: Precision) -> None:
    """Raises UserError if this host may compute the graphs of a precision wrongly.

    The graphs decide, not what the manifest says. They are only read on processors whose kernels are not exact.
    """
    graphs = bundle.manifest.graphs
    if precision != "int8" or precision not in graphs or kernels_are_exact():
        return
    try:
        factors = wide_factors(bundle.path, graphs[precision])
    except (OSError, Unfit) as error:
        factors = [str(error)]
    if factors:
        # From fp32 graphs any processor makes int8; codes of 8 bits are only halved where they can be computed.
        remedy = (
            "choose precision fp32, or export it anew"
            if "fp32" in graphs
            else "it has no other precision; export it anew on a processor with VNNI"
        )
        raise UserError(
            f"the int8 of the bundle {bundle.manifest.name} can't be computed exactly on this processor "
            f"({processor()}): it has codes of 8 bits, whose products overflow in onnxruntime's kernels without VNNI; "
            f"{remedy} (attendant export BUNDLE --output NEW --precision {','.join(graphs)}), which makes codes of 7 "
            "bits"
        )
