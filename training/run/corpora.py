"""Reads the splits of a recipe, cleans and tokenizes the training split onto the disk, and counts pairs and tokens."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.runtime.requests import unknown_symbols
from attendant.training.data.config import CorpusFiles, DataConfig, Split, SplitFiles
from attendant.training.data.corpus import (
    Corpus,
    PairEncoder,
    TokenSequences,
    encode_pairs,
    max_length_ratio,
    open_stored,
    store,
)
from attendant.training.data.pairs import (
    Example,
    Pair,
    PairReader,
    group_references,
    is_measurable,
    no_pairs,
    read_pairs,
)
from attendant.training.data.tokenization import WARNED_UNKNOWN_SHARE, encode_source, unknown_share
from attendant.training.data.vocabulary import tokenizer_for
from attendant.training.recipe import Recipe
from attendant.training.run.directory import Run, read_json

SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
HELD_OUT: Final[tuple[Split, ...]] = ("validation", "test")
REFUSED_UNKNOWN_SHARE: Final = 0.5  # Share of the tokens of validation's targets.
MAX_NAMED_SYMBOLS: Final = 8
MAX_SEARCHED: Final = 2000
MAX_COUNTED_TOKENS: Final = 10_000_000
FORMAT: Final = 1  # Part of every key. Raise it with a change after which the same inputs give other files.
DIGEST_BYTES: Final = 16
MAX_CHARACTERS_PER_TOKEN: Final = 100  # No token is expected to be longer on average over a text.

Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Counts of the training split.

    Attributes:
        num_pairs: pairs in its files.
        num_duplicates: pairs that are equal to an earlier one.
        num_shared: pairs whose source is in a held-out split too.
        num_left_out: duplicates and shared pairs that the recipe drops.
        num_empty: pairs that data.drop_empty left out; they don't count among num_pairs.
        notes: lines about changes that the reader made to the files' content.
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
    """The tokenized training split and its survey; `key` is a digest of all that decides the corpus."""

    key: str
    corpus: Corpus
    survey: Survey
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """All splits of a recipe, read and tokenized.

    Attributes:
        validation: the pairs whose loss is taken.
        num_validation_words: words of their targets, as perplexity counts them.
        examples: examples of validation, one per source.
        held_out: split -> its pairs, without those that data.shared_sources drops.
        left_out: held-out split -> the sources that it lost to data.shared_sources.
        facts: the content of data.json.
    """

    train: TrainingSplit
    validation: Corpus
    num_validation_words: int
    examples: list[Example]
    held_out: dict[Split, list[Pair]]
    left_out: dict[str, list[str]]
    facts: dict[str, Any]


def prepare_corpora(recipe: Recipe, folder: Path, tokenizers: Tokenizers | None, begun: Run | None = None) -> Corpora:
    """Reads all splits.

    Args:
        folder: has a directory for each tokenized training split, named by its key.
        tokenizers: those of a run that is resumed, or whose weights are taken. If None, they are trained.
        begun: the run that is resumed, if one is.

    Raises:
        UserError: bad or no data; other data than `begun` has.
    """
    files = {split: named for split in SPLITS if (named := recipe.data.files(split)) is not None}
    digests, digest = digests_of(files)
    if begun is not None and read_json(begun.data_path, dict, "digest")["digest"] != digest:
        raise UserError(f"the data of {begun.path} have changed since it was begun: take another --output")
    read = _read_held_out(files)
    sources: dict[str, frozenset[str]] = {
        split: frozenset(pair.source for pair in pairs) for split, pairs in read.pairs.items()
    }
    train = prepare_training_split(recipe, files["train"], digest, sources, folder, tokenizers)
    left_out = train.survey.shared_sources if recipe.data.shared_sources == "drop_from_held_out" else {}
    held_out = {
        split: _without(pairs, frozenset(left_out.get(split, ())), split) for split, pairs in read.pairs.items()
    }
    append_eos = recipe.source.append_eos
    tokenizers_of = train.source_tokenizer, train.target_tokenizer
    encoder = PairEncoder(*tokenizers_of, recipe.data, append_eos=append_eos, split="validation")
    validation = encode_pairs(held_out["validation"], encoder)
    examples = group_references(held_out["validation"])
    unknown = {"train": _unknown_shares(train.corpus, train), "validation": _unknown_shares(validation, train)}
    if "test" in held_out:
        unknown["test"] = _unknown_shares(_some_encoded(held_out["test"], train, recipe), train)
    counts, corpus = train.survey, train.corpus
    texts = [frozenset(pair.source for pair in pairs) for pairs in held_out.values()]
    facts = {
        "num_trained_pairs": len(corpus),
        "num_duplicates": counts.num_duplicates,
        "num_left_out": counts.num_left_out,
        "num_too_long": {"train": corpus.num_too_long, "validation": validation.num_too_long},
        "num_unequal": {"train": corpus.num_unequal, "validation": validation.num_unequal},
        "num_pairs_of_shared_sources": counts.num_shared,
        "num_sources_shared_with_training": {split: len(shared) for split, shared in counts.shared_sources.items()},
        "num_sources_shared_by_validation_and_test": len(frozenset.intersection(*texts)) if len(texts) > 1 else 0,
        "num_tokens": {"source": len(corpus.sources.ids), "target": len(corpus.targets.ids)},
        "vocabulary_size": {
            "source": train.source_tokenizer.vocabulary_size,
            "target": train.target_tokenizer.vocabulary_size,
        },
        "max_length_ratio": max_length_ratio(corpus, append_eos=append_eos),
        "digest": digest,
        "files": digests,
        "num_pairs": {"train": counts.num_pairs} | {split: len(pairs) for split, pairs in read.pairs.items()},
        "num_validation_examples": len(examples),
        "num_empty": {"train": counts.num_empty} | read.num_empty,
        "num_huge": read.num_huge,
        "lengths": _lengths(corpus, append_eos=append_eos),
        "notes": list(dict.fromkeys([*counts.notes, *read.notes])),
        "unknown_shares": unknown,
    }
    return Corpora(
        train=train,
        validation=validation,
        num_validation_words=encoder.num_target_words,
        examples=examples,
        held_out=held_out,
        left_out=left_out,
        facts=facts,
    )


def prepare_training_split(
    recipe: Recipe,
    files: CorpusFiles,
    digest: str,
    held_out: Mapping[str, frozenset[str]],
    folder: Path,
    tokenizers: Tokenizers | None,
) -> TrainingSplit:
    """Reads the training split, a pair at a time; the files are read as often as needed.

    Args:
        digest: digest of the files of all splits.
        held_out: split -> its sources.
        folder, tokenizers: see `prepare_corpora`.

    Raises:
        UserError: bad rows; no pair is left.
    """
    config = recipe.data
    surveyed = None
    if tokenizers is None:
        surveyed = _survey_files(files, config, held_out)
        tokenizers = _train_tokenizers(recipe, files, surveyed[1])
    directory = folder / _key(recipe, digest, tokenizers)
    stored = open_stored(directory)
    if stored is None:
        counts, kept = surveyed or _survey_files(files, config, held_out)
        encoder = PairEncoder(*tokenizers, config, append_eos=recipe.source.append_eos)
        store(directory, compress(read_pairs(files), kept), encoder, asdict(counts))
        stored = open_stored(directory)
        assert stored is not None
    corpus, record = stored
    return TrainingSplit(directory.name, corpus, Survey(**record), *tokenizers)


def _survey_files(
    files: CorpusFiles, config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, NDArray[np.bool_]]:
    """Surveys files. Raises UserError: there are no pairs, or none to train on."""
    reader = PairReader(files)
    counts, kept = survey(reader, config, held_out)
    if not counts.num_pairs:
        raise no_pairs(files)
    if counts.num_left_out == counts.num_pairs:
        raise UserError(
            f'data.shared_sources = "drop_from_train" leaves nothing of {files}: the held-out splits have all of its '
            'sources; give other files, or set "drop_from_held_out" or "keep"'
        )
    return replace(counts, num_empty=reader.num_empty, notes=tuple(reader.notes)), kept


def survey(
    pairs: Iterable[Pair], config: DataConfig, held_out: Mapping[str, frozenset[str]]
) -> tuple[Survey, NDArray[np.bool_]]:
    """Counts pairs, and returns which of them are trained on: [num_pairs] bool.

    Reads all pairs once and keeps 17 bytes of each: a digest, and a flag of held-out sources.

    Args:
        held_out: split -> its sources, compared as the files have them.
    """
    held_out_sources = frozenset[str]().union(*held_out.values())
    shared_sources: set[str] = set()
    digests, shared = bytearray(), bytearray()
    for pair in pairs:
        # With the length of one side, no two pairs give the same bytes.
        text = f"{len(pair.source)} {pair.source}{pair.target}"
        digests += hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        is_shared = pair.source in held_out_sources
        shared.append(is_shared)
        if is_shared:
            shared_sources.add(pair.source)
    is_shared_pair = np.frombuffer(shared, np.bool_)
    is_duplicate = _repeated(np.frombuffer(digests, np.uint64).reshape(-1, DIGEST_BYTES // 8))
    kept = np.ones(len(shared), np.bool_)
    if config.drop_duplicates:
        kept &= ~is_duplicate
    if config.shared_sources == "drop_from_train":
        kept &= ~is_shared_pair
    counts = Survey(
        num_pairs=len(kept),
        num_duplicates=int(is_duplicate.sum()),
        num_shared=int(is_shared_pair.sum()),
        num_left_out=int((~kept).sum()),
        shared_sources={split: sorted(shared_sources & sources) for split, sources in held_out.items()},
    )
    return counts, kept


def _repeated(rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Returns [N] bool, true for those of rows [N, 2] uint64 that are equal to an earlier one."""
    order = np.lexsort(rows.T)  # stable: of equal rows the first one stays first
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[order[1:]] = (rows[order[1:]] == rows[order[:-1]]).all(1)
    return is_repeated


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts that a tokenizer learns from. Each iteration reads the files again.

    Attributes:
        kept: [num_pairs] bool, the pairs that are trained on.
        max_tokens: side -> the recipe's limit. Texts that are certainly longer are left out: they are not trained on,
            and a tokenizer takes seconds to learn from a line of megabytes.
    """

    files: CorpusFiles
    kept: NDArray[np.bool_]
    max_tokens: Mapping[str, int]

    def __iter__(self) -> Iterator[str]:
        for pair in compress(read_pairs(self.files), self.kept):
            for side, limit in self.max_tokens.items():
                text: str = getattr(pair, side)
                if len(text) <= limit * MAX_CHARACTERS_PER_TOKEN:
                    yield text


def _train_tokenizers(recipe: Recipe, files: CorpusFiles, kept: NDArray[np.bool_]) -> Tokenizers:
    source, target = {"source": recipe.data.max_source_tokens}, {"target": recipe.data.max_target_tokens}
    if recipe.model.shared_embeddings:
        both = tokenizer_for(recipe.target, _Texts(files, kept, source | target))
        return both, both
    source_tokenizer = tokenizer_for(recipe.source, _Texts(files, kept, source))
    return source_tokenizer, tokenizer_for(recipe.target, _Texts(files, kept, target))


def _key(recipe: Recipe, digest: str, tokenizers: Tokenizers) -> str:
    config = recipe.data
    content = {
        "format": FORMAT,
        "files": digest,
        "tokenizers": [tokenizer.to_text() for tokenizer in tokenizers],
        "append_eos": recipe.source.append_eos,
        "options": [
            config.max_source_tokens,
            config.max_target_tokens,
            config.max_source_words,
            config.max_length_ratio,
            config.drop_duplicates,
            config.shared_sources,
        ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digests_of(files: Mapping[Split, SplitFiles]) -> tuple[dict[Split, dict[str, str]], str]:
    """Returns the sha256 of each split's files by path, and one digest of contents and options of reading.

    Raises:
        UserError: a file can't be read, or is a pipe.
    """
    paths = dict.fromkeys(path for split_files in files.values() for path in split_files.paths)
    for path in paths:
        if path.is_fifo():
            raise UserError(f"{path} is a pipe, and a training reads its data several times: write them to a file")
    by_path = {path: sha256_of(path) for path in paths}
    digests = {split: {str(path): by_path[path] for path in split_files.paths} for split, split_files in files.items()}
    # Contents in their roles: the files' location does not matter.
    contents: dict[str, Any] = {
        split: [by_path[path] for path in split_files.paths] for split, split_files in files.items()
    }
    for split, split_files in files.items():
        if reading := split_files.reading():
            contents[f"{split} is read"] = reading
    return digests, hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class _HeldOut:
    """The held-out splits as they were read.

    Attributes:
        num_empty, num_huge: pairs left out, by split: a side is empty; a side is too long to be measured.
        notes: see Survey.
    """

    pairs: dict[Split, list[Pair]] = field(default_factory=dict)
    num_empty: dict[str, int] = field(default_factory=dict)
    num_huge: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _read_held_out(files: Mapping[Split, SplitFiles]) -> _HeldOut:
    """Reads the held-out splits.

    Raises:
        UserError: no pairs; bad rows of all splits together, of the training split too.
    """
    held_out, refusals = _HeldOut(), []
    for split in HELD_OUT:
        if split in files:
            reader = PairReader(files[split])
            try:
                pairs = list(reader)
                held_out.pairs[split] = [pair for pair in pairs if is_measurable(pair)]
                held_out.num_huge[split] = len(pairs) - len(held_out.pairs[split])
                if not held_out.pairs[split]:
                    raise no_pairs(files[split])
            except UserError as refusal:
                refusals.append(refusal)
            held_out.num_empty[split] = reader.num_empty
            held_out.notes += reader.notes
    if refusals:
        try:
            for _ in PairReader(files["train"]):
                pass
        except UserError as refusal:
            refusals.append(refusal)
        first, *others = {str(refusal): refusal for refusal in refusals}.values()
        more = [line for refusal in others for line in (refusal.summary, *refusal.differences)]
        raise UserError(first.summary, [*first.differences, *more])
    return held_out


def _without(pairs: list[Pair], sources: frozenset[str], split: Split) -> list[Pair]:
    kept = [pair for pair in pairs if pair.source not in sources]
    if not kept:
        raise UserError(
            f'data.shared_sources = "drop_from_held_out" leaves nothing of data.{split}: the training split has all of '
            'its sources; give other files, or set "drop_from_train" or "keep"'
        )
    return kept


def warnings_of(corpora: Corpora) -> list[str]:
    """Returns a line for each side of each split of which many tokens are unknown, with some of the symbols, and for
    each held-out split of which no output can equal many targets.
    """
    lines = []
    for split, shares in corpora.facts["unknown_shares"].items():
        for side, share in shares.items():
            if share > WARNED_UNKNOWN_SHARE:
                pairs = corpora.held_out.get(split)
                symbols = _unknown_symbols(side, pairs, corpora.train) if pairs else ""
                lines.append(
                    f"warning: {share:.1%} of the tokens of {split}'s {side}s are unknown{symbols} (see "
                    f"{side}.vocabulary_size, {side}.min_frequency, {side}.tokenizer)"
                )
    return [*lines, *_changed_targets(corpora)]


def _changed_targets(corpora: Corpora) -> Iterator[str]:
    """Yields a line for each held-out split of which the tokenizer changes many targets, except for white space, and
    for each of which it joins the lines of many.
    """
    tokenizer = corpora.train.target_tokenizer
    longest = tokenizer.max_characters(MAX_SEARCHED)
    for split, pairs in corpora.held_out.items():
        targets = [pair.target for pair in pairs[:MAX_SEARCHED] if len(pair.target) <= longest]
        texts = [tokenizer.spaced(target) for target in targets]
        joined = sum("\n" in old.strip() and "\n" not in new for old, new in zip(targets, texts, strict=True))
        if joined > WARNED_UNKNOWN_SHARE * len(texts):
            yield (
                f"warning: {joined / len(texts):.1%} of {split}'s targets have several lines, and outputs have one: "
                'target.keep_spaces = true keeps line feeds (not with target.tokenizer = "word")'
            )
        changed = [
            (text, written)
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
            if UNK_ID not in ids and (written := tokenizer.decode(ids)).split() != text.split()
        ]
        if len(changed) > WARNED_UNKNOWN_SHARE * len(texts):
            text, written = min(changed, key=lambda each: len(each[0]))
            # Letters with composed and with separate accents look the same.
            form = ascii if unicodedata.normalize("NFC", text) == unicodedata.normalize("NFC", written) else repr
            yield (
                f"warning: no output can equal {len(changed) / len(texts):.1%} of {split}'s targets, e.g. {form(text)} "
                f"is written as {form(written)} (see target.normalize, target.tokenizer)"
            )


def refuse_unknown_targets(recipe: Recipe, corpora: Corpora) -> None:
    """Raises UserError: validation's targets are mostly unknown, so no validation could measure the model."""
    share = corpora.facts["unknown_shares"]["validation"]["target"]
    if share > REFUSED_UNKNOWN_SHARE and not recipe.data.allow_unknown_targets:
        symbols = _unknown_symbols("target", corpora.held_out["validation"], corpora.train)
        raise UserError(
            f"{share:.1%} of the tokens of validation's targets are unknown{symbols}: take data of one kind, another "
            "target.tokenizer, a larger target.vocabulary_size or a lower target.min_frequency; "
            "data.allow_unknown_targets = true trains anyway"
        )


