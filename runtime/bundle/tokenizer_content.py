"""Checks the components of a tokenizer's file before any of them is used.

The library's format can describe far more than the tokenizers of models need: a normalizer that replaces one character
by ten, six times, makes a million characters of one. So only components that the recipes and importers use are
accepted, and each may make a text only a little longer. What expressions can still do is measured
(`Tokenizer.check_encoding`).
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from attendant.runtime.bundle.reading import parse_json

COMPONENTS: Final = {
    "normalizer": {
        "Sequence",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "StripAccents",
        "Strip",
        "Replace",
        "Prepend",
    },
    "pre_tokenizer": {
        *("Sequence", "Split", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel", "Punctuation", "Digits"),
        *("BertPreTokenizer", "CharDelimiterSplit"),
    },
    "model": {"BPE", "Unigram", "WordPiece", "WordLevel"},
    "post_processor": {"ByteLevel"},
    "decoder": {
        *("Sequence", "Fuse", "Metaspace", "BPEDecoder", "WordPiece", "ByteLevel", "ByteFallback", "Replace", "Strip")
    },
}
"""The types that each part may have, besides none."""

MAX_COMPONENTS: Final = 32
"""Of one part, e.g. the steps of a normalizer."""

MAX_OF_A_TYPE: Final = {"NFC": 2, "NFD": 2, "NFKC": 1, "NFKD": 1, "Prepend": 1}
"""Those that make texts longer: a character may become 18."""

MAX_INSERTIONS: Final = 6
"""Replacements by an expression, which may match nothing at every character and so add one to each."""

MAX_PREPENDED: Final = 4
QUANTIFIED_GROUP: Final = re.compile(r"(?<!\\)\)[*+?{]")
"""Within an expression: the time that such a group takes may grow exponentially with the text."""


def check_content(text: str) -> None:
    """Checks the text of a tokenizer's file.

    Raises:
        ValueError: it is no JSON object, or has a component that is not accepted.
    """
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("not a tokenizer file: no JSON object")
    for part, types in COMPONENTS.items():
        components = list(_components(content.get(part)))
        if len(components) > MAX_COMPONENTS:
            raise ValueError(f"{part}: {len(components)} components, may have {MAX_COMPONENTS}")
        for component in components:
            kind = component.get("type")
            # Files of older versions leave out the type of a model.
            if kind not in types and not (part == "model" and kind is None):
                raise ValueError(f"{part}: {kind!r} is not one of {', '.join(sorted(types))}")
            _check_component(part, component)
        counts = Counter(component.get("type") for component in components)
        counts["Replace"] = sum(_inserts(component) for component in components)
        for kind, most in ({**MAX_OF_A_TYPE, "Replace": MAX_INSERTIONS}).items():
            if counts[kind] > most:
                raise ValueError(f"{part}: {counts[kind]} components {kind} that make texts longer, may have {most}")


def _components(part: Any) -> Iterator[dict[str, Any]]:
    """A part, and those that it is a sequence of."""
    if not isinstance(part, dict):
        return
    yield part
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in part.get(name) or ():
            yield from _components(inner)


def _inserts(component: dict[str, Any]) -> bool:
    return component.get("type") == "Replace" and "Regex" in component["pattern"] and bool(component.get("content"))


def _check_component(part: str, component: dict[str, Any]) -> None:
    kind, content = component.get("type"), component.get("content", "")
    pattern = component.get("pattern")
    if kind == "Prepend" and len(component.get("prepend", "")) > MAX_PREPENDED:
        raise ValueError(f"{part}: prepends more than {MAX_PREPENDED} characters")
    if pattern is None:
        return
    if not isinstance(pattern, dict):
        raise ValueError(f"{part}: {kind} has no pattern")
    if QUANTIFIED_GROUP.search(pattern.get("Regex", "")):
        raise ValueError(f"{part}: the expression {pattern['Regex']!a} repeats a group, which may take too long")
    most = 1 if "Regex" in pattern else len(pattern.get("String", ""))
    if kind == "Replace" and len(content) > most:
        raise ValueError(f"{part}: replaces {most} characters by {len(content)}, which makes texts longer")
