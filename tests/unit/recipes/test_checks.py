"""The check list of translations: what it asks, and what it finds."""

from collections import Counter
from importlib import import_module

import pytest

import attendant
from tests.paths import ROOT

checks = import_module("attendant.recipes.translate-debdocs-en-fr.checks")
variants = import_module("attendant.recipes.translate-debdocs-en-fr.variants")


def test_the_list_has_300_inputs_that_no_phrase_teaches() -> None:
    inputs = checks.checks()
    assert Counter(check.kind for check in inputs) == {
        "capitals": 60, "placeholders": 60, "tags": 40, "addresses": 40, "numbers": 40, "names": 30, "lines": 30,
    }  # fmt: skip
    assert len({check.source for check in inputs}) == len(inputs)
    phrases = {line.split(" | ")[0].casefold() for line in variants.PHRASES.strip().split("\n")}
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
def test_faults(check: object, answer: str, num_faults: int) -> None:
    assert len(check.faults(answer)) == num_faults  # type: ignore[attr-defined]


def test_the_shipped_model_keeps_what_programs_read_and_lines() -> None:
    """Every seventh input; capitals and names need a training on them."""
    kept = {"placeholders", "tags", "addresses", "numbers", "lines"}
    inputs = [check for check in checks.checks() if check.kind in kept][::7]
    assert {check.kind for check in inputs} == kept
    with attendant.load(ROOT / "models/translate-en-fr") as model:
        answers = [generation.best.text for generation in model.generate([check.source for check in inputs])]
    faults = {check.source: check.faults(answer) for check, answer in zip(inputs, answers, strict=True)}
    assert not {source: source_faults for source, source_faults in faults.items() if source_faults}
