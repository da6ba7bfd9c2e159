"""Vocabularies of users' own models: which ids a module has, and the tokenizer that a bundle gets for them.

A bundle's special symbols have the ids 0 to 3, and a module may have them anywhere, under other names, or lack some. So
a bundle's tokenizer has the special symbols first and then the module's other symbols in the module's order, and the
graphs translate ids (own.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import tokenizer_of

NAMES: Final[Mapping[str, Sequence[str]]] = {
    "pad": ("<pad>", "[PAD]", "<PAD>", "PAD", "<blank>"),
    "unk": ("<unk>", "[UNK]", "<UNK>", "UNK"),
    "bos": ("<s>", "<bos>", "[BOS]", "<sos>", "[SOS]", "<BOS>", "<SOS>", "BOS", "SOS", "[CLS]"),
    "eos": ("</s>", "<eos>", "[EOS]", "<EOS>", "EOS", "[SEP]"),
}
"""Usual names of the special symbols, in our order: those that a vocabulary has are taken if none are declared."""

WORST_SCORE: Final = -1e6
"""Of a special symbol in a Unigram model, so that no text is segmented into it."""

Symbols = Sequence[str] | str | Path


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Translation of a side's ids between a bundle and a user's module.

    Attributes:
        tokenizer: the bundle's.
        module_ids: [symbols of the bundle] the module's id of each; -1 if the module lacks it.
        num_module_ids: symbols of the module's vocabulary.
    """

    tokenizer: Tokenizer
    module_ids: Sequence[int]
    num_module_ids: int


def read_vocabulary(
    symbols: Symbols, special: Mapping[str, str] | None, kind: Literal["word", "character"], side: str
) -> Vocabulary:
    """Returns a side's vocabulary.

    Args:
        symbols: a list of symbols by their ids, a file with a symbol per line, or a file of Hugging Face's `tokenizers`
            (.json).
        special: the names of "pad", "unk", "bos" and "eos" in it; if None, the usual names are recognized.
        kind: for lists: a text is split at white space, or into characters.
        side: "source" or "target", for errors.

    Raises:
        UserError: the file can't be read, or symbols are missing or doubled.
    """
    name = f"{side}_tokenizer"
    if isinstance(symbols, str | Path):
        path = Path(symbols)
        name = f"{name} {path}"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"{name}: can't be read: {reason}") from None
        if path.suffix == ".json":
            return _of_library(name, text, special)
        if path.suffix == ".model":
            raise UserError(
                f"{name}: SentencePiece models are read in the format of Hugging Face's tokenizers: convert it to a "
                ".json first"
            )
        symbols = text.removesuffix("\n").split("\n")
    ids = list(symbols)
    if doubled := [symbol for symbol in ids if ids.count(symbol) > 1] if len(set(ids)) != len(ids) else []:
        raise UserError(f"{name}: the symbol {doubled[0]!r} is there twice")
    module_ids, ordinary = _places(name, dict(zip(ids, range(len(ids)), strict=True)), special)
    return Vocabulary(tokenizer_of(kind, ordinary), module_ids, len(ids))


def _places(name: str, ids: Mapping[str, int], special: Mapping[str, str] | None) -> tuple[list[int], list[str]]:
    """Returns the module's ids in the bundle's order, and the ordinary symbols in the module's order."""
    if not ids:
        raise UserError(f"{name}: the vocabulary is empty")
    declared = dict(special or {})
    if unknown := declared.keys() - NAMES.keys():
        raise UserError(f"{name}: {min(unknown)!r} is no special symbol: name {', '.join(NAMES)}")
    if special is None:
        for role, usual in NAMES.items():
            if known := [symbol for symbol in usual if symbol in ids]:
                declared[role] = known[0]
    for role, symbol in declared.items():
        if symbol not in ids:
            raise UserError(f"{name}: {role} is {symbol!r}, which is not among its {len(ids)} symbols")
    ordinary = [symbol for symbol in sorted(ids, key=ids.__getitem__) if symbol not in declared.values()]
    if clash := set(ordinary) & set(SPECIAL_TOKENS):
        raise UserError(f"{name}: {min(clash)!r} is a special symbol in bundles: declare what it is by special symbols")
    places = [ids[declared[role]] if role in declared else -1 for role in NAMES]
    return [*places, *(ids[symbol] for symbol in ordinary)], ordinary


def _of_library(name: str, text: str, special: Mapping[str, str] | None) -> Vocabulary:
    """Returns the vocabulary of a tokenizer of Hugging Face's library, whose special symbols get our ids."""
    try:
        content: dict[str, Any] = json.loads(text)
        model = content["model"]
        is_unigram = isinstance(model["vocab"], list)
        scores = dict(model["vocab"]) if is_unigram else {}
        ids: dict[str, int] = (
            {symbol: number for number, (symbol, _) in enumerate(model["vocab"])} if is_unigram else {**model["vocab"]}
        )
        ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{name}: no tokenizer of Hugging Face's library (tokenizer.json)") from None
    module_ids, ordinary = _places(name, ids, special)
    symbols = [*SPECIAL_TOKENS, *ordinary]
    if is_unigram:
        model["vocab"] = [[symbol, scores.get(symbol, WORST_SCORE)] for symbol in symbols]
        model["unk_id"] = 1
    else:
        model["vocab"] = {symbol: number for number, symbol in enumerate(symbols)}
        model["unk_token"] = SPECIAL_TOKENS[1]
    # Special symbols are added by the graphs and by `append_eos`, and never found within a text.
    content |= {"added_tokens": [], "post_processor": None, "padding": None, "truncation": None}
    try:
        tokenizer = Tokenizer.from_text(json.dumps(content))
        tokenizer.check_encoding()
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    return Vocabulary(tokenizer, module_ids, max(ids.values()) + 1)
