"""The `[source]` and `[target]` tables of a recipe, and the training of a tokenizer.

Normalization uses the steps of the `tokenizers` library, so a bundle's tokenizer files contain them. The special
symbols are entries of the vocabulary like any other, with the ids 0 to 3, and never the library's "added tokens": those
are searched for inside texts, and a literal `</s>` in a text is text (runtime/bundle/tokenizer.py).
"""

import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.normalizers import Normalizer

from attendant.runtime.bundle.tokenizer import (
    APOSTROPHES,
    BOS_ID,
    BYTE_TOKENS,
    DASHES,
    EOS_ID,
    QUOTES,
    SPECIAL_TOKENS,
    UNK_ID,
    Tokenizer,
    replace_any,
    spacing,
)
from attendant.runtime.errors import UserError
from attendant.runtime.requests import WORD_MARKS
from attendant.training.table import Table, as_written

TokenizerKind = Literal["character", "word", "bpe", "unigram"]
FILE_TYPES: Final = (".json", ".model", ".txt")
SUBWORDS: Final = ("bpe", "unigram")
NormalizationName = Literal[
    "apostrophes",
    "quotes",
    "drop_quotes",
    "nfc",
    "nfkc",
    "dashes",
    "trim_punctuation",
    "drop_punctuation",
    "spell_capitals",
    "strip_accents",
    "lowercase",
]

# JavaScript has all elements of these expressions too, for bundles in browsers. Bounded runs keep their time linear in
# the length of the text. Invisible characters are removed first, so that this one can mark the end of a quotation.
END: Final = "\x01"
MAX_TRIMMED: Final = 100  # Characters of a text between the marks that enclose it.
MAX_QUOTED: Final = 40  # Characters of a word between two apostrophes.
MAX_BRACKETED: Final = 20  # Letters of a part of a word in brackets.


def _trim_punctuation() -> list[Normalizer]:
    """Returns the steps that remove punctuation around a whole text: `(text)`, `"text"`, `**text**`, `text...`

    One pair that encloses the text is removed, and then a semicolon, colon or ellipsis at its end.
    """
    text_end = r"(?![\s\S])"
    final = rf"(?=[.,;:!?…]{{0,8}}{text_end})"
    quotes, brackets = r"(?:[\"']|[*_`]{1,3})", r"[)\]}]"
    in_quotes = "|".join(rf"\A[\"'*_`][\s\S]{{{length}}}" for length in range(1, MAX_TRIMMED + 1))
    in_brackets = "|".join(rf"\A[(\[{{][^()\[\]{{}}]{{{length}}}" for length in range(1, MAX_TRIMMED + 1))
    # Few characters are at the end of a text: look for it first.
    closing = rf"(?={quotes}{final})(?<={in_quotes}){quotes}|(?={brackets}{final})(?<={in_brackets}){brackets}"
    return [
        normalizers.Strip(),
        normalizers.Replace(Regex(closing), END),
        normalizers.Replace(Regex(rf"\A(?:[\"'(\[{{]|[*_`]{{1,3}})(?=[^{END}]{{1,{MAX_TRIMMED}}}{END})"), ""),
        normalizers.Replace(END, ""),
        normalizers.Replace(Regex(rf"(?:[;:…]{{1,8}}|(?<!\.)\.{{2,8}}){text_end}"), ""),
    ]


APOSTROPHE: Final = f"['{APOSTROPHES}]"
MARK: Final = rf"[\p{{P}}<>`&&[^\-.&@#%‰/\\'{APOSTROPHES}]]"
EDGE: Final = f"[{MARK}.-]"
QUOTED_LENGTHS: Final = range(2, MAX_QUOTED + 1)
LOW_QUOTED: Final = "|".join(rf"‚[^\s‚]{{{length}}}" for length in QUOTED_LENGTHS)
LOW_CLOSED: Final = rf"(?={APOSTROPHE})(?<={LOW_QUOTED}){APOSTROPHE}+(?={EDGE}{{0,16}}(?!\S))"
"""The apostrophe after a word in low quotes, as in German: ‚word‘."""


