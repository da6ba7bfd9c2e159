"""Freed memory stays with the process: seen by the kernel's count of page faults."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import sys

import torch

from attendant.training.loop.experiment import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("another C library")
for _ in range(10):  # until the heap has grown to what it takes
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_faults(word: str) -> int:
    process = subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=False)
    if "another C library" in process.stderr:
        pytest.skip("only glibc can be told")
    assert process.returncode == 0, process.stderr
    return int(process.stdout)


def test_large_tensors_take_memory_that_others_left() -> None:
    returned = num_faults("return")
    # The kernel may reclaim pages between two tensors. That only adds faults, so the fewest of three runs count.
    kept = min(num_faults("keep") for _ in range(3))
    # 64 MiB are 16,384 pages, or 32 huge ones.
    assert returned >= 5 * 32
    assert kept < returned / 10
