"""Word vectors that others have trained, in the text format of word2vec, GloVe and fastText.

Each line is a word and its numbers, separated by spaces or tabs; a first line may say how many words there are, and
how many numbers. Shapes: K symbols found, E embedding size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.lines import Problems, numbered_lines
from attendant.training.data.normalization import WORD_START


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The symbols that are whole words: word -> id. Of bpe these are those that begin one."""
    symbols = {symbol: index for index, symbol in enumerate(tokenizer.tokens_of(range(tokenizer.vocabulary_size)))}
    begins = {symbol.removeprefix(WORD_START): index for symbol, index in symbols.items() if symbol[:1] == WORD_START}
    return begins or symbols


def read_vectors(path: Path, words: Mapping[str, int], size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The vectors of some words, read a line at a time; of a word that stands twice the first.

    Args:
        path: UTF-8; may be gzip.
        words: word -> id.
        size: E.

    Returns:
        ids [K], and their vectors [K, E].

    Raises:
        UserError: a file that can't be read; a line of another size, or of numbers that are none or not finite; none
            of the words.
    """
    vectors: dict[int, NDArray[np.float32]] = {}
    problems = Problems()
    for number, line in numbered_lines(path):
        word, _, rest = line.replace("\t", " ").partition(" ")
        if number > 2 and word not in words:
            continue
        values = rest.split()
        if len(values) == size:
            if word in words:
                vectors.setdefault(words[word], _numbers(values, path, number, problems))
        elif number == 2 or (number == 1 and len(values) != 1):  # later: GloVe has words with spaces
            raise UserError(
                f"{path}:{number}: has {len(values)} numbers, and model.embedding_size is {size}: make them equal"
            )
    problems.raise_if_any()
    if not vectors:
        raise UserError(f"{path} has a vector for none of the {len(words)} words of the vocabulary: another language?")
    return np.fromiter(vectors, np.int64), np.stack(list(vectors.values()))


def _numbers(values: Sequence[str], path: Path, number: int, problems: Problems) -> NDArray[np.float32]:
    """Returns a line's numbers [E]; one that is none, or not finite in float32, is a problem."""
    with np.errstate(over="ignore"):
        try:
            vector = np.array(values, np.float32)
        except ValueError as error:
            problems.add("vector", path, number, str(error))
            return np.zeros(len(values), np.float32)
    for value in np.flatnonzero(~np.isfinite(vector))[:1]:
        problems.add("vector", path, number, f"number {value + 1} is {values[value]}")
    return vector