def _without_punctuation() -> list[Normalizer]:
    """Returns the steps that remove punctuation around words: `(word)`, `**word**`, `'word'`, `word.`, `word(s)`

    Apostrophes at one end of a word stay (`'tis`, `goin'`), and so do a single period before it (`.net`), a hyphen
    before a number, marks that are read aloud (`50%`), and the last period of letters with a period each (`U.S.`).
    """
    any_mark = f"[{MARK}{APOSTROPHE}.-]"
    quoted = "|".join(rf"{start}{APOSTROPHE}\S{{{length}}}" for start in (r"\A", r"\s") for length in QUOTED_LENGTHS)
    initials = "|".join(rf"{start}\p{{L}}\.\p{{L}}" for start in (r"\A", r"\P{L}"))
    last = rf"(?<!{EDGE})(?!(?<={initials})\.){EDGE}"
    after = "|".join(rf"(?<={start}\p{{L}}\.\p{{L}}\.){any_mark}" for start in (r"\A", r"\P{L}"))
    hyphens = normalizers.Replace(Regex(rf"(?<!\S)-+(?=[\p{{L}}{APOSTROPHE}])"), "")  # Before and in quotation marks.
    letter = r"[\p{L}\p{M}]"
    opened = "|".join(rf"\({letter}{{{length}}}" for length in range(1, MAX_BRACKETED + 1))
    brackets = rf"(?<={letter})\((?={letter}{{1,{MAX_BRACKETED}}}\))|(?=\))(?<={opened})\)(?={letter})"
    # Each look-behind is tried only at places that have the mark itself.
    return [
        normalizers.Replace(Regex(LOW_CLOSED), ""),
        normalizers.Replace(Regex(brackets), ""),
        normalizers.Replace(Regex(rf"(?<!\S){any_mark}*(?:{MARK}|\.\.)"), ""),
        hyphens,
        normalizers.Replace(Regex(rf"(?={APOSTROPHE})(?<={quoted}){APOSTROPHE}+(?={EDGE}{{0,16}}(?!\S))"), END),
        normalizers.Replace(Regex(rf"(?<!\S){APOSTROPHE}{{1,16}}(?=[^\s{END}]{{2,{MAX_QUOTED}}}{END})"), ""),
        normalizers.Replace(END, ""),
        hyphens,
        normalizers.Replace(Regex(rf"(?={any_mark})(?:{last}|{after}){any_mark}{{0,64}}(?!\S)"), ""),
    ]


MAX_CAPITALS: Final = 6  # Capitals that are spelled within a word.


def _spelled_capitals() -> list[Normalizer]:
    """Returns the step that writes periods between capitals next to small letters: `Chat.G.P.T`, `D.V.D.s`

    Before small letters of the same word there are at least three capitals (`N.Y.Times`, not `McDonald`); those before
    a final `s` alone are two or more. Words in capitals alone stay.
    """
    capital, small = r"\p{Lu}", r"\p{Ll}"
    few = f"{{1,{MAX_CAPITALS - 2}}}"
    after = "|".join(rf"{small}{capital}{{{length}}}" for length in range(1, MAX_CAPITALS))
    plural = r"s(?![\p{L}\p{M}])"
    places = (
        rf"(?<={small})(?={capital}{{2}})",
        rf"(?<={after})(?={capital})",
        rf"(?<={capital})(?={capital}{few}(?:{small}{{2}}|{plural}))",
        rf"(?<={capital}{{2}})(?={plural})",
    )
    return [normalizers.Replace(Regex("|".join(places)), ".")]


# The order in which the steps are applied. NFKC decomposes some apostrophes and makes some dashes (of ⁻).
ORDER: Final[tuple[NormalizationName, ...]] = get_args(NormalizationName)
STEPS: Final[Mapping[NormalizationName, Sequence[Normalizer]]] = {
    "apostrophes": [replace_any(APOSTROPHES, "'")],
    "quotes": [normalizers.Replace(Regex(f"[{QUOTES}]|{LOW_CLOSED}"), '"')],
    "drop_quotes": [normalizers.Replace(Regex(f'[{QUOTES}"]|{LOW_CLOSED}'), "")],
    "nfc": [normalizers.NFC()],
    "nfkc": [normalizers.NFKC()],
    "dashes": [replace_any(DASHES, "-")],
    "trim_punctuation": _trim_punctuation(),
    "drop_punctuation": _without_punctuation(),
    "spell_capitals": _spelled_capitals(),
    "strip_accents": [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()],
    "lowercase": [
        normalizers.Lowercase(),
        # The library lower-cases one character at a time: İ becomes i and a combining dot, and every Σ a σ.
        normalizers.Replace("i\u0307", "i"),
        normalizers.Replace(Regex(r"(?<=[\p{L}\p{M}])σ(?![\p{L}\p{M}])"), "ς"),
    ],
}

