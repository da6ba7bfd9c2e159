"""Texts of a bundle that takes tokens: in this process, functions of the caller's segment and join them."""

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer

Encode = Callable[[str], Sequence[str]]
"""Returns the tokens of a text."""

Decode = Callable[[Sequence[str]], str]
"""Returns the text of tokens."""


class FunctionTokenizer(Tokenizer):
    """A bundle's vocabulary, whose texts are segmented and joined by functions.

    Tokens that the vocabulary lacks become UNK. What a function raises, the caller of the model gets.
    """

    def __init__(self, vocabulary: Tokenizer, encode: Encode | None, decode: Decode | None) -> None:
        """Takes the functions; without `encode`, texts are refused; without `decode`, blanks join tokens."""
        super().__init__(LibraryTokenizer.from_str(vocabulary.to_text()))
        self._encode, self._decode = encode, decode
        self.takes_texts = encode is not None
        # A function may join the first tokens otherwise when more follow.
        self.grows = decode is None

    def encode(self, text: str) -> list[int]:
        ids = [self._library.token_to_id(token) for token in self.words_of(text)]
        return [UNK_ID if i is None or (i < len(SPECIAL_TOKENS)) else i for i in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(map(self.encode, texts))

    def words_of(self, text: str) -> list[str]:
        assert self._encode is not None
        tokens = self._encode(text)
        is_list = isinstance(tokens, Sequence) and not isinstance(tokens, str)
        if not is_list or not all(isinstance(token, str) for token in tokens):
            raise TypeError(f"encode returned {tokens!r} for {text!r}, must be a list of tokens")
        return list(tokens)

    def opening(self, text: str) -> tuple[list[int], str]:
        """Returns the ids of a text, which is taken as complete: no function says what may follow."""
        return self.encode(text), ""

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_tokens(self.tokens_of(i for i in ids if i >= len(SPECIAL_TOKENS) or i == UNK_ID))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        if self._decode is None:
            return super().decode_tokens(tokens)
        text = self._decode(list(tokens))
        if not isinstance(text, str):
            raise TypeError(f"decode returned {text!r}, must be a text")
        return text
