"""The CPUs that are granted, not those that the machine has."""

import os
from pathlib import Path

import pytest

from attendant.runtime.cpu import available_cpus, cgroup_quota


def make(root: Path, **limits: str) -> Path:
    """A tree of cgroups a/b with these `cpu.max`, by place; returns this process's own file."""
    (root / "a" / "b").mkdir(parents=True)
    for place, limit in limits.items():
        folder = {"top": root, "a": root / "a", "b": root / "a" / "b"}[place]
        (folder / "cpu.max").write_text(limit)
    own = root / "own"
    own.write_text("12:pids:/x\n0::/a/b\n")
    return own


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"b": "max 100000\n"}, None),
        ({"b": "150000 100000\n"}, 1.5),
        ({"b": "400000 100000\n", "a": "200000 100000\n"}, 2.0),
        ({"b": "max 100000\n", "top": "50000 100000\n"}, 0.5),
        ({"b": "nonsense\n"}, None),
    ],
)
def test_the_lowest_limit_on_the_way_up_counts(tmp_path: Path, limits: dict[str, str], quota: float | None) -> None:
    assert cgroup_quota(tmp_path, make(tmp_path, **limits)) == quota


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(
    ("limits", "quota"), [({}, None), ({"a/b": -1}, None), ({"a/b": 250000}, 2.5), ({"a/b": 400000, "": 50000}, 0.5)]
)
def test_version_1(tmp_path: Path, mount: str, limits: dict[str, int], quota: float | None) -> None:
    (tmp_path / mount / "a" / "b").mkdir(parents=True)
    for place, limit in limits.items():
        (tmp_path / mount / place / "cpu.cfs_quota_us").write_text(f"{limit}\n")
        (tmp_path / mount / place / "cpu.cfs_period_us").write_text("100000\n")
    own = tmp_path / "own"
    own.write_text("4:memory:/m\n3:cpuset:/x\n1:cpu,cpuacct:/a/b\n0::/\n")
    assert cgroup_quota(tmp_path, own) == quota


def test_a_path_of_the_hosts_leads_to_the_containers_own_root(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    own = tmp_path / "own"
    own.write_text("0::/../../kubepods/pod1\n")
    assert cgroup_quota(tmp_path, own) == 1.5


def test_a_machine_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(("quota", "cpus"), [(None, 8), (2.9, 2), (0.5, 1), (64.0, 8)])
def test_the_lower_of_quota_and_affinity_is_taken(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("attendant.runtime.cpu.cgroup_quota", lambda: quota)
    assert available_cpus() == cpus