WORD_START: Final = "▁"  # The symbol of bpe and unigram for the space before a word (U+2581).
# Merges stay inside of these: a word, a single digit, a run of punctuation, each with the space before it.
BPE_WORDS = r"▁?[\p{L}\p{M}]+|▁?\p{N}|▁?[^\p{L}\p{M}\p{N}▁]+|▁"
DEFAULT_SUBWORDS = 8000
FEWEST_CHARACTERS = 8  # Characters that a vocabulary of subwords must have room for, unless the texts have fewer.
COVERED_CHARACTERS = 0.9995  # Share of a text's characters with entries, despite bytes; SentencePiece's default.
MAX_ENTRIES = 2**31 - 1  # The largest number that the trainers take.
MAX_WORD_BYTES = 2**30  # The most that SentencePiece takes.


def in_order(names: Iterable[NormalizationName]) -> tuple[NormalizationName, ...]:
    """Returns the names in the order in which their steps are applied, each once."""
    return tuple(sorted(set(names), key=ORDER.index))


def normalization_steps(
    names: Iterable[NormalizationName], *, keep_spaces: bool, marks_words: bool
) -> list[Normalizer]:
    """Returns the steps of a tokenizer's normalizer.

    Invisible characters are removed first: a letter's accent, or a word's end, may follow one. White space comes last,
    because NFKC makes some.

    Args:
        keep_spaces: white space within a text stays as it is written.
        marks_words: the tokenizer writes WORD_START for a space. One in a text is a space too: no tokenizer could
            distinguish them.
    """
    invisible, *white_space = spacing(keep_inner=keep_spaces)
    steps = [step for name in in_order(names) for step in STEPS[name]]
    steps += [normalizers.Replace(WORD_START, " ")] * marks_words
    return [invisible, *steps, *white_space]


