"""Text to ids and back, in the `tokenizers` library's own file format.

Special symbols are ordinary vocabulary entries with fixed ids, not the library's "added tokens": those are matched
inside text, and a literal `</s>` in text is text.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from attendant.runtime.bundle.manifest import SpecialIds

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
_NEVER_IN_TEXT = frozenset((PAD_ID, BOS_ID, EOS_ID))

MAX_COMPOSED = 4
"""Characters that one may have been composed of: no canonical decomposition of Unicode's is longer."""


def special_ids(start_id: int) -> SpecialIds:
    """The special symbols of a model whose decoder is first fed `start_id`."""
    return SpecialIds(pad=PAD_ID, unk=UNK_ID, bos=BOS_ID, eos=EOS_ID, start=start_id)


class UnknownTokenError(ValueError):
    """A token that the vocabulary does not have, or that a caller may not give.

    Attributes:
        token: the token as given.
        position: its place in the sequence, from 0.
    """

    def __init__(self, token: str, position: int) -> None:
        super().__init__(f"{token!r} at position {position} is not in the vocabulary")
        self.token = token
        self.position = position


class Tokenizer:
    """One side's vocabulary. Thread-safe: nothing changes after construction."""

    def __init__(self, library: LibraryTokenizer) -> None:
        """Takes over a trained tokenizer.

        Raises:
            ValueError: a special symbol does not stand where it must.
        """
        self._library = library
        for token_id, token in enumerate(SPECIAL_TOKENS):
            if library.token_to_id(token) != token_id:
                raise ValueError(f"the vocabulary must hold {token} as id {token_id}")
        self.vocabulary_size: int = library.get_vocab_size()
        self._tokens: list[str] = [
            library.id_to_token(i) or SPECIAL_TOKENS[UNK_ID] for i in range(self.vocabulary_size)
        ]
        self._longest = max(map(len, self._tokens[len(SPECIAL_TOKENS) :]), default=1)

    @classmethod
    def from_text(cls, text: str) -> "Tokenizer":
        try:
            library = LibraryTokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception for every malformed file
            raise ValueError(f"not a tokenizer file: {error}") from None
        return cls(library)

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        return cls.from_text(path.read_text(encoding="utf-8"))

    def bound_cache(self, num_words: int) -> None:
        """How many words the library may remember with their merges; by default 10,000, of 8 KiB each at most.

        For texts of strangers.
        """
        model = self._library.model
        if isinstance(model, models.BPE | models.Unigram):
            model._resize_cache(num_words)

    def to_text(self) -> str:
        """The library's JSON, as it stands in a run or a bundle."""
        return str(self._library.to_str(pretty=True)) + "\n"

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS or EOS. Never fails: what is unknown becomes UNK."""
        # Not the library's `encode`: it also finds where in the text each token stands, which takes as long again.
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, for many texts at once on the library's own threads."""
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [_as_text(encoding.ids) for encoding in encodings]

    def max_characters(self, num_tokens: int) -> int:
        """How long a text may be that is no longer than so many tokens.

        A token stands for no more characters than the longest symbol has, and a blank beside it, each of which the
        normalization may have composed. What a word tokenizer does not know may be longer: there it is a limit to what
        is taken, of words that are longer on the average than the longest one it knows.
        """
        return num_tokens * MAX_COMPOSED * (self._longest + 1)

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        """The ids of given tokens.

        Raises:
            UnknownTokenError: a token is not in the vocabulary, or is PAD, BOS or EOS.
        """
        ids = []
        for position, token in enumerate(tokens):
            token_id = self._library.token_to_id(token)
            if token_id is None or token_id in _NEVER_IN_TEXT:
                raise UnknownTokenError(token, position)
            ids.append(token_id)
        return ids

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        return list(map(self._tokens.__getitem__, ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: the target tokenizer's decoding. PAD, BOS and EOS leave no trace; UNK shows."""
        kept = list(ids)
        if not _NEVER_IN_TEXT.isdisjoint(kept):
            kept = [token_id for token_id in kept if token_id not in _NEVER_IN_TEXT]
        return str(self._library.decode(kept, skip_special_tokens=False))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        """The text of tokens, of which some may be in no vocabulary."""
        decoder = self._library.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def words_of(self, text: str) -> list[str]:
        """What stands in a text where each of its tokens does: also where the token is UNK."""
        encoding = self._library.encode(text, add_special_tokens=False)
        # Some tokenizers count the blank before a word as part of it; a blank alone is what stands there.
        return [text[begin:end].strip() or text[begin:end] for begin, end in encoding.offsets]


def _as_text(ids: list[int]) -> list[int]:
    """The ids of what was text; `</s>` in it is none of ours."""
    if _NEVER_IN_TEXT.isdisjoint(ids):
        return ids
    return [UNK_ID if token_id in _NEVER_IN_TEXT else token_id for token_id in ids]
