"""Tests of data sets: atomic publication, splits by group, expected sizes, and Debian packages by a private apt."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import Announce, Apt, Expected, pip_download, publish, split_by_key, split_of
from attendant.training.data.pairs import Pair


def build(directory: Path, announce: Announce) -> None:
    (directory / "train.tsv").write_text("a\tb\n")


def test_a_data_set_is_published_once_and_then_reused(tmp_path: Path) -> None:
    lines: list[str] = []
    for _ in range(2):
        publish(tmp_path / "toy", "toy", build, announce=lines.append)
    assert lines == [f"fetching toy into {tmp_path / 'toy'}"]
    assert (tmp_path / "toy" / "train.tsv").read_text() == "a\tb\n"


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    def build_second(directory: Path, announce: Announce) -> None:
        publish(tmp_path / "toy", "toy", build, announce=announce)
        build(directory, announce)

    publish(tmp_path / "toy", "toy", build_second, announce=print)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    publish(tmp_path / "toy", "toy", build, announce=print)


@pytest.mark.parametrize("failure", [UserError("offline"), KeyboardInterrupt()])
def test_a_failed_build_leaves_no_files(tmp_path: Path, failure: BaseException) -> None:
    def fail(directory: Path, announce: Announce) -> None:
        build(directory, announce)
        raise failure

    with pytest.raises(type(failure)):
        publish(tmp_path / "toy", "toy", fail, announce=print)
    assert list(tmp_path.iterdir()) == []


def test_changed_files_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "toy"
    publish(place, "toy", build, announce=print)
    with pytest.raises(UserError, match="built by the fetcher 'toy', not 'other'"):
        publish(place, "other", build, announce=print)
    (place / "train.tsv").write_text("mine\tnow\n")
    with pytest.raises(UserError, match=r"train\.tsv has changed since it was fetched: remove"):
        publish(place, "toy", build, announce=print)
    assert (place / "train.tsv").read_text() == "mine\tnow\n"
    (place / "fetched.json").unlink()
    with pytest.raises(UserError, match=r"without a readable fetched\.json"):
        publish(place, "toy", build, announce=print)


def test_data_that_this_user_may_not_read_need_not_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *arguments: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    publish(tmp_path / "toy", "toy", build, announce=print)
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UserError, match=r"fetched\.json: can't be read: Permission denied: give user \d+ access"):
        publish(tmp_path / "toy", "toy", build, announce=print)


def test_splits_have_their_shares_and_stay_the_same() -> None:
    splits = [split_of(str(number)) for number in range(10_000)]
    assert 350 < splits.count("test") < 450 and 350 < splits.count("validation") < 450
    assert split_of("lo:shared/find_toolbar.html") == "train"
    assert split_of("lo:shared/optionen/01020000.html") == "test"


def test_groups_stay_together_and_training_keeps_its_sources() -> None:
    keys = {split_of(key): key for key in map(str, range(200))}
    splits = split_by_key(
        [
            (keys["test"], [Pair("shared", "1"), Pair("SAME", "3"), Pair("own", "5")]),
            (keys["train"], [Pair("shared", "1"), Pair("same", "4"), Pair("same", "4"), Pair("same", "5")]),
            (keys["validation"], [Pair("shared", "1"), Pair("Same", "6")]),
        ]
    )
    assert splits == {
        "train": [Pair("same", "4"), Pair("same", "5")],
        "validation": [],
        "test": [Pair("shared", "1"), Pair("own", "5")],
    }


@pytest.mark.parametrize(
    ("versions", "num_trained", "announced", "refused"),
    [
        ({"toy": "1", "other": "7"}, 100, None, None),
        ({"toy": "1", "other": "7"}, 99, None, "99 / 10 pairs, expected 100 / 10 from these versions"),
        ({"toy": "2", "other": "7"}, 101, "101 / 10 pairs from toy 2; published figures", None),
        ({"toy": "1", "new": "3"}, 100, "100 / 10 pairs from new 3; published figures", None),
        ({"toy": "2", "other": "7"}, 60, None, "60 / 10 pairs from toy 2, expected about 100 / 10"),
    ],
)
def test_counts_are_exact_for_known_versions_and_similar_for_others(
    versions: dict[str, str], num_trained: int, announced: str | None, refused: str | None, tmp_path: Path
) -> None:
    expected = Expected(versions={"toy": "1", "other": "7"}, counts={"train": 100, "test": 10})
    splits = {"train": [Pair("a", "b")] * num_trained, "test": [Pair("c", "d")] * 10}
    lines: list[str] = []
    if refused:
        with pytest.raises(UserError, match=refused):
            expected.write(tmp_path, splits, versions, lines.append)
        assert list(tmp_path.iterdir()) == []
        return
    expected.write(tmp_path, splits, versions, lines.append)
    assert len(lines) == (announced is not None) and "".join(lines).startswith(announced or "")
    assert (tmp_path / "train.tsv").read_text() == "a\tb\n" * num_trained
    assert '"toy": ' in (tmp_path / "versions.json").read_text()


TOOLS = {
    "apt-config": """case "$*" in
