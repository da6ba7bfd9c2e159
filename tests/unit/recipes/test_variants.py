"""Variants of translation pairs: the same parts on both sides, the rest unchanged, the same draw every time."""

import random
from importlib import import_module

import pytest

from attendant.training.data.pairs import Pair

variants = import_module("attendant.recipes.translate-debdocs-en-fr.variants")

PAIRS = [
    Pair("Opens the file with open(2).", "Ouvre le fichier avec open(2)."),
    Pair("Saves the document in LibreOffice.", "Enregistre le document dans LibreOffice."),
    Pair("The value 42 is returned.", "La valeur 42 est renvoyée."),
    Pair("Select Writer to insert a table.", "Sélectionnez Writer pour insérer un tableau."),
]


@pytest.fixture
def filler() -> object:
    return variants.Filler(random.Random(1))


@pytest.mark.parametrize(
    ("text", "in_capitals"),
    [
        ("Élève et œuvre", "ÉLÈVE ET ŒUVRE"),
        ("delete {count} files", "DELETE {count} FILES"),
        ("<b>see</b> https://a.org/b and me@a.org", "<b>SEE</b> https://a.org/b AND me@a.org"),
        ("set %s to %1$d in /etc/hosts", "SET %s TO %1$d IN /etc/hosts"),
        ("read/write", "READ/WRITE"),
    ],
)
def test_capitals_keep_what_programs_read(text: str, in_capitals: str) -> None:
    assert variants.capitals(Pair(text, text)) == Pair(in_capitals, in_capitals)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (PAIRS[0], ["open(2)"]),
        (PAIRS[1], ["document", "LibreOffice"]),
        (PAIRS[2], ["42"]),
        (Pair("It is possible (basis = 1).", "C'est possible (base = 1)."), ["1"]),
        (Pair("a b a LibreOffice", "LibreOffice LibreOffice"), []),
    ],
)
def test_words_that_both_sides_have(pair: Pair, words: list[str]) -> None:
    assert variants.shared_words(pair) == words


def test_a_slot_is_filled_alike_on_both_sides(filler: object) -> None:
    for _ in range(50):
        pair = variants.with_slots(PAIRS[0], filler=filler)
        part = pair.source.removeprefix("Opens the file with ").removesuffix(".")
        assert part != "open(2)" and pair == Pair(f"Opens the file with {part}.", f"Ouvre le fichier avec {part}.")


@pytest.mark.parametrize("kind", ["stand_in", "placeholder", "url", "email", "path"])
def test_parts_that_programs_read_are_kept_in_capitals(kind: str, filler: object) -> None:
    for _ in range(100):
        part = getattr(filler, kind)()
        assert "." in part[1:-1] or variants.KEPT.fullmatch(part), part


def test_variants_are_the_same_every_time_and_split_evenly_into_source_and_target() -> None:
    sentences = PAIRS * 20
    drawn = list(variants.variants(sentences, 1000))
    assert drawn == list(variants.variants(sentences, 1000)) and drawn != list(
        variants.variants(sentences, 1000, seed=2)
    )
    assert all(pair.source.strip() and pair.target.strip() and "\t" not in pair.source for pair in drawn)
    assert not any("@" in pair.source and "@any" in pair.target for pair in drawn), "an unfilled phrase"
    sources = {pair.source for pair in drawn}
    assert "OPENS THE FILE WITH OPEN(2)." in sources and "opens the file with open(2)" in sources


def test_every_phrase_has_the_same_slots_on_both_sides() -> None:
    for line in variants.PHRASES.strip().split("\n"):
        source, target = line.split(" | ")
        slots = [
            sorted(word.strip(",.!?:…") for word in side.split() if word.startswith("@")) for side in (source, target)
        ]
        assert slots[0] == slots[1] and len(set(slots[0])) == len(slots[0]), line
