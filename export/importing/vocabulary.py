"""A vocabulary of another toolkit: the same symbols, with the special ones where ours stand.

Shapes: V symbols.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.runtime.errors import UserError


class Vocabulary:
    """The symbols of one side.

    Attributes:
        symbols: those that are not special, in their order.
    """

    def __init__(self, path: Path, symbols: Sequence[str], special: Sequence[str | None]) -> None:
        """Takes over a list of symbols by their ids.

        Args:
            path: the file, for errors.
            special: what they call PAD, UNK, BOS and EOS; None: they have none.

        Raises:
            UserError: a symbol stands there twice, or is called as one of our special ones.
        """
        self._path, self._num_symbols = path, len(symbols)
        ids = {symbol: number for number, symbol in enumerate(symbols)}
        if len(ids) != len(symbols):
            twice = next(symbol for number, symbol in enumerate(symbols) if ids[symbol] != number)
            raise UserError(f"{path}: the symbol {twice!r} stands in the vocabulary twice")
        self.symbols = [symbol for symbol in symbols if symbol not in special]
        if ours := set(self.symbols) & set(SPECIAL_TOKENS):
            raise UserError(f"{path}: {min(ours)!r} is an ordinary symbol there, and a special one here")
        self._ids = [None if name is None else ids.get(name) for name in special] + [ids[one] for one in self.symbols]

    def rows(self, weights: Tensor) -> Tensor:
        """Weights [V, ...] with a row per symbol, in our order; zeros for a special symbol that they have not.

        Raises:
            UserError: they are of another vocabulary.
        """
        if len(weights) != self._num_symbols:
            raise UserError(
                f"{self._path}: the vocabulary has {self._num_symbols} symbols, and the weights are of {len(weights)}"
            )
        nothing = torch.zeros_like(weights[0])
        return torch.stack([nothing if number is None else weights[number] for number in self._ids])
