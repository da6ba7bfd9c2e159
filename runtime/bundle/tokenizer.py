"""Converts text to ids and back, in the `tokenizers` library's own file format.

Every text is normalized first: outer white space and invisible characters never reach a model. A recipe's tokenizers
end their own normalizer with these steps, so a bundle describes them and other programs that read its tokenizers apply
them too. Tokenizers without them (of earlier versions, or imported) get them from the runtime.

Special symbols are ordinary vocabulary entries with fixed ids, not the library's "added tokens": those are matched
inside text, and a literal `</s>` in text is text.

The library's format can describe far more than the tokenizers of models need: a normalizer that replaces a character
by ten, six times, makes a million characters of it. So only components that the recipes and importers use are
accepted, and each may make a text only a little longer. `Tokenizer.check_encoding` measures the growth by
expressions.
"""

import base64
import json
import re
import string
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.normalizers import Normalizer

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.bundle.reading import parse_json

WHITE_SPACE: Final = frozenset(c for c in map(chr, range(0x3001)) if c.isspace())
"""Unicode's white space, and the separators U+001C to U+001F."""

INVISIBLE_TO_KEEP: Final = (
    r"\t-\r\x{1c}-\x{1f}\x{85}\x{600}-\x{605}\x{6dd}\x{70f}\x{890}\x{891}\x{8e2}\x{110bd}\x{110cd}"
)
"""Control characters that are white space, and format characters that are drawn, such as the Arabic number sign."""

JOINED: Final = (
    r"[[\p{L}\p{M}\p{So}\p{Sk}]&&[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Hebrew}"
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]]"
)
"""Characters that a joiner or non-joiner between two of them changes: scripts whose letters join, and emoji."""

APOSTROPHES: Final = "’‘‛ʼʻ′＇´ʹꞌ"
QUOTES: Final = "“”„‟«»‹›‚″＂〝〞〟"
DASHES: Final = "‐‑‒–—―−﹘﹣－"
PLAIN_SPELLINGS: Final = (("'", APOSTROPHES), ('"', QUOTES), ("-", DASHES))
"""ASCII characters, and the typographic characters that they replace."""


def replace_any(characters: Collection[str], replacement: str) -> Normalizer:
    """Returns a step that replaces each of these characters."""
    return normalizers.Replace(Regex(f"[{_listed(characters)}]"), replacement)


def spacing(*, keep_inner: bool = False, kept: Set[str] = frozenset()) -> list[Normalizer]:
    """Returns the steps that remove outer white space and invisible characters.

    Control and format characters are removed: zero-width spaces, soft hyphens, byte order marks, direction marks. A
    joiner (U+200D) or non-joiner (U+200C) stays between letters of scripts that need it, such as Arabic and
    Devanagari, and within emoji; so do the tags of a flag.

    Args:
        keep_inner: white space within a text stays; otherwise each run of it becomes one space.
        kept: characters that stay.
    """
    keeps = INVISIBLE_TO_KEEP + r"\x{200c}\x{200d}\x{e0020}-\x{e007f}" + _listed(kept)
    joiners = _listed({"\u200c", "\u200d"} - kept)
    patterns = [rf"[[\p{{Cc}}\p{{Cf}}\x{{34f}}\x{{3164}}\x{{ffa0}}]&&[^{keeps}]]"]
    patterns += [f"(?<!{JOINED})[{joiners}]", f"[{joiners}](?!{JOINED})"] if joiners else []
    patterns.append(r"(?<![\x{1f3f4}\x{e0020}-\x{e007f}])[\x{e0020}-\x{e007f}]+")
    steps: list[Normalizer] = [normalizers.Replace(Regex("|".join(patterns)), "")]
    outer = _listed(WHITE_SPACE)
    if keep_inner:
        return [*steps, normalizers.Replace(Regex(rf"\A[{outer}]+|[{outer}]+\z"), "")]
    inner = _listed(WHITE_SPACE - (kept - {" "}))
    return [*steps, normalizers.Replace(Regex(f"[{inner}]+"), " "), normalizers.Strip()]