*Architecture*) echo amd64 ;;
*) cat <<END
Acquire::http::Proxy "http://proxy:3128";
Acquire::Languages "";
Acquire::Languages:: "none";
APT::Update::Post-Invoke:: "rm -rf /";
Dir::State "var/lib/apt";
END
;; esac""",
    "apt-get": """test -f "$APT_CONFIG" || exit 9
if test "$1" = download; then shift; for name in "$@"; do echo "$name" > "$name.deb"; done; fi""",
    "dpkg-deb": """case $1 in
--show) echo "$(basename $2 .deb) 1.2-3" ;;
--extract) mkdir -p $3; cp $2 $3/ ;;
esac""",
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the machine's apt tools by scripts."""

    def install(**changed: str | None) -> None:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name, script in (TOOLS | {name.replace("_", "-"): script for name, script in changed.items()}).items():
            if script is not None:
                (programs / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
                (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(programs))

    return install


def test_a_missing_pip_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks environments of uv, which have no pip."""
    monkeypatch.setattr("attendant.training.data.fetch.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^pip, .* is not installed: python -m ensurepip, or uv pip install pip$"):
        pip_download(tmp_path, "toy==1")


def test_apt_downloads_and_unpacks_with_the_machines_settings(install: Callable[..., None], tmp_path: Path) -> None:
    install()
    apt = Apt(tmp_path)
    assert apt.architecture == "amd64"
    assert apt.download(["toy", "toy-fr"]) == {"toy": "1.2-3", "toy-fr": "1.2-3"}
    assert sorted(path.name for path in apt.root.iterdir()) == ["toy-fr.deb", "toy.deb"]
    lines = (tmp_path / "apt.conf").read_text().splitlines()
    assert 'Acquire::http::Proxy "http://proxy:3128";' in lines
    assert [line for line in lines if "Languages" in line] == ['Acquire::Languages "en";']
    assert not any("Invoke" in line for line in lines)
    assert [line for line in lines if line.startswith("Dir::State ")][-1] == f'Dir::State "{tmp_path}/state";'


def test_apt_errors_are_one_line(install: Callable[..., None], tmp_path: Path) -> None:
    install(apt_get='test "$1" = update && exit 0; echo "W: old" >&2; echo "E: Unable to locate toy" >&2; exit 100')
    with pytest.raises(UserError, match=r"^`apt-get download` failed \(E: Unable to locate toy\): is there a network"):
        Apt(tmp_path).download(["toy"])
    (tmp_path / "bin" / "apt-config").unlink()
    with pytest.raises(UserError, match=r"apt-config is missing: build this data set on Debian or Ubuntu"):
        Apt(tmp_path / "other")
