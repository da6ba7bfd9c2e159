"""Prepares the training split: cleans it, trains its tokenizers and tokenizes it onto the disk, once.

Duplicate pairs, and sources that held-out splits share, are found in one streaming pass.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, DataConfig
from attendant.training.data.corpus import Corpus, PairEncoder
from attendant.training.data.pairs import Pair, PairReader, no_pairs, read_pairs
from attendant.training.data.store import open_stored, store
from attendant.training.data.tokenization import SourceConfig, TargetConfig, train_tokenizer

FORMAT = 1
"""Part of every key. It is raised when the same inputs begin to give other files."""

DIGEST_BYTES = 16

MOST_CHARACTERS_PER_TOKEN = 100
"""No token is expected to be longer on average over a text."""

Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found in the training split.

    Attributes:
        num_pairs: pairs in its files.
        num_duplicates: pairs that are equal to an earlier one.
        num_shared: pairs whose source stands in a held-out split too.
        num_left_out: duplicates and shared pairs that the recipe drops.
        num_empty: pairs that data.drop_empty left out; they don't count among num_pairs.
        notes: lines about what was read otherwise than the files have it.
        shared_sources: held-out split -> those of its sources that the training split has too, sorted.
    """

    num_pairs: int
    num_duplicates: int
    num_shared: int
    num_left_out: int
    shared_sources: dict[str, list[str]]
    num_empty: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TrainingSplit:
    """What is trained on, and what was found in the files.

    Attributes:
        key: a digest of all that decides the corpus.
    """

    key: str
    corpus: Corpus
    survey: Survey
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def prepare_training_split(
    files: CorpusFiles,
    config: DataConfig,
    source: SourceConfig,
    target: TargetConfig,
    *,
    shared_vocabulary: bool,
    digest: str,
    held_out: Mapping[str, frozenset[str]],
    folder: Path,
    tokenizers: Tokenizers | None,
) -> TrainingSplit:
    """Reads the files as often as needed, a pair at a time.

    Args:
        shared_vocabulary: one tokenizer is trained, for both sides.
        digest: of the files of all splits.
        held_out: split -> its sources.
        folder: has a directory for each tokenized split, named by its key.
        tokenizers: those of a run that is resumed, or whose weights are taken; None: they are trained.

    Raises:
        UserError: bad rows; nothing is left.
    """
    looked = None
    if tokenizers is None:
        looked = _look_through(files, config, held_out)
        tokenizers = _train_tokenizers(files, looked[1], config, source, target, shared=shared_vocabulary)
    directory = folder / _key(config, digest, tokenizers, append_eos=source.append_eos)
    stored = open_stored(directory)
    if stored is None:
        found, stays = looked or _look_through(files, config, held_out)
        encoder = PairEncoder(*tokenizers, config, append_eos=source.append_eos)
        store(directory, compress(read_pairs(files), stays), encoder, asdict(found))
        stored = open_stored(directory)
        assert stored is not None
    corpus, said = stored
    return TrainingSplit(directory.name, corpus, Survey(**said), *tokenizers)


def _look_through(
    files: CorpusFiles, config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, NDArray[np.bool_]]:
    """As `survey`, of files. Raises UserError: there are no pairs, or none that may be trained on."""
    reader = PairReader(files)
    found, stays = survey(reader, config, held_out)
    found = replace(found, num_empty=reader.num_empty, notes=tuple(reader.notes))
    if not found.num_pairs:
        raise no_pairs(files)
    if found.num_left_out == found.num_pairs:
        raise UserError(
            f'data.shared_sources = "drop_from_train" leaves nothing of {files}: the held-out splits have all of its '
            'sources; give other files, or set "drop_from_held_out" or "keep"'
        )
    return found, stays


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts that a tokenizer learns from. Each iteration reads the files again.

    Attributes:
        stays: [num_pairs] bool, the pairs that are trained on.
        max_tokens: by side, "source" or "target": the recipe's limit. A text that is certainly longer is left out: it
            is not trained on, and a tokenizer takes seconds to learn from a line of megabytes.
    """

    files: CorpusFiles
    stays: NDArray[np.bool_]
    max_tokens: Mapping[str, int]

    def __iter__(self) -> Iterator[str]:
        for pair in compress(read_pairs(self.files), self.stays):
            for side, limit in self.max_tokens.items():
                text: str = getattr(pair, side)
                if len(text) <= limit * MOST_CHARACTERS_PER_TOKEN:
                    yield text


def _train_tokenizers(
    files: CorpusFiles,
    stays: NDArray[np.bool_],
    config: DataConfig,
    source: SourceConfig,
    target: TargetConfig,
    *,
    shared: bool,
) -> Tokenizers:
    """Trains them on the pairs that stay [num_pairs] bool."""
    limits = {"source": config.max_source_tokens, "target": config.max_target_tokens}
    if shared:
        both = train_tokenizer(target, _Texts(files, stays, limits))
        return both, both
    of_source = train_tokenizer(source, _Texts(files, stays, {"source": limits["source"]}))
    return of_source, train_tokenizer(target, _Texts(files, stays, {"target": limits["target"]}))


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


def survey(
    pairs: Iterable[Pair], config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, NDArray[np.bool_]]:
    """What was found, and which pairs are trained on: [num_pairs] bool.

    Reads all pairs once and keeps 17 bytes of each: a digest, and whether its source is held out.

    Args:
        held_out: split -> its sources, compared as the files have them.
    """
    every = frozenset[str]().union(*held_out.values())
    found: set[str] = set()
    digests, shared = bytearray(), bytearray()
    for pair in pairs:
        # With the length of one side, no two pairs give the same bytes.
        text = f"{len(pair.source)} {pair.source}{pair.target}"
        digests += hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        is_shared = pair.source in every
        shared.append(is_shared)
        if is_shared:
            found.add(pair.source)
    is_shared_pair = np.frombuffer(shared, np.bool_)
    is_duplicate = _repeated(np.frombuffer(digests, np.uint64).reshape(-1, DIGEST_BYTES // 8))
    stays = np.ones(len(shared), np.bool_)
    if config.drop_duplicates:
        stays &= ~is_duplicate
    if config.shared_sources == "drop_from_train":
        stays &= ~is_shared_pair
    said = Survey(
        num_pairs=len(stays),
        num_duplicates=int(is_duplicate.sum()),
        num_shared=int(is_shared_pair.sum()),
        num_left_out=int((~stays).sum()),
        shared_sources={split: sorted(found & sources) for split, sources in held_out.items()},
    )
    return said, stays


def _repeated(rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of rows [N, 2] uint64 are equal to an earlier one: [N] bool."""
    order = np.lexsort(rows.T)  # stable: of equal rows the first one stays first
    is_repeated = np.zeros(len(rows), np.bool_)
    same = (rows[order[1:]] == rows[order[:-1]]).all(1)
    is_repeated[order[1:]] = same
    return is_repeated
