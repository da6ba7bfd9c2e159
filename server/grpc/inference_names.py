"""What the other services must know about the Open Inference Protocol."""

import math
from collections.abc import Sequence
from typing import Final

SERVICE_NAME: Final = "inference.GRPCInferenceService"
PROBES: Final = frozenset({"ServerLive", "ServerReady"})
"""Methods that need no credentials unless health checks do."""
MAX_DIMENSIONS: Final = 8
"""Limit of an input's shape. The product of more sizes may have any number of digits."""


def num_elements(shape: Sequence[int]) -> int:
    """Returns the number of elements of a tensor with this shape, or -1 if the shape is not valid."""
    if not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 1:
        return -1
    return math.prod(shape)
