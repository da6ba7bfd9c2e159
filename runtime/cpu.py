"""The processor of this host: its kind, and how many CPUs this process may use."""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
INSTRUCTIONS: Final = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""Instruction sets that make products of matrices much faster, as /proc/cpuinfo names them."""

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
    """The CPUs that cgroup v2 or v1 grants this process, or None where nothing limits it.

    A limit holds for everything below it, so the lowest on the way up to the root counts. In a container the path may
    be the host's, and lead nowhere: then the root is the container's own.
    """
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines for quota in _quotas_of(root, line)]
    return min(quotas, default=None)


def _quotas_of(root: Path, line: str) -> Iterator[float]:
    """The limits on the way up from a line of /proc/self/cgroup: hierarchy:controllers:path; v2 names none."""
    _, controllers, path = line.split(":", 2)
    if not controllers:
        mount, quota_of = root, _quota_v2
    elif "cpu" in controllers.split(","):
        # Mounted under the names of its controllers, or linked there by the one.
        mount, quota_of = root / (controllers if (root / controllers).is_dir() else "cpu"), _quota_v1
    else:
        return
    folder = mount / path.lstrip("/")
    for level in (folder, *folder.parents):
        if (level == mount or mount in level.parents) and (quota := quota_of(level)) is not None:
            yield quota


def _quota_v2(folder: Path) -> float | None:
    """Reads `cpu.max`: "<microseconds> <period>", or "max <period>"."""
    try:
        granted, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)


def _quota_v1(folder: Path) -> float | None:
    """Reads `cpu.cfs_quota_us`, -1 for none, and `cpu.cfs_period_us`."""
    try:
        granted, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return granted / period if granted > 0 else None


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Returns the processor's name, family, model and instruction sets, as far as /proc/cpuinfo has them.

    Virtual machines call processors of several generations by one name, while their integer products differ by a factor
    of two: family and model tell them apart.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    facts: dict[str, str] = dict(re.findall(r"^(model name|cpu family|model|flags)\s*: (.*)$", text, re.MULTILINE))
    name = facts.get("model name", platform.machine())
    if "model" in facts and "cpu family" in facts:
        name += f", family {facts['cpu family']} model {facts['model']}"
    if "flags" not in facts:
        return name
    flags = facts["flags"].split()
    return f"{name} ({', '.join(flag for flag in INSTRUCTIONS if flag in flags)})"
