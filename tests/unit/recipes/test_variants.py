"""Tests of variants of translation pairs, which are reproducible and change both sides alike, and of the check list."""

import random
from collections import Counter
from importlib import import_module

import pytest

import attendant
from attendant.training.data.pairs import Pair
from tests.paths import ROOT

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
def test_shared_words_are_those_of_both_sides(pair: Pair, words: list[str]) -> None:
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
    assert not any("@" in pair.source and "@any" in pair.target for pair in drawn), "a phrase has an unfilled slot"
    sources = {pair.source for pair in drawn}
    assert "OPENS THE FILE WITH OPEN(2)." in sources and "opens the file with open(2)" in sources


def test_every_phrase_has_the_same_slots_on_both_sides() -> None:
    for pair in variants.phrases():
        slots = [
            sorted(word.strip(",.!?:…") for word in side.split() if word.startswith("@"))
            for side in (pair.source, pair.target)
        ]
        assert slots[0] == slots[1] and len(set(slots[0])) == len(slots[0]), pair


checks = import_module("attendant.recipes.translate-debdocs-en-fr.checks")


def test_the_list_has_300_inputs_that_no_phrase_teaches() -> None:
    inputs = checks.checks()
    assert Counter(check.kind for check in inputs) == {
        "capitals": 60, "placeholders": 60, "tags": 40, "addresses": 40, "numbers": 40, "names": 30, "lines": 30,
    }  # fmt: skip
    assert len({check.source for check in inputs}) == len(inputs)
    phrases = {pair.source.casefold() for pair in variants.phrases()}
    assert not [check for check in inputs if check.source.casefold() in phrases]
    assert all(part in check.source for check in inputs for part in check.kept)
    assert all(check.kept or check.words for check in inputs)
    assert not [check for check in inputs if "\0" in check.source]


@pytest.mark.parametrize(
    ("check", "answer", "num_faults"),
    [
        (checks.Check("tags", "<b>a</b> %s %s", ("<b>", "</b>", "%s")), "%s <b>x</b> %s", 0),
        (checks.Check("tags", "<b>a</b> %s %s", ("<b>", "</b>", "%s")), "%s <b>x<b>", 3),
        (checks.Check("capitals", "OPEN THE FILE", words=("fichier",)), "OUVRIR LE FICHIER", 0),
        (checks.Check("capitals", "OPEN THE FILE", words=("fichier",)), "Ouvrir le fichier", 1),
        (checks.Check("capitals", "OPEN THE FILE", words=("fichier",)), "OPEN THE FILE", 1),
        (checks.Check("lines", "A b.\n\nC d.", words=("x/y", "", "z")), "Le y.\n\nLe z.", 0),
        (checks.Check("lines", "A b.\n\nC d.", words=("x/y", "", "z")), "Le y. Le y.", 1),
        (checks.Check("lines", "A b.\nC d.", words=("x", "z")), "Le x.\nLe x.", 1),
    ],
)
def test_faults_of_an_answer_are_counted(check: object, answer: str, num_faults: int) -> None:
    assert len(check.faults(answer)) == num_faults  # type: ignore[attr-defined]


@pytest.mark.parametrize(("every", "max_faulty"), [(7, 0.1), pytest.param(1, 0.05, marks=pytest.mark.slow)])
def test_the_shipped_model_keeps_what_programs_read_and_lines(every: int, max_faulty: float) -> None:
    inputs = checks.checks()[::every]
    with attendant.load(ROOT / "models/translate-en-fr") as model:
        answers = [generation.best.text for generation in model.generate([check.source for check in inputs])]
    faulty = [check for check, answer in zip(inputs, answers, strict=True) if check.faults(answer)]
    assert len(faulty) <= max_faulty * len(inputs)
    assert {check.kind for check in faulty} <= {"capitals", "names"}
