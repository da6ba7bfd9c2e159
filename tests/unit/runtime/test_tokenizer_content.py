"""Tokenizer files of strangers: what they may consist of, and how much longer they may make a text."""

import json
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.bundle.tokenizer import MAX_GROWTH, MAX_INSERTIONS, Tokenizer, check_content

SOUND = json.loads(Path("models/g2p-en/source_tokenizer.json").read_text())


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def with_normalizer(normalizer: Any) -> str:
    return json.dumps(SOUND | {"normalizer": normalizer})


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown type": ("'Nmt' is not one of", {"normalizer": {"type": "Nmt"}}),
    "a type that panics": ("'FixedLength'", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}),
    "one that adds symbols": ("post_processor", {"post_processor": {"type": "TemplateProcessing"}}),
    "more for less": ("by 2", {"normalizer": sequence({"type": "NFC"}, replace("xx", String="x"))}),
    "more for an expression": ("by 2", {"normalizer": replace("xx", Regex="x")}),
    "something for nothing": ("by 1", {"normalizer": replace("x", String="")}),
    "a long beginning": ("prepends", {"normalizer": {"type": "Prepend", "prepend": "a" * 99}}),
    "many insertions": ("Replace", {"normalizer": sequence(*[replace("x", Regex="(?=x)")] * (MAX_INSERTIONS + 1))}),
    "many expansions": ("NFKC", {"normalizer": sequence(*[{"type": "NFKC"}] * 2)}),
    "many steps": ("components", {"normalizer": sequence(*[{"type": "Strip"}] * 99)}),
    "groups that repeat": ("repeats a group", {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}}}),
    "no pattern": ("no pattern", {"decoder": {"type": "Replace", "pattern": "x", "content": "x"}}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_components_that_are_refused(what: str) -> None:
    words, parts = REFUSED[what]
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        check_content(json.dumps(SOUND | parts))


def test_what_an_expression_inserts_is_measured() -> None:
    doubling = sequence(*[replace("q", Regex="(?=q)")] * MAX_INSERTIONS)
    tokenizer = Tokenizer.from_text(with_normalizer(doubling))
    with pytest.raises(ValueError, match=f"more than {MAX_GROWTH} characters of 'q'"):
        tokenizer.check_encoding()


@pytest.mark.parametrize("name", [str(path) for path in sorted(Path("models").glob("*/*_tokenizer.json"))])
def test_tokenizers_of_models_are_accepted(name: str) -> None:
    Tokenizer.from_file(Path(name)).check_encoding()
