"""How many CPUs this process may really use."""

import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """The CPUs this process may use: the lower of its affinity and its container's quota, at least 1.

    `os.cpu_count()` counts the machine's: a pool of that size in a container with a small quota is throttled.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def cgroup_quota(root: Path = CGROUP_ROOT, own_cgroup: Path = OWN_CGROUP) -> float | None:
    """The CPUs that cgroup v2 grants this process, or None where nothing limits it.

    A limit holds for everything below it, so the lowest on the way up to the root counts.
    """
    try:
        line = next(line for line in own_cgroup.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = root / line.removeprefix("0::").lstrip("/")
    quotas = [_quota_of(level) for level in (folder, *folder.parents) if level == root or root in level.parents]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    """Reads `cpu.max`: "<microseconds> <period>", or "max <period>"."""
    try:
        granted, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)
