"""Prepares the training split: cleans it, trains its tokenizers and tokenizes it onto the disk, once."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.cleaning import Selection, Survey, survey
from attendant.training.data.config import CorpusFiles, DataConfig
from attendant.training.data.corpus import Corpus, PairEncoder
from attendant.training.data.pairs import Pair, read_pairs
from attendant.training.data.store import open_stored, store

FORMAT = 1
"""Of what a key stands for: raised when the same inputs begin to give other files."""

Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True, slots=True)
class TrainingSplit:
    """What is trained on, and what was found in the files."""

    corpus: Corpus
    survey: Survey
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def prepare_training_split(
    files: CorpusFiles,
    config: DataConfig,
    *,
    digest: str,
    held_out: Mapping[str, frozenset[str]],
    folder: Path,
    append_eos: bool,
    tokenizers: Tokenizers | None,
    train_tokenizers: Callable[[Callable[[], Iterable[Pair]]], Tokenizers],
) -> TrainingSplit:
    """Reads the files as often as needed, a pair at a time.

    Args:
        digest: of the files of all splits.
        held_out: split -> its sources.
        folder: where tokenized splits lie, by key.
        tokenizers: of a run that was begun; None: train them.
        train_tokenizers: is given what reads the cleaned pairs from their beginning.

    Raises:
        UserError: bad rows; nothing is left.
    """
    looked = None
    if tokenizers is None:
        looked = _look_through(files, config, held_out)
        selection = looked[1]
        tokenizers = train_tokenizers(lambda: selection.of(read_pairs(files)))
    directory = folder / _key(config, digest, tokenizers, append_eos=append_eos)
    stored = open_stored(directory)
    if stored is None:
        found, selection = looked or _look_through(files, config, held_out)
        encoder = PairEncoder(*tokenizers, config, append_eos=append_eos)
        store(directory, selection.of(read_pairs(files)), encoder, found.to_json())
        stored = open_stored(directory)
        assert stored is not None
    corpus, said = stored
    return TrainingSplit(corpus, Survey(**said), *tokenizers)


def _look_through(
    files: CorpusFiles, config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, Selection]:
    found, selection = survey(read_pairs(files), config, held_out)
    if not found.num_pairs:
        raise UserError(f"{files} has no pairs")
    if found.num_left_out == found.num_pairs:
        raise UserError(
            f'data.shared_sources = "drop_from_train" leaves nothing of {files}: the held-out splits have all of its '
            'sources; give other files, or set "drop_from_held_out" or "keep"'
        )
    return found, selection


def _key(config: DataConfig, digest: str, tokenizers: Tokenizers, *, append_eos: bool) -> str:
    decides = {
        "format": FORMAT,
        "files": digest,
        "tokenizers": [tokenizer.to_text() for tokenizer in tokenizers],
        "append_eos": append_eos,
        "options": [
            config.max_source_tokens,
            config.max_target_tokens,
            config.max_source_words,
            config.max_length_ratio,
            config.drop_duplicates,
            config.shared_sources,
        ],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
