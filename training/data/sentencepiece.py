"""SentencePiece models (.model), read as tokenizers of Hugging Face's `tokenizers` library, without SentencePiece.

A .model is a protobuf message with the pieces and their scores, the normalization and the options of segmentation
(github.com/google/sentencepiece, src/sentencepiece_model.proto). The library has the same two algorithms: Unigram (Kudo
2018), and BPE, whose merges follow from the pieces' scores. Differences between the two are expressed by components of
the library, so that texts get the same ids as by SentencePiece:

    normalization   a map from sequences of characters to others, applied to the longest match. The library's
                    `Precompiled` reads the same map, but drops the marks of some characters and finds no sequence of
                    six bytes. So each mark is separated from its character first, and NFC composes them as the map
                    does. Only marks in another order than Unicode's come out differently.
    user symbols    are matched before everything else. In a Unigram model they have SentencePiece's bonus; in BPE,
                    texts are split at them.
    other symbols   control symbols and bytes are never found in texts.

White space around a text is left out, as by all tokenizers of bundles.
"""

import struct
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import Split

from attendant.runtime.bundle.tokenizer import BYTE_TOKENS, WHITE_SPACE, replace_any
from attendant.runtime.errors import UserError

SPACE: Final = "▁"  # The symbol for a space (U+2581).
SEPARATOR: Final = "\x01"
MARKS: Final = r"(?<=[\s\S])(?=[\p{M}\n\x{200c}\x{200d}\x{ff9e}\x{ff9f}\x{1f3fb}-\x{1f3ff}\x{e0020}-\x{e007f}])"
"""The place before a character that belongs to the one before it."""

CONTROLS: Final = frozenset(c for c in map(chr, range(1, 0x10000)) if unicodedata.category(c) in ("Cc", "Cf"))
"""Characters that SentencePiece's normalizations may leave out."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE_MODEL = 1, 2
OTHER_MODELS: Final = {3: "word", 4: "char"}
STANDARD: Final = frozenset({"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"})
"""SentencePiece's own normalizations, which are reproduced exactly."""

FIELDS: Final[Mapping[str, Sequence[tuple[str, int, str]]]] = {
    "ModelProto": (("pieces", 1, "*Piece"), ("trainer_spec", 2, "Trainer"), ("normalizer_spec", 3, "Normalizer")),
    "Piece": (("piece", 1, "string"), ("score", 2, "float"), ("type", 3, "int32")),
    "Trainer": (
        *(("model_type", 3, "int32"), ("treat_whitespace_as_suffix", 24, "bool"), ("byte_fallback", 35, "bool")),
        *(("unk_id", 40, "int32"), ("bos_id", 41, "int32"), ("eos_id", 42, "int32"), ("pad_id", 43, "int32")),
    ),
    "Normalizer": (
        *(("name", 1, "string"), ("precompiled_charsmap", 2, "bytes"), ("add_dummy_prefix", 3, "bool")),
        *(("remove_extra_whitespaces", 4, "bool"), ("escape_whitespaces", 5, "bool")),
    ),
}
"""The fields that are read: name, number, type; * is repeated."""

DEFAULTS: Final = {
    **{"type": "1", "model_type": "1", "unk_id": "0", "bos_id": "1", "eos_id": "2", "pad_id": "-1"},
    **{"add_dummy_prefix": "true", "remove_extra_whitespaces": "true", "escape_whitespaces": "true"},
}


@cache
def model_class() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(name="attendant_sentencepiece.proto", package="attendant.sentencepiece")
    file.syntax = "proto2"
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.lstrip("*") in FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".attendant.sentencepiece.{kind.lstrip('*')}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if kind.startswith("*"):
                added.label = kinds.LABEL_REPEATED
            if field in DEFAULTS:
                added.default_value = DEFAULTS[field]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("attendant.sentencepiece.ModelProto"))


