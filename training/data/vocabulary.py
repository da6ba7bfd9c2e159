"""Reads vocabularies of other tools: tokenizers of other libraries, and lists of symbols.

A bundle's special symbols have the ids 0 to 3. In other tools they may have any ids and names, or be missing. So the
resulting tokenizer has the special symbols first and then the others in their order, and `Vocabulary.module_ids` has
the ids of the other tool.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.tokenizer import BYTE_TOKENS, SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import read_text, reading_error
from attendant.runtime.process import quiet_stderr
from attendant.training.data.sentencepiece import literal, read_sentencepiece
from attendant.training.data.tokenization import TokenizerConfig, tokenizer_of, train_tokenizer

SymbolKind = Literal["word", "character", "tokens"]
Symbols = Sequence[str] | str | Path

NAMES: Final[Mapping[str, Sequence[str]]] = {
    "pad": ("<pad>", "[PAD]", "<PAD>", "PAD", "<blank>"),
    "unk": ("<unk>", "[UNK]", "<UNK>", "UNK"),
    "bos": ("<s>", "<bos>", "[BOS]", "<sos>", "[SOS]", "<BOS>", "<SOS>", "BOS", "SOS", "[CLS]"),
    "eos": ("</s>", "<eos>", "[EOS]", "<EOS>", "EOS", "[SEP]"),
}
"""Usual names of the special symbols, in our order, by which they are recognized if they are not declared."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer that was read, and the ids that its symbols have in the other tool.

    Attributes:
        tokenizer: as bundles and runs have it.
        module_ids: [symbols of the tokenizer] the id of each there; -1 for a special symbol that is missing there.
        num_module_ids: 1 more than the largest of these ids.
        around: ids of the special symbols that the file's own tokenizer adds around each text.
    """

    tokenizer: Tokenizer
    module_ids: Sequence[int]
    num_module_ids: int
    around: Sequence[int] = ()


def read_vocabulary(
    symbols: Symbols, special: Mapping[str, str] | None = None, kind: SymbolKind = "word", *, field: str
) -> Vocabulary:
    """Returns the vocabulary of a side.

    Args:
        symbols: a list of symbols by their ids, a file with a symbol per line, a `tokenizer.json` of Hugging Face's
            `tokenizers`, or a `.model` of SentencePiece (unigram or BPE).
        special: the names of "pad", "unk", "bos" and "eos" in it. Of those that are missing, the file's own are taken,
            or usual names are recognized.
        kind: for symbols: "word" splits a text at white space, "character" into characters; "tokens" takes no texts,
            only tokens.
        field: the name of the value that is read, for errors: "source_tokenizer", "source.tokenizer".

    Raises:
        UserError: the file can't be read, it has a part that bundles can't have, symbols are missing or doubled, or an
            argument has a wrong type.
    """
    name = field
    if kind not in get_args(SymbolKind):
        raise UserError(f"{name}: its kind is {kind!r}, must be one of {', '.join(get_args(SymbolKind))}")
    if not isinstance(special, Mapping | None):
        raise UserError(f"{name}: its special symbols are {special!r}, must be a dictionary, e.g. {{'eos': '</s>'}}")
    if isinstance(symbols, str | Path):
        path = Path(symbols)
        name = f"{field} {path}"
        if path.suffix == ".model":
            try:
                library, declared = read_sentencepiece(name, path.read_bytes())
            except OSError as error:
                raise UserError(f"{name}: can't be read: {reading_error(error)}") from None
            return _of_library(name, library.to_str(), {**declared, **(special or {})}, finds_special=False)
        text = read_text(path, name)
        if path.suffix == ".json":
            return _of_library(name, text, special)
        symbols = text.removesuffix("\n").split("\n")
        if all(re.fullmatch(r"\S+[ \t][-\d.e]+", line) for line in symbols):
            raise UserError(
                f"{name}: each line has a symbol and a number: write the symbols alone, a line for each id, in their "
                "order; that of a special symbol that the file leaves out, too"
            )
    if isinstance(symbols, Mapping | bytes | set | frozenset) or not isinstance(symbols, Iterable):
        raise UserError(
            f"{name} is of type {type(symbols).__name__}, must be a file, or a list of symbols by their ids, such as "
            "sorted(ids, key=ids.get) of a dictionary, get_itos() of torchtext, or the file that a tokenizer saves"
        )
    ids = list(symbols)
    for place, symbol in enumerate(ids):
        if not isinstance(symbol, str):
            raise UserError(f"{name}[{place}] = {symbol!r}: must be a text")
    if len(set(ids)) != len(ids):
        doubled = next(symbol for place, symbol in enumerate(ids) if symbol in ids[:place])
        raise UserError(f"{name}: the symbol {doubled!r} is there twice")
    module_ids, ordinary = _places(name, dict(zip(ids, range(len(ids)), strict=True)), special)
    return Vocabulary(tokenizer_of(kind, ordinary), module_ids, len(ids))


def tokenizer_for(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Returns the tokenizer of a recipe's side: read from its file, or else trained on texts of the training split.

    Raises:
        UserError: as `read_vocabulary`, or `train_tokenizer`.
    """
    if config.file is None:
        return train_tokenizer(config, texts)
    return read_vocabulary(config.file, field=f"{config.TABLE}.tokenizer").tokenizer


