"""Tests of shipped bundles: each was trained by the recipe that its page names."""

import json
import re
from pathlib import Path

import pytest
from tokenizers import normalizers

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.training.data.tokenization import WORD_START, normalization_steps
from attendant.training.recipe import Recipe, load_recipe
from tests.paths import ROOT

PAGES = dict(
    re.findall(r"^\| `([\w-]+)` .*\(\.\./(recipes/[\w-]+/README\.md)\)", (ROOT / "models/README.md").read_text(), re.M)
)
COMMAND = re.compile(r"attendant train (\S+)")

NOT_OF_THE_MODEL = {
    "training.num_threads": "the order in which a host sums, and with it the last bits",
    "evaluation.metrics": "the measurement after the training",
    "description": "the text for readers and clients",
}
"""Fields in which a training may differ from its recipe. They do not affect the model, but the thing in the value."""


def recipe_of(page: Path) -> Path:
    """Returns the recipe of the page's first training command."""
    match = COMMAND.search(page.read_text())
    assert match is not None, f"{page}: no command that trains"
    return Path(match[1])


def trained_by(bundle: Path) -> Recipe:
    """Returns the manifest's recipe, read like a run's: fields that have been renamed since get their new names."""
    content = json.loads((bundle / "manifest.json").read_text())["provenance"]["recipe"]
    return Recipe.model_validate(content)


def normalizes_alike(field: str, recipe: Recipe, bundle: Path) -> bool:
    """Returns True if a recipe that normalizes more than the training did leaves every learned symbol as it is.

    Texts with other symbols then reach only the server. Symbols are looked at within a word. If punctuation around
    words is dropped, the tests of the recipe's data check that its texts have none, or its page lists those with some.
    """
    side = field.partition(".")[0]
    config = {"source": recipe.source, "target": recipe.target}[side]
    tokenizer = json.loads((bundle / f"{side}_tokenizer.json").read_text())
    symbols = [symbol.strip(WORD_START) for symbol in tokenizer["model"]["vocab"] if symbol not in SPECIAL_TOKENS]
    steps = normalization_steps(config.normalize, keep_spaces=False, marks_words=False)
    return all(normalizers.Sequence(steps).normalize_str(f"a{symbol}a") == f"a{symbol}a" for symbol in symbols)


def test_every_shipped_bundle_has_a_page() -> None:
    assert PAGES.keys() == {path.parent.name for path in ROOT.glob("models/*/manifest.json")}


@pytest.mark.parametrize("name", PAGES)
def test_a_shipped_bundle_was_trained_by_its_recipe(name: str) -> None:
    recipe, trained = load_recipe(recipe_of(ROOT / PAGES[name])), trained_by(ROOT / "models" / name)
    differences = {
        field: (wanted, value)
        for field, wanted, value in recipe.differences(trained, Recipe.model_fields)
        # "auto" is the precision that the training host has.
        if field not in NOT_OF_THE_MODEL and (field, wanted) != ("training.precision", "auto")
        if not (field.endswith(".normalize") and normalizes_alike(field, recipe, ROOT / "models" / name))
    }
    assert not differences, f"{name}: field -> its recipe's value, its training's value"