class TokenizerConfig(Table):
    """The tokenizer of one side.

    Attributes:
        tokenizer: "character": each character is a symbol, spaces included; "word": texts are split at white space;
            "bpe": characters are merged within words (Sennrich et al. 2016); "unigram": words are split into their most
            probable parts (Kudo 2018; needs SentencePiece: pip install sentencepiece). Or the file of an existing
            tokenizer, which is used unchanged: Hugging Face's tokenizer.json, a .model of SentencePiece, or a .txt with
            one word per line; then the other keys are left out.
        vocabulary_size: largest number of entries, including the four special symbols. If None, 8000 for bpe and
            unigram, otherwise no limit. The rarest symbols beyond it are unknown to the model.
        min_frequency: a symbol (unigram: a character; bpe: a character or a merge) that occurs less often in the
            training split is not in the vocabulary.
        normalize: differences of spelling that the tokenizer removes from every text, in training and in use. "nfc":
            Unicode's normal form C, in which a letter with its accent is one character; "nfkc": form KC, which also
            resolves ligatures and fullwidth letters; "apostrophes", "quotes" and "dashes": typographic ones become
            those of ASCII; "drop_quotes": removes double quotes; "trim_punctuation": removes quotation marks,
            brackets or emphasis around the whole text, and a final semicolon, colon or ellipsis; "drop_punctuation":
            removes punctuation around words, such as commas, brackets and final periods; "spell_capitals": writes
            periods between capitals within a word (ChatGPT, DVDs), so that a model can learn that they are spelled;
            "strip_accents": removes combining marks, in every script; "lowercase": capital letters become small ones,
            İ becomes i, and a Σ at a word's end becomes ς. They are applied in a fixed order. White space and invisible
            characters are always normalized, see docs/training.md.
        byte_fallback: bpe and unigram spell a character outside the vocabulary as its UTF-8 bytes, which take 256
            entries, so that no character of a text is lost. In training, the rarest characters of the training split,
            0.05 % of all, are spelled in this way too, so that the model learns it.
        keep_spaces: keeps white space within a text (double spaces, tabs, no-break spaces) as written. If false, each
            run of it becomes one space. White space around a text is always removed.
    """

    TABLE: ClassVar[str] = "tokenizer"
    """Its name in a recipe."""

    tokenizer: TokenizerKind | str
    vocabulary_size: Annotated[int, Field(gt=len(SPECIAL_TOKENS), le=MAX_ENTRIES)] | None = None
    min_frequency: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 1
    normalize: tuple[NormalizationName, ...] = ("nfc",)
    keep_spaces: bool = False
    byte_fallback: bool = False

    @model_validator(mode="before")
    @classmethod
    def earlier_keys_are_read(cls, table: Any) -> Any:
        """Returns the table with `normalize` if an earlier version wrote it, with `lowercase` and `nfc`."""
        if not isinstance(table, Mapping) or table.keys().isdisjoint(("lowercase", "nfc")):
            return table
        former = {name: value for name, value in table.items() if name in ("lowercase", "nfc")}
        for name, value in former.items():
            if not isinstance(value, bool):
                raise ValueError(f"{name} = {as_written(value)}: must be true or false")
            if "normalize" in table:
                raise ValueError(
                    f"normalize takes the place of {name} = {str(value).lower()}: leave {name} out, and write the "
                    "names of all steps into normalize"
                )
        chosen = (former.get("nfc", True) and "nfc", former.get("lowercase", False) and "lowercase")
        others = {name: value for name, value in table.items() if name not in former}
        return others | {"normalize": [name for name in chosen if name]}

    @field_validator("normalize")
    @classmethod
    def order_does_not_matter(cls, value: tuple[NormalizationName, ...]) -> tuple[NormalizationName, ...]:
        return in_order(value)

    @field_validator("tokenizer", mode="before")
    @classmethod
    def kind_or_file(cls, value: Any) -> Any:
        kinds = get_args(TokenizerKind)
        if not isinstance(value, str) or (value not in kinds and Path(value).suffix not in FILE_TYPES):
            raise ValueError(f"must be one of {', '.join(kinds)}, or a file ({', '.join(FILE_TYPES)})")
        return value

    @property
    def file(self) -> str | None:
        """The file of a tokenizer that is taken as it is; None if one is trained."""
        return None if self.tokenizer in get_args(TokenizerKind) else self.tokenizer

    @model_validator(mode="after")
    def keys_have_an_effect(self) -> Self:
        for name, field in TokenizerConfig.model_fields.items() if self.file is not None else ():
            value = getattr(self, name)
            if name != "tokenizer" and value != field.default:
                raise ValueError(
                    f"{self.TABLE}.{name} = {as_written(value)} is of a tokenizer that is trained, and "
                    f"{self.TABLE}.tokenizer is the file {self.file}: leave {name} out"
                )
        if self.keep_spaces and self.tokenizer == "word":
            raise ValueError(
                f'{self.TABLE}.keep_spaces = true means nothing to {self.TABLE}.tokenizer = "word", which loses the '
                'white space between words: leave it out, or take "character", "bpe" or "unigram"'
            )
        if self.byte_fallback and self.tokenizer not in SUBWORDS:
            raise ValueError(
                f"{self.TABLE}.byte_fallback = true spells characters in bytes, and {self.TABLE}.tokenizer = "
                f'"{self.tokenizer}": set it to "bpe" or "unigram", or leave byte_fallback out'
            )
        return self


class SourceConfig(TokenizerConfig):
    """`[source]`.

    Attributes:
        append_eos: every source ends with EOS.
    """

    TABLE = "source"

    append_eos: bool = True