def has_own_spacing(library: LibraryTokenizer) -> bool:
    """Returns whether a tokenizer normalizes white space by itself: then only its own normalizer is used."""
    return library.normalizer is not None and library.normalizer.normalize_str(" a\n") == "a"


def spacing_of(library: LibraryTokenizer, symbols: Collection[str], *, own: bool) -> Normalizer:
    """Returns the spacing that fits a tokenizer.

    For a tokenizer without its own, the characters of its training texts stay: white space in its vocabulary, and the
    characters of its longer symbols. Unknown typographic characters become known ASCII ones.

    Args:
        symbols: of its vocabulary, without the special ones.
        own: whether it normalizes white space by itself.
    """
    if own:
        collapses = library.normalizer.normalize_str("a  b") == "a b"
        return normalizers.Sequence(spacing(keep_inner=not collapses))
    known = set().union(*symbols)
    kept = {character for symbol in symbols if len(symbol) > 1 for character in symbol} | (known & WHITE_SPACE)
    steps = spacing(kept={character for character in kept if not character.isprintable()})
    for plain, typographic in PLAIN_SPELLINGS:
        if plain in known and (unknown := set(typographic) - known):
            steps.append(replace_any(unknown, plain))
    return normalizers.Sequence(steps)


def _listed(characters: Collection[str]) -> str:
    """Returns the characters as the inside of a regular expression's class."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in sorted(characters))


COMPONENTS: Final = {
    "normalizer": {
        *("Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend"),
        *("Precompiled", "Nmt", "BertNormalizer"),
    },
    "pre_tokenizer": {
        *("Sequence", "Split", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel", "Punctuation", "Digits"),
        *("BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"),
    },
    "model": {"BPE", "Unigram", "WordPiece", "WordLevel"},
    "post_processor": {"ByteLevel"},
    "decoder": {
        *("Sequence", "Fuse", "Metaspace", "BPEDecoder", "WordPiece", "ByteLevel", "ByteFallback", "Replace", "Strip")
    },
}
"""The types that each part may have, besides none."""

MAX_COMPONENTS: Final = 32  # Limit of one part, e.g. of the steps of a normalizer.
MAX_OF_A_TYPE: Final = {"NFC": 2, "NFD": 2, "NFKC": 1, "NFKD": 1, "Prepend": 1, "Precompiled": 1, "BertNormalizer": 1}
"""Types that make texts longer: a character may become 18, or by a map of `Precompiled` MAX_GROWTH."""

MULTIPLYING: Final = frozenset({"NFKC", "NFKD", "Precompiled"})
"""`Precompiled` may not be with the others: both would multiply a text's length."""

MAX_INSERTIONS: Final = 8
"""Replacements by an expression, which may match the empty text at every character and so add one to each. A recipe
with all normalization steps has this many."""

MAX_PREPENDED: Final = 4
QUANTIFIED_GROUP: Final = re.compile(r"(?<!\\)\)[*+?{]")
"""A repeated group in an expression: its time may grow exponentially with the text."""


