"""What the C library does with memory that is freed.

A training step asks for the same large tensors again and again. glibc takes those from the kernel each time, and gives
them back: the kernel then clears every page anew, within the step.
"""

import ctypes
import sys
from typing import Final

# From glibc's malloc.h.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_MAX: Final = -4
NEVER: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """From now on the process keeps the memory that it frees for reuse; its resident memory stays at the peak.

    Returns:
        whether the C library can be told so; where it is not glibc, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return False
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # Large blocks come from the heap, not from a mapping each, which would go back to the kernel with its tensor; and
    # the heap is never trimmed.
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, NEVER))
