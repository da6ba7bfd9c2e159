"""Whether this host multiplies integers exactly.

ONNX Runtime's products of uint8 by int8 add pairs of them in 16 bits on x86 processors with AVX2 that lack VNNI, and
what is beyond is cut off without a word. int8 graphs would then give other answers than those that were certified.
"""

import functools
from typing import Final

import numpy as np

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
def are_exact() -> bool:
    """Asks the kernels themselves, with factors whose pairs need 17 bits."""
    a, b = np.full((2, 8), 255, np.uint8), np.full((8, 16), 127, np.int8)
    (product,) = run_once(PRODUCT, {"a": a, "b": b})
    (row,) = run_once(ROW_PRODUCT, {"a": a[:1], "b": b})
    return bool((product == 8 * (255 - 128) * 127).all() and (row == 8 * 255 * 127).all())