def read_sentencepiece(name: str, content: bytes) -> tuple[LibraryTokenizer, dict[str, str]]:
    """Returns a model as a tokenizer of the library, whose ids are the model's, and the names of its special symbols.

    Args:
        name: name of the file, for errors.

    Raises:
        UserError: it is no SentencePiece model, or has a part that the library can't express.
    """
    model: Any = model_class()()
    try:
        model.ParseFromString(content)
    except DecodeError:
        model.Clear()
    if not model.pieces or any(not 1 <= piece.type <= BYTE for piece in model.pieces):
        raise UserError(f"{name}: no SentencePiece model, or damaged at {len(content):,} bytes: copy it again")
    trainer, options = model.trainer_spec, model.normalizer_spec
    if kind := OTHER_MODELS.get(trainer.model_type):
        raise _inexpressible(name, f"model_type={kind}", "train it as unigram or bpe, or give its symbols as a list")
    if trainer.treat_whitespace_as_suffix or not options.escape_whitespaces:
        raise _inexpressible(name, "treat_whitespace_as_suffix, or escape_whitespaces=false", "train it without them")
    if any(piece.type == UNUSED for piece in model.pieces):
        raise _inexpressible(name, "a vocabulary with unused pieces", "train it without restrictions of the vocabulary")
    pieces = [piece.piece for piece in model.pieces]
    symbols = [piece.piece for piece in model.pieces if piece.type == USER_DEFINED]
    library = _unigram(model) if trainer.model_type == UNIGRAM else _bpe(name, model)
    steps = list(_normalization(name, options))
    library.normalizer = normalizers.Sequence(steps)
    for symbol in symbols:
        kept = library.normalizer.normalize_str(f"a{symbol}a")
        if kept != f"a{symbol}a":
            raise _inexpressible(
                name,
                f"the user-defined symbol {symbol!r}, which the normalization changes to {kept[1:-1]!r},",
                "train it with a symbol that stays as it is",
            )
    # A piece that continues after a space is found only if words stay together.
    splits = not any(SPACE in piece.piece[1:] for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED))
    prefix = "always" if options.add_dummy_prefix else "never"
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prefix, split=splits)
    library.pre_tokenizer = words
    if symbols and trainer.model_type == BPE_MODEL:
        longest_first = sorted(symbols, key=len, reverse=True)
        pattern = Regex("|".join(literal(symbol) for symbol in longest_first))
        library.pre_tokenizer = pre_tokenizers.Sequence([words, Split(pattern, "isolated")])
    steps_back: list[Any] = [decoders.ByteFallback()] if trainer.byte_fallback else []
    if splits:
        steps_back.append(decoders.Metaspace(replacement=SPACE, prepend_scheme=prefix))
    else:
        # `Metaspace` leaves out all spaces of the first piece.
        steps_back += [decoders.Replace(SPACE, " "), decoders.Fuse()]
        steps_back += [decoders.Strip(" ", 1, 0)] if options.add_dummy_prefix else []
    library.decoder = decoders.Sequence(steps_back)
    library.add_special_tokens([piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL, BYTE)])
    ids = {"pad": trainer.pad_id, "unk": trainer.unk_id, "bos": trainer.bos_id, "eos": trainer.eos_id}
    return library, {role: pieces[number] for role, number in ids.items() if 0 <= number < len(pieces)}


def _inexpressible(name: str, part: str, remedy: str) -> UserError:
    """Returns the error for a part of a model that the library doesn't have."""
    return UserError(f"{name}: {part} can't be expressed by Hugging Face's tokenizers: {remedy}")


