"""Compares the memory that a training needs with what there is, explains a lack of it, and keeps what is freed.

A training step asks for the same large tensors again and again. glibc takes those from the kernel each time, and gives
them back: the kernel then clears every page anew, within the step.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from attendant.runtime.errors import UserError
from attendant.training.model import ModelConfig, Seq2Seq

CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
BYTES: Final = 4
"""Of a float32: weights, gradients and averages are of this type in every precision."""

COPIES: Final = {"adam": 4, "adamw": 4, "adadelta": 4, "sgd": 2}
"""Numbers that a training holds for each weight: the weight, its gradient, and the optimizer's averages."""

REMEDY: Final = "lower model.hidden_size, model.embedding_size or the vocabulary sizes"
# From glibc's malloc.h.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_MAX: Final = -4
NEVER: Final = 2**31 - 1

ALLOCATION_FAILED: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of the messages of torch's allocators."""


def check_memory(
    model: ModelConfig, source_size: int, target_size: int, *, optimizer: str, device: torch.device
) -> None:
    """Refuses a model whose training can't fit, before any of it is built.

    Args:
        source_size, target_size: of the vocabularies.
        optimizer: a key of COPIES.

    Raises:
        UserError: weights, gradients and the optimizer's averages need more memory than there is.
    """
    with torch.device("meta"):
        num_parameters = Seq2Seq(model, source_size, target_size).num_parameters
    needed, limit = num_parameters * COPIES[optimizer] * BYTES, total_memory(device)
    if limit is not None and needed > limit:
        raise UserError(
            f"model.hidden_size = {model.hidden_size}, model.embedding_size = {model.embedding_size}: "
            f"{num_parameters:,} parameters need {_gigabytes(needed)} for training by {optimizer}, and there are "
            f"{_gigabytes(limit)}: {REMEDY}"
        )


def total_memory(device: torch.device) -> int | None:
    """Returns the bytes of memory of a GPU, or of this machine or its container; None if the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [int(text) for path in CGROUP_LIMITS if (text := _content(path)).isdecimal()]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes, default=None)


@contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Raises UserError for an allocation that fails within, with the remedy; torch's message has no remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
            part in str(error) for part in ALLOCATION_FAILED
        ):
            raise
        raise UserError(
            "memory ran out: halve batches.max_tokens (with training.accumulate_batches = 2 an update uses as many "
            f"tokens), or {REMEDY}"
        ) from None


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def keep_freed_memory() -> bool:
    """Makes the process keep the memory that it frees, for reuse; its resident memory stays at the peak.

    Returns:
        False if the C library is not glibc, and nothing changes.
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