def _unknown_symbols(side: str, pairs: Sequence[Pair], train: TrainingSplit) -> str:
    """Returns some of a side's unknown symbols, as the end of a sentence."""
    tokenizer: Tokenizer = getattr(train, f"{side}_tokenizer")
    symbols: dict[str, None] = {}
    for pair in pairs[:MAX_SEARCHED]:
        text: str = getattr(pair, side)
        if len(text) <= tokenizer.max_characters(MAX_SEARCHED):
            symbols |= dict.fromkeys(unknown_symbols(text, tokenizer.encode(text), tokenizer))
        if len(symbols) >= MAX_NAMED_SYMBOLS:
            break
    return f", e.g. {', '.join(map(repr, list(symbols)[:MAX_NAMED_SYMBOLS]))}" if symbols else ""


def _lengths(corpus: Corpus, *, append_eos: bool) -> dict[str, list[int]]:
    """Returns by side the shortest length, the median, that of 99 % of the texts, and the longest, without EOS."""
    lengths = {"source": corpus.sources.lengths - append_eos, "target": corpus.targets.lengths}
    return {
        side: np.quantile(each, [0.0, 0.5, 0.99, 1.0], method="inverted_cdf").tolist() for side, each in lengths.items()
    }


def _unknown_shares(corpus: Corpus, train: TrainingSplit) -> dict[str, float]:
    """Returns by side the share of unknown tokens; of a large corpus, the share in its beginning."""
    return {
        side: unknown_share(sequences.ids[:MAX_COUNTED_TOKENS], getattr(train, f"{side}_tokenizer"))
        for side, sequences in (("source", corpus.sources), ("target", corpus.targets))
    }


def _some_encoded(pairs: Sequence[Pair], train: TrainingSplit, recipe: Recipe) -> Corpus:
    """Returns a sample of a split, tokenized; texts far beyond the recipe's limits are left out."""
    chosen = pairs[:: max(1, len(pairs) // MAX_SEARCHED)]
    max_source = train.source_tokenizer.max_characters(recipe.data.max_source_tokens)
    max_target = train.target_tokenizer.max_characters(recipe.data.max_target_tokens)
    sources = [pair.source for pair in chosen if len(pair.source) <= max_source]
    targets = [pair.target for pair in chosen if len(pair.target) <= max_target]
    source_ids = encode_source(train.source_tokenizer, sources, append_eos=recipe.source.append_eos)
    target_ids = train.target_tokenizer.encode_batch(targets)
    return Corpus(TokenSequences.of(source_ids), TokenSequences.of(target_ids), num_too_long=0)