class TargetConfig(TokenizerConfig):
    """`[target]`. EOS always ends a target: the model has to learn to stop."""

    TABLE = "target"


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Returns a tokenizer with the vocabulary of `texts`, which must be of the training split only.

    Args:
        config: configuration of a tokenizer that is trained, not of a file.
        texts: bpe and unigram read them twice: first the characters are counted.

    Raises:
        UserError: the texts leave no symbol, vocabulary_size has no room for a few characters, or SentencePiece is
            missing.
    """
    steps = normalization_steps(
        config.normalize, keep_spaces=config.keep_spaces, marks_words=config.tokenizer in SUBWORDS
    )
    library = _untrained(cast(TokenizerKind, config.tokenizer), steps, byte_fallback=config.byte_fallback)
    if config.tokenizer in SUBWORDS:
        texts = list(texts) if iter(texts) is texts else texts
        size = config.vocabulary_size or DEFAULT_SUBWORDS
        alphabet = [WORD_START, *_frequent_characters(library, texts, config, size)]
        learn = _learn_merges if config.tokenizer == "bpe" else _learn_pieces
        learn(library, config, texts, size, alphabet)
    else:
        _count_symbols(library, config, texts)
    content = json.loads(library.to_str()) | {"added_tokens": []}
    tokenizer = Tokenizer(LibraryTokenizer.from_str(json.dumps(content)))
    if tokenizer.vocabulary_size == len(SPECIAL_TOKENS):
        raise _no_symbol(config)
    return tokenizer


def _no_symbol(config: TokenizerConfig) -> UserError:
    if config.min_frequency == 1:
        return UserError(
            f"the {config.TABLE}s of the training split have no characters except white space, "
            f"invisible ones and those that {config.TABLE}.normalize removes"
        )
    return UserError(
        f"no symbol occurs {config.TABLE}.min_frequency = {config.min_frequency} times in the training split: lower "
        "min_frequency"
    )


def tokenizer_of(
    kind: Literal["character", "word", "tokens"], symbols: Iterable[str], steps: Sequence[normalizers.Normalizer] = ()
) -> Tokenizer:
    """Returns a tokenizer with a known vocabulary.

    Args:
        kind: "tokens": texts are lists of tokens, joined by blanks; requests must give tokens (Tokenizer.takes_texts).
        symbols: without the special ones, by their ids from 4 on.
        steps: steps of the normalizer.
    """
    library = _untrained(kind, steps)
    library.model = _vocabulary_of(symbols)
    return Tokenizer(library)


def _untrained(
    kind: TokenizerKind | Literal["tokens"], steps: Sequence[normalizers.Normalizer], *, byte_fallback: bool = False
) -> LibraryTokenizer:
    unk = SPECIAL_TOKENS[UNK_ID]
    match kind:
        case "character":
            library = LibraryTokenizer(models.WordLevel(unk_token=unk))
            library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            library.decoder = decoders.Fuse()
        case "tokens":
            library = LibraryTokenizer(models.WordLevel(unk_token=unk))
            library.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
        case "word":
            # Without a decoder the library joins by spaces.
            library = LibraryTokenizer(models.WordLevel(unk_token=unk))
            library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        case "bpe" | "unigram":
            library = LibraryTokenizer(
                models.BPE(unk_token=unk, byte_fallback=byte_fallback) if kind == "bpe" else models.Unigram()
            )
            library.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False),
                    pre_tokenizers.Split(Regex(BPE_WORDS), "isolated"),
                ]
            )
            library.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
            if byte_fallback:
                library.decoder = decoders.Sequence([decoders.ByteFallback(), library.decoder])
    if steps:
        library.normalizer = normalizers.Sequence(list(steps))
    return library


def _learn_merges(
    library: LibraryTokenizer, config: TokenizerConfig, texts: Iterable[str], size: int, alphabet: Sequence[str]
) -> None:
    # No merge can spell a special symbol: each of them mixes punctuation with letters, which BPE_WORDS keeps apart.
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=config.min_frequency,
        special_tokens=_fixed_tokens(config),
        # The limit alone would choose among equally frequent characters at random.
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer=trainer)


def _learn_pieces(
    library: LibraryTokenizer, config: TokenizerConfig, texts: Iterable[str], size: int, alphabet: Sequence[str]
) -> None:
    """Learns a Unigram model of the words of texts, each with its count, as `_learn_merges` sees them.

    SentencePiece learns it: the library's own trainer gives other pieces each time.
    """
    try:
        import sentencepiece  # noqa: PLC0415
    except ImportError:
        raise UserError(
            f'{config.TABLE}.tokenizer = "unigram" is learned by SentencePiece, which is missing: pip install '
            "sentencepiece"
        ) from None
    # SentencePiece reads tabs and line feeds, which texts have if their spaces are kept, as columns and rows.
    alone = [symbol for symbol in alphabet if symbol in "\t\n\x1f▅"]  # The others have a meaning within it.
    alphabet = [symbol for symbol in alphabet if symbol not in alone]
    known = re.compile(f"[{''.join(map(re.escape, alphabet))}]+")
    words: Counter[str] = Counter()
    for text in texts:
        for word, _ in library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text)):
            words.update(known.findall(word))
    fixed = [*_fixed_tokens(config), *alone]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".tsv") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in sorted(words.items()))
        file.flush()
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            input=file.name,
            input_format="tsv",
            model_writer=written,
            # Its own symbol of unknown characters is not among ours.
            vocab_size=max(size - len(fixed), len(alphabet)) + 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            # Longer words, as of scripts without spaces, would be left out.
            max_sentence_length=MAX_WORD_BYTES,
            # The library's steps have decided which texts may be one piece.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            split_by_unicode_script=False,
            split_by_number=False,
            bos_id=-1,
            eos_id=-1,
            # Several threads add in other orders.
            num_threads=1,
            minloglevel=2,
        )
    learned = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = {
        learned.id_to_piece(number): learned.get_score(number)
        for number in range(learned.get_piece_size())
        if learned.id_to_piece(number) not in fixed
    }
    # No piece spells a special symbol or a byte: BPE_WORDS keeps their punctuation and letters apart.
    worst = min(pieces.values())
    library.model = models.Unigram(
        [*((token, worst) for token in fixed), *pieces.items()], unk_id=UNK_ID, byte_fallback=config.byte_fallback
    )


def _frequent_characters(
    library: LibraryTokenizer, texts: Iterable[str], config: TokenizerConfig, size: int
) -> list[str]:
    """Returns the characters that become entries, the most frequent first, up to the size of the vocabulary.

    Args:
        size: size of the vocabulary, the special symbols, bytes and WORD_START included.

    Raises:
        UserError: no character is frequent enough; there is room for fewer than FEWEST_CHARACTERS of them.
    """
    counts: Counter[str] = Counter()
    normalizer = library.normalizer
    for text in texts:
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    for blank in (" ", WORD_START):
        counts.pop(blank, None)
    frequent = [symbol for symbol, count in counts.items() if count >= config.min_frequency]
    if not frequent:
        raise _no_symbol(config)
    num_others = len(_fixed_tokens(config)) + len(WORD_START)
    fewest = min(FEWEST_CHARACTERS, len(frequent))
    if size < num_others + fewest:
        bytes_too = "256 bytes, " if config.byte_fallback else ""
        fixed = f"{len(SPECIAL_TOKENS)} special symbols, {bytes_too}the sign of a space"
        raise UserError(
            f"{config.TABLE}.vocabulary_size = {size} has no room for the {fixed} and {fewest} characters: set it to "
            f"{num_others + fewest} or more; all characters need {num_others + len(frequent):,}"
        )
    frequent.sort(key=lambda symbol: (-counts[symbol], symbol))
    if config.byte_fallback:
        reached = accumulate(counts[symbol] for symbol in frequent)
        most = COVERED_CHARACTERS * counts.total()
        # The character with which the share is reached stays.
        pairs = zip(frequent, reached, strict=True)
        frequent = [symbol for symbol, total in pairs if total - counts[symbol] < most]
    return frequent[: size - num_others]


def _fixed_tokens(config: TokenizerConfig) -> list[str]:
    """Returns the entries of a vocabulary that don't depend on the texts."""
    return [*SPECIAL_TOKENS, *(BYTE_TOKENS if config.byte_fallback else ())]