def _places(name: str, ids: Mapping[str, int], special: Mapping[str, str] | None) -> tuple[list[int], list[str]]:
    """Returns the module's ids in the bundle's order, and the ordinary symbols in the module's order."""
    declared = dict(special or {})
    if unknown := declared.keys() - NAMES.keys():
        raise UserError(f"{name}: {min(unknown)!r} is no special symbol: name {', '.join(NAMES)}")
    for role, usual in NAMES.items():
        known = [symbol for symbol in usual if symbol in ids and symbol not in declared.values()]
        if role not in declared and known:
            declared[role] = known[0]
    for role, symbol in declared.items():
        if symbol not in ids:
            raise UserError(f"{name}: {role} is {symbol!r}, which is not among its {len(ids)} symbols")
    ordinary = [symbol for symbol in sorted(ids, key=ids.__getitem__) if symbol not in declared.values()]
    if clash := set(ordinary) & set(SPECIAL_TOKENS):
        raise UserError(
            f"{name}: {min(clash)!r} is a name of special symbols in bundles: declare its role by special symbols, or "
            "give it another name if another symbol has that role"
        )
    if not ordinary:
        raise UserError(f"{name}: the vocabulary has no symbols besides the special ones")
    places = [ids[declared[role]] if role in declared else -1 for role in NAMES]
    return [*places, *(ids[symbol] for symbol in ordinary)], ordinary


def _of_library(name: str, text: str, special: Mapping[str, str] | None, *, finds_special: bool = True) -> Vocabulary:
    """Returns the vocabulary of a tokenizer of Hugging Face's library, with our ids of the special symbols.

    Args:
        finds_special: added tokens that the library calls special, such as language tags, are found within texts.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        model, added = content["model"], content.get("added_tokens") or []
        is_unigram = isinstance(model["vocab"], list)
        scores = dict(model["vocab"]) if is_unigram else {}
        ids: dict[str, int] = (
            {symbol: number for number, (symbol, _) in enumerate(model["vocab"])} if is_unigram else {**model["vocab"]}
        )
        ids |= {token["content"]: token["id"] for token in added}
        unk = [*ids][model["unk_id"]] if is_unigram and model.get("unk_id") is not None else model.get("unk_token")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(
            f"{name}: no tokenizer of Hugging Face's library (tokenizer.json): give symbols alone as a list by their "
            "ids, or in a text file with a symbol per line"
        ) from None
    own, is_processed = {"unk": unk} if unk in ids else {}, bool(content.get("post_processor"))
    module_ids, ordinary = _places(name, ids, {**own, **(special or {})})
    others = set(ordinary)
    new_ids = {symbol: number for number, symbol in enumerate([*SPECIAL_TOKENS, *ordinary])}
    # The graphs and `append_eos` add the special symbols of bundles, which are never found within a text.
    users = [
        {**token, "id": new_ids[token["content"]], "special": False}
        for token in added
        if token["content"] in others and (finds_special or not token.get("special"))
    ]
    if is_unigram:
        worst = min(scores.values(), default=0.0)
        model["vocab"] = [[symbol, scores.get(symbol, worst)] for symbol in new_ids]
        model["unk_id"] = UNK_ID
        never = {*SPECIAL_TOKENS, *(token["content"] for token in added)} - {token["content"] for token in users}
        parts = [content.get("pre_tokenizer"), _never_whole(never)]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [part for part in parts if part]}
    else:
        model["vocab"] = new_ids
        model["unk_token"] = SPECIAL_TOKENS[UNK_ID]
        model.pop("dropout", None)  # merges that training drops at random
    content |= {"added_tokens": users, "post_processor": None, "padding": None, "truncation": None}
    try:
        with quiet_stderr():
            tokenizer = Tokenizer.from_text(json.dumps(content))
            tokenizer.check_encoding()
    except ValueError as error:
        raise UserError(
            f"{name}: bundles can't have this tokenizer: {error}; save it with other components, or give its symbols "
            'as a list of kind "tokens" and segment texts yourself'
        ) from None
    return Vocabulary(tokenizer, module_ids, max(ids.values()) + 1, _around(text, module_ids) if is_processed else ())


def _around(text: str, module_ids: Sequence[int]) -> list[int]:
    """Returns the special symbols that a tokenizer of Hugging Face's library adds around each text."""
    with suppress(Exception):  # a post-processor of another version of the library
        library = LibraryTokenizer.from_str(text)
        library.no_padding()
        return [module_ids.index(number) for number in library.encode("").ids if number in module_ids]
    return []


def _never_whole(symbols: Iterable[str]) -> dict[str, Any]:
    """Returns a step that splits these symbols after their first character, so that a Unigram model never finds them:
    a text with the characters of a control symbol is only text.
    """
    by_first: dict[str, list[str]] = {"<": ["0x[0-9A-F][0-9A-F]>"]}
    for symbol in sorted(symbols):
        if len(symbol) > 1 and symbol not in BYTE_TOKENS:
            by_first.setdefault(symbol[0], []).append(literal(symbol[1:]))
    places = [f"(?<={literal(first)})(?={'|'.join(others)})" for first, others in by_first.items()]
    library = LibraryTokenizer.from_str('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    library.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(places)), "isolated")
    step: dict[str, Any] = json.loads(library.to_str())["pre_tokenizer"]
    return step