def literal(symbol: str) -> str:
    """Returns a regular expression that matches a text literally."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in symbol)


def _unigram(model: Any) -> LibraryTokenizer:
    scores = [piece.score for piece in model.pieces if piece.type == NORMAL] or [0.0]
    # SentencePiece looks for the best score from the smallest positive number on (unigram_model.cc), so it is about 0.
    best, worst = max(0.0, *scores), min(scores)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:
            # SentencePiece's own, which it nearly always prefers (unigram_model.cc).
            return float(len(piece.piece.encode()) * best - 0.1)
        return float(piece.score) if piece.type == NORMAL else worst

    unknown = [number for number, piece in enumerate(model.pieces) if piece.type == UNKNOWN]
    return LibraryTokenizer(
        Unigram(
            [(piece.piece, score(piece)) for piece in model.pieces],
            unk_id=unknown[0] if unknown else None,
            byte_fallback=_has_bytes(model),
        )
    )


def _has_bytes(model: Any) -> bool:
    return bool(model.trainer_spec.byte_fallback) and set(BYTE_TOKENS) <= {piece.piece for piece in model.pieces}


def _bpe(name: str, model: Any) -> LibraryTokenizer:
    """Returns a BPE model: a pair is merged the earlier the higher the score of the piece that it makes."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges = [
        (left, right)
        for merged in sorted(scores, key=lambda piece: (-scores[piece], ids[piece]))
        for place in range(1, len(merged))
        if (left := merged[:place]) in scores and (right := merged[place:]) in scores
    ]
    unknown = [piece.piece for piece in model.pieces if piece.type == UNKNOWN]
    options = {"unk_token": unknown[0] if unknown else None, "fuse_unk": True, "byte_fallback": _has_bytes(model)}
    library = LibraryTokenizer(BPE(ids, merges, **options))
    if any(piece.type == USER_DEFINED and len(piece.piece) > 1 for piece in model.pieces):
        # A user's symbol has no merges: it matches whole. So does every word that is a piece; this must change nothing.
        for piece in scores:
            if [token.value for token in library.model.tokenize(piece)] != [piece]:
                raise _inexpressible(
                    name,
                    f"a BPE model with user-defined symbols whose merges don't reach the piece {piece!r}",
                    "train it as unigram, or without these symbols",
                )
        library = LibraryTokenizer(BPE(ids, merges, ignore_merges=True, **options))
    return library


def _normalization(name: str, options: Any) -> Iterator[Normalizer]:
    """Yields the steps of a model's normalization."""
    if content := options.precompiled_charsmap:
        try:
            applied = normalizers.Precompiled(content)
            composes = applied.normalize_str("e\u0301") == "\xe9"
            left_out = {character for character in CONTROLS if not applied.normalize_str(character)}
        except BaseException as error:  # the library panics, which is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise UserError(f"{name}: its normalization is damaged: copy the model again") from None
        # Characters that the map leaves out go first: the library's NFC fails if `Precompiled` left out a beginning.
        steps = [replace_any(left_out, "")] if left_out else []
        steps += [normalizers.Replace(Regex(MARKS), SEPARATOR), applied]
        steps += [] if SEPARATOR in left_out else [normalizers.Replace(SEPARATOR, "")]
        steps += [normalizers.NFC()] if composes else []
        if options.name not in STANDARD:
            _check_sequences(name, content, normalizers.Sequence(steps))
        yield from steps
    if options.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(" {2,}"), " ")
    outer = literal("".join(sorted(WHITE_SPACE)))
    yield normalizers.Replace(Regex(rf"\A[{outer}]+|[{outer}]+\z"), "")


def _check_sequences(name: str, content: bytes, steps: Normalizer) -> None:
    """Checks the rules of a user's own normalization. Raises UserError: a rule gives another result."""
    for source, target in _rules_of(content):
        if (actual := steps.normalize_str(source)) != target:
            raise UserError(
                f"{name}: its normalization of {source!r} to {target!r} can't be expressed by Hugging Face's "
                f"tokenizers, which make {actual!r}: train it with rules of single characters, or with a normalization "
                f"of SentencePiece itself ({', '.join(sorted(STANDARD))})"
            )


def _rules_of(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a map: a double-array trie (Aoe 1989, as Darts has it), and the texts that it points to."""
    (size,) = struct.unpack_from("<I", content)
    units = struct.unpack_from(f"<{size // 4}I", content, 4)
    texts = content[4 + size :]

    def offset(unit: int) -> int:
        return (unit >> 10) << ((unit & 512) >> 6)

    waiting = [(offset(units[0]), b"")]
    while waiting:
        node, prefix = waiting.pop()
        for byte in range(1, 256):
            place = node ^ byte
            if place < len(units) and units[place] & 0x800000FF == byte:
                child, key = place ^ offset(units[place]), prefix + bytes([byte])
                if units[place] >> 8 & 1:
                    first = units[child] & 0x7FFFFFFF
                    yield key.decode(), texts[first : texts.index(0, first)].decode()
                waiting.append((child, key))