def _count_symbols(library: LibraryTokenizer, config: TokenizerConfig, texts: Iterable[str]) -> None:
    # The specials join after the counting: a text that spells one as a word must not move it from its id.
    size = MAX_ENTRIES if config.vocabulary_size is None else config.vocabulary_size
    trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=config.min_frequency, show_progress=False)
    library.train_from_iterator(texts, trainer=trainer)
    counted = library.get_vocab(with_added_tokens=False)
    symbols = [symbol for symbol in sorted(counted, key=counted.__getitem__) if symbol not in SPECIAL_TOKENS]
    library.model = _vocabulary_of(symbols[: size - len(SPECIAL_TOKENS)])


def _vocabulary_of(symbols: Iterable[str]) -> models.WordLevel:
    entries = {symbol: index for index, symbol in enumerate([*SPECIAL_TOKENS, *symbols])}
    return models.WordLevel(entries, unk_token=SPECIAL_TOKENS[UNK_ID])


def encode_source(tokenizer: Tokenizer, texts: Sequence[str], *, append_eos: bool) -> list[list[int]]:
    """Returns source ids as the encoder reads them."""
    end = [EOS_ID] if append_eos else []
    return [ids + end for ids in tokenizer.encode_batch(texts)]


WARNED_UNKNOWN_SHARE: Final = 0.05


def unknown_share(ids: NDArray[np.integer[Any]], tokenizer: Tokenizer) -> float:
    """Returns the share of unknown tokens among the tokens other than spaces, BOS and EOS."""
    tokens = tokenizer.tokens_of(range(tokenizer.vocabulary_size))
    blanks = [index for index, token in enumerate(tokens) if not token.strip(WORD_MARKS)]
    num_tokens = len(ids) - int(np.isin(ids, [BOS_ID, EOS_ID, *blanks]).sum())
    return int((ids == UNK_ID).sum()) / num_tokens if num_tokens else 0.0
