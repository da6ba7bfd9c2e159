"""What the kernel says of a process and all that it has started: processor time and memory."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children = defaultdict(list)
    for pid, fields in _all_processes():
        children[int(fields[1])].append(pid)
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of all of them together, in user and in kernel mode; to a hundredth of a second each."""
    return sum((int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND for fields in map(_fields, pids) if fields)


def resident_bytes(pids: list[int]) -> int:
    """Resident memory of all of them together; what they share counts for each."""
    return sum(int(fields[21]) * PAGE_BYTES for fields in map(_fields, pids) if fields)


def _all_processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _fields(int(path.name))):
            yield int(path.name), fields


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, the state; none where the process has ended."""
    try:
        # The name, the second one, may have spaces in it.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    except OSError:
        return []