def check_content(text: str) -> None:
    """Checks the text of a tokenizer's file.

    Raises:
        ValueError: it is not a JSON object, or has a component that is not accepted.
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
        if counts["Precompiled"] and (others := MULTIPLYING & counts.keys() - {"Precompiled"}):
            raise ValueError(f"{part}: Precompiled with {min(others)} makes texts longer, may have one of them")


def _components(part: Any) -> Iterator[dict[str, Any]]:
    """Yields a part, and the parts of a sequence."""
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
    if kind == "Precompiled":
        _check_map(part, component.get("precompiled_charsmap"))
    if pattern is None:
        return
    if not isinstance(pattern, dict):
        raise ValueError(f"{part}: {kind} has no pattern")
    if QUANTIFIED_GROUP.search(pattern.get("Regex", "")):
        raise ValueError(f"{part}: the expression {pattern['Regex']!a} repeats a group, which may take too long")
    most = 1 if "Regex" in pattern else len(pattern.get("String", ""))
    if kind == "Replace" and len(content) > most:
        raise ValueError(f"{part}: replaces {most} characters by {len(content)}, which makes texts longer")


def _check_map(part: str, encoded: Any) -> None:
    """Checks the map of a `Precompiled`: the size of its trie, the trie, and the texts that it points to."""
    try:
        content = base64.b64decode(encoded, validate=True)
        texts = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
        longest = max(len(text.decode()) for text in texts)
    except (ValueError, TypeError):
        raise ValueError(f"{part}: the map of Precompiled is damaged") from None
    if longest > MAX_GROWTH:
        raise ValueError(f"{part}: Precompiled makes {longest} characters of one, may make {MAX_GROWTH}")


PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
_NEVER_IN_TEXT = frozenset((PAD_ID, BOS_ID, EOS_ID))

MAX_COMPOSED = 4  # Characters of the longest canonical decomposition in Unicode.


def special_ids(start_id: int) -> SpecialIds:
    """Returns the special symbols of a model whose decoder is first fed `start_id`."""
    return SpecialIds(pad=PAD_ID, unk=UNK_ID, bos=BOS_ID, eos=EOS_ID, start=start_id)


BYTE_TOKENS = tuple(f"<0x{value:02X}>" for value in range(256))
"""The symbols by which a tokenizer with byte fallback spells unknown characters, by the value of the byte."""

GROWING_DECODERS = frozenset({"NoneType", "Fuse", "Metaspace", "BPEDecoder", "WordPiece", "ByteLevel"})
"""The library's decoders for which the text of the first tokens is a prefix of the text of all of them; ByteLevel's
is, except for a last character that is incomplete. So is that of ByteFallback, as `decode` reads bytes."""

UNFINISHED = "\ufffd"
"""The text of bytes that are no complete character."""

JOINER = "\u200d"
LAST_CHARACTER = "\U0010ffff"

PROBES = (" ", "a", "A b", "\x00\t\n", "\xe9\u0301\u6f22", "\U0001f600\u202e\uffff", "</s><unk>", "a1 \u00df." * 64)
"""Texts that every tokenizer must accept, with any vocabulary."""

LENGTHENED = "\ufdfa\u3300\u0390\u0130\xdf\ufb03\U0001d160\u1f82"
"""Characters that normalization expands, U+FDFA most: to 18."""

MAX_TOKENS_PER_BYTE = 4
MAX_GROWTH = 24  # Characters that a normalizer may make of a single one.
NUM_REPEATED = 64


class UnknownTokenError(ValueError):
    """Tokens that are not in the vocabulary, or that a caller may not use.

    Attributes:
        positions: their places in the sequence, from 0.
    """

    def __init__(self, tokens: Sequence[str], positions: Sequence[int]) -> None:
        super().__init__(f"{tokens[positions[0]]!r} at position {positions[0]} is not in the vocabulary")
        self.positions = positions


class Tokenizer:
    """One side's vocabulary. Thread-safe: nothing changes after construction.

    Attributes:
        grows: the text of the first tokens is a prefix of the text of all of them.
        combines: a token may change the last character of the token before it.
        joins_by_blanks: a text is its symbols, joined by blanks.
        continuation: the beginning of every symbol that continues a word, such as "##"; empty if symbols have no such
            mark.
        takes_texts: it segments the texts of requests. If false, a program does so itself, and requests give tokens.
            Such tokenizers split lists of words at single blanks (`CharDelimiterSplit`).
    """

    def __init__(self, library: LibraryTokenizer) -> None:
        """Takes over a trained tokenizer.

        Raises:
            ValueError: a special symbol has a wrong id, the ids are not 0, 1, 2, ..., or it pads or truncates texts.
        """
        self._library = library
        for token_id, token in enumerate(SPECIAL_TOKENS):
            if library.token_to_id(token) != token_id:
                raise ValueError(f"the vocabulary must hold {token} as id {token_id}")
        vocabulary = library.get_vocab()
        self.vocabulary_size: int = len(vocabulary)
        if (largest := max(vocabulary.values())) >= self.vocabulary_size:
            raise ValueError(f"{self.vocabulary_size} symbols, and the id {largest}: ids must be 0, 1, 2, ...")
        if library.padding is not None or library.truncation is not None:
            raise ValueError("padding and truncation must be unset: a source is tokenized as it is")
        self._tokens: list[str] = [
            library.id_to_token(i) or SPECIAL_TOKENS[UNK_ID] for i in range(self.vocabulary_size)
        ]
        symbols = self._tokens[len(SPECIAL_TOKENS) :]
        self._longest = max(map(len, symbols), default=1)
        self._spaces_itself = has_own_spacing(library)
        self._spacing = spacing_of(library, symbols, own=self._spaces_itself)
        content = json.loads(library.to_str())
        decoders = _decoders_of(content)
        self._bytes: dict[str, int] = {}
        if content["model"].get("byte_fallback") and "ByteFallback" in decoders:
            self._bytes = {token: value for value, token in enumerate(BYTE_TOKENS) if token in vocabulary}
            decoders.remove("ByteFallback")
        self._byte_ids = frozenset(vocabulary[token] for token in self._bytes)
        self.joins_by_blanks: bool = library.decoder is None
        self.continuation: str = content["model"].get("continuing_subword_prefix") or ""
        is_list = isinstance(library.pre_tokenizer, pre_tokenizers.CharDelimiterSplit)
        self.takes_texts: bool = not (is_list and isinstance(library.model, models.WordLevel))
        self.grows: bool = GROWING_DECODERS.issuperset(decoders)
        self.combines: bool = (
            "ByteLevel" in decoders
            or bool(self._bytes)
            or (
                # Without a decoder, there is a blank between two tokens.
                not self.joins_by_blanks and any(s.endswith(JOINER) or combines(s[:1]) for s in symbols)
            )
        )

    @classmethod
    def from_text(cls, text: str) -> "Tokenizer":
        """Reads the library's JSON. Raises ValueError if it is invalid, or as the constructor does."""
        try:
            check_content(text)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a tokenizer file: a component is malformed: {error}") from None
        try:
            library = LibraryTokenizer.from_str(text)
        except BaseException as error:  # the library raises plain Exception for every malformed file, or panics
            if not _is_fault_of_file(error):
                raise
            raise ValueError(f"not a tokenizer file: {error}") from None
        return cls(library)

    def check_encoding(self) -> None:
        """Tokenizes PROBES, which no vocabulary covers, and repetitions of each character that may grow.

        Raises:
            ValueError: it fails, or makes a text far longer.
        """
        normalizer = self._library.normalizer
        named = set() if normalizer is None else set(normalizer.__getstate__().decode())
        for character in sorted(named.union(LENGTHENED, map(chr, range(128)))) if normalizer is not None else ():
            if len(normalizer.normalize_str(character * NUM_REPEATED)) > MAX_GROWTH * NUM_REPEATED:
                raise ValueError(f"normalizing makes more than {MAX_GROWTH} characters of {character!a}")
        for text in (*PROBES, *(character * NUM_REPEATED for character in string.printable)):
            try:
                num_tokens, most = len(self.encode(text)), MAX_TOKENS_PER_BYTE * len(text.encode())
            except BaseException as error:
                if not _is_fault_of_file(error):
                    raise
                raise ValueError(f"{text!a} can't be tokenized: {error}") from None
            if num_tokens > most:
                raise ValueError(f"{text!a} becomes {num_tokens} tokens, more than {most}")

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Reads a file, as `from_text`. Raises OSError, too, if it can't be read."""
        return cls.from_text(path.read_text(encoding="utf-8"))

    def bound_cache(self, num_words: int) -> None:
        """Sets how many words the library caches with their merges; its default is 10,000, of up to 8 KiB each.

        This limits the memory of a tokenizer whose texts come from anywhere.
        """
        model = self._library.model
        if isinstance(model, models.BPE | models.Unigram):
            model._resize_cache(num_words)

    def to_text(self) -> str:
        """Returns the library's JSON on one line (half the size of its indented form): a run's or bundle's file."""
        return str(self._library.to_str()) + "\n"

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without BOS or EOS. Never fails: unknown parts become UNK."""
        # Not the library's `encode`, which also computes the place of each token in the text and takes twice as long.
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes many texts at once on the library's own threads."""
        try:
            # The library's own normalizer does it without copying the text.
            spaced = list(texts) if self._spaces_itself else list(map(self.spaced, texts))
            encodings = self._library.encode_batch_fast(spaced, add_special_tokens=False)
        except BaseException as error:
            if isinstance(error, Exception) or not _is_fault_of_file(error):
                raise
            # No caller catches the library's panic, which is no Exception.
            raise RuntimeError("the tokenizer can't take this text") from None
        return [_as_text(encoding.ids) for encoding in encodings]

    def spaced(self, text: str) -> str:
        """Returns a text without outer white space and invisible characters, as the tokenizer reads it otherwise.

        White space within it becomes single spaces, unless the tokenizer keeps it as it is written.
        """
        if text.isascii() and text.isprintable() and "  " not in text:
            return text.strip()
        return str(self._spacing.normalize_str(text))

    def max_characters(self, num_tokens: int) -> int:
        """Returns an upper bound of the characters of `num_tokens` tokens; longer texts are refused untokenized.

        A token has at most the characters of the longest symbol and a blank, and normalization may have composed each
        of MAX_COMPOSED. The bound does not hold for unknown words of a word tokenizer: a text of few tokens is refused
        if its words are on average longer than the longest known one.
        """
        return num_tokens * MAX_COMPOSED * (self._longest + 1)

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        """Returns the ids of tokens.

        Raises:
            UnknownTokenError: a token is not in the vocabulary, or is PAD, BOS or EOS.
        """
        ids = [self._library.token_to_id(token) for token in tokens]
        if unknown := [place for place, token_id in enumerate(ids) if token_id is None or token_id in _NEVER_IN_TEXT]:
            raise UnknownTokenError(tokens, unknown)
        return [token_id for token_id in ids if token_id is not None]

    def opening(self, text: str) -> tuple[list[int], str]:
        """Splits the beginning of a text into tokens that no continuation changes, and its last word.

        Returns:
            The ids of the words before, UNK for unknown parts, and the last word as symbols spell it; empty if the text
            ends with a blank that no symbol spells.
        """
        library = self._library
        normalized = text if self._spaces_itself else self.spaced(text)
        if library.normalizer is not None:
            normalized = library.normalizer.normalize_str(normalized)
        if text[-1:].isspace() and normalized:
            normalized += " "
        if library.pre_tokenizer is None:
            return [], normalized
        places = library.pre_tokenizer.pre_tokenize_str(normalized)
        words = [word for word, _ in places]
        if not places or places[-1][1][1] < len(normalized):
            words.append("")
        return [token_id for word in words[:-1] for token_id in self.spelled(word)], words[-1]

    def spelled(self, word: str) -> list[int]:
        """Returns the ids of a word that `opening` returned; UNK for unknown parts."""
        return _as_text([token.id for token in self._library.model.tokenize(word)]) if word else []

    def id_of(self, token: str) -> int | None:
        """Returns the id of a symbol that a text may contain; None if there is none."""
        token_id = self._library.token_to_id(token)
        return None if token_id is None or token in SPECIAL_TOKENS or token in self._bytes else token_id

    def ids_beginning_with(self, beginning: str) -> list[int]:
        symbols, ids = self._in_order
        first = bisect_left(symbols, beginning)
        return ids[first : bisect_left(symbols, beginning + LAST_CHARACTER, first)]

    @cached_property
    def _in_order(self) -> tuple[list[str], list[int]]:
        """Returns the symbols that a text may contain, sorted, and their ids."""
        never = {*SPECIAL_TOKENS, *self._bytes}
        entries = sorted((token, token_id) for token_id, token in enumerate(self._tokens) if token not in never)
        return [token for token, _ in entries], [token_id for _, token_id in entries]

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        return list(map(self._tokens.__getitem__, ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids. PAD, BOS and EOS are left out; UNK is shown."""
        kept = list(ids)
        if not _NEVER_IN_TEXT.isdisjoint(kept):
            kept = [token_id for token_id in kept if token_id not in _NEVER_IN_TEXT]
        if self._byte_ids and not self._byte_ids.isdisjoint(kept):
            return self.decode_tokens(self.tokens_of(kept))
        return str(self._library.decode(kept, skip_special_tokens=False))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        """Returns the text of tokens, some of which may be in no vocabulary. Bytes that are not UTF-8 become U+FFFD."""
        decoder = self._library.decoder
        if decoder is None:
            return " ".join(tokens)
        return str(decoder.decode(self._with_characters(tokens) if self._bytes else list(tokens)))

    def _with_characters(self, tokens: Sequence[str]) -> list[str]:
        """Returns the tokens, with each run of bytes replaced by the characters that it spells.

        The library's ByteFallback makes U+FFFD of every byte of a run that is not UTF-8 throughout, so a last byte
        would take back the characters before it.
        """
        characters: list[str] = []
        for are_bytes, run in groupby(tokens, key=self._bytes.__contains__):
            part = list(run)
            characters += bytes(map(self._bytes.__getitem__, part)).decode(errors="replace") if are_bytes else part
        return characters

    def words_of(self, text: str) -> list[str]:
        """Returns the part of the text that each of its tokens represents, also for UNK."""
        text = text if self._spaces_itself else self.spaced(text)
        offsets = self._library.encode(text, add_special_tokens=False).offsets
        begins = {begin for begin, _ in offsets}
        pieces = list[str]()
        for begin, last in offsets:
            end = last
            # A mark that normalization composes with a letter has no place of its own.
            while begin < end < len(text) and end not in begins and _composes(text[begin:end], text[end]):
                end += 1
            # Between marks, so that a single blank stays: some tokenizers count the blank before a word as part of it.
            piece = self.spaced(f"'{text[begin:end]}'")[1:-1]
            pieces.append(piece.strip() or piece)
        return pieces


def _composes(text: str, mark: str) -> bool:
    """Returns whether the last character of a text and a mark after it are one composed character."""
    return len(unicodedata.normalize("NFC", text + mark)) == len(unicodedata.normalize("NFC", text))


def combines(character: str, before: str = "") -> bool:
    """Returns whether a character belongs to the one before it: a mark, a joiner or joined character, a skin tone."""
    if not character:
        return False
    mark = unicodedata.category(character).startswith("M") or "\U0001f3fb" <= character <= "\U0001f3ff"
    return mark or JOINER in (character, before)


def _decoders_of(content: dict[str, Any]) -> list[str]:
    """Returns the types of a tokenizer's decoders, those of a sequence one by one."""
    decoder = content["decoder"] or {"type": "NoneType"}
    return [part["type"] for part in decoder.get("decoders", [decoder])]


def _as_text(ids: list[int]) -> list[int]:
    """Replaces special symbols by UNK: a `</s>` in a text is text."""
    if _NEVER_IN_TEXT.isdisjoint(ids):
        return ids
    return [UNK_ID if token_id in _NEVER_IN_TEXT else token_id for token_id in ids]


def _is_fault_of_file(error: BaseException) -> bool:
    """Returns whether it is the library's. Its panics derive from BaseException; their class can't be imported."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
