"""Reads the splits of a recipe, trains tokenizers on the training split, and counts what is in all of them."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from attendant.runtime.bundle.tokenizer import EOS_ID, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.runtime.requests import WORD_MARKS, unknown_symbols
from attendant.training.data.config import Split, SplitFiles
from attendant.training.data.corpus import (
    Corpus,
    PairEncoder,
    TokenSequences,
    encode_pairs,
    max_length_ratio,
    unknown_share,
)
from attendant.training.data.pairs import Example, Pair, PairReader, group_references, is_measurable, no_pairs
from attendant.training.data.tokenization import encode_source
from attendant.training.data.training_split import Tokenizers, TrainingSplit, prepare_training_split
from attendant.training.recipe.recipe import Recipe

SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
HELD_OUT: Final[tuple[Split, ...]] = ("validation", "test")
MANY_UNKNOWN: Final = 0.05
"""Share of unknown tokens from which on a warning is given."""

MOST_UNKNOWN: Final = 0.5
"""Share of unknown tokens of validation's targets above which no training starts unless the recipe allows it."""

MAX_NAMED: Final = 8
MAX_SEARCHED: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """All splits of a recipe, read and tokenized.

    Attributes:
        validation: the pairs whose loss is taken; num_validation_words: of their targets, as perplexity counts them.
        examples: of validation, one per source.
        held_out: the pairs of the held-out splits that stay.
        left_out: held-out split -> the sources that it lost to data.shared_sources.
        facts: what data.json records.
    """

    train: TrainingSplit
    validation: Corpus
    num_validation_words: int
    examples: list[Example]
    held_out: dict[Split, list[Pair]]
    left_out: dict[str, list[str]]
    facts: dict[str, Any]


def prepare_corpora(
    recipe: Recipe,
    folder: Path,
    tokenizers: Tokenizers | None,
    *,
    check_digest: Callable[[str], None] = lambda digest: None,
) -> Corpora:
    """Reads all splits.

    Args:
        folder: has the tokenized training splits.
        tokenizers: those of a run that is resumed, or whose weights are taken; None: they are trained.
        check_digest: is called with the digest of the files before they are read, and may refuse it.

    Raises:
        UserError: bad or no data.
    """
    files = {split: named for split in SPLITS if (named := recipe.data.files(split)) is not None}
    digests, digest = digests_of(files)
    check_digest(digest)
    read = _read_held_out(files)
    held_out = read.pairs
    train = prepare_training_split(
        files["train"],
        recipe.data,
        recipe.source,
        recipe.target,
        shared_vocabulary=recipe.model.shared_embeddings,
        digest=digest,
        held_out={split: frozenset(pair.source for pair in pairs) for split, pairs in held_out.items()},
        folder=folder,
        tokenizers=tokenizers,
    )
    num_read = {split: len(pairs) for split, pairs in held_out.items()}
    left_out = train.survey.shared_sources if recipe.data.shared_sources == "drop_from_held_out" else {}
    held_out = {split: _without(pairs, frozenset(left_out.get(split, ())), split) for split, pairs in held_out.items()}
    encoder = PairEncoder(
        train.source_tokenizer, train.target_tokenizer, recipe.data, append_eos=recipe.source.append_eos
    )
    validation = encode_pairs(held_out["validation"], encoder)
    num_validation_words = encoder.num_target_words
    examples = group_references(held_out["validation"])
    facts = _facts(train, validation, held_out) | {
        "max_length_ratio": max_length_ratio(train.corpus, append_eos=recipe.source.append_eos),
        "digest": digest,
        "files": digests,
        "num_pairs": {"train": train.survey.num_pairs} | num_read,
        "num_validation_examples": len(examples),
        "num_empty": {"train": train.survey.num_empty} | read.num_empty,
        "num_huge": read.num_huge,
        "lengths": _lengths(train.corpus, append_eos=recipe.source.append_eos),
        "notes": list(dict.fromkeys([*train.survey.notes, *read.notes])),
        "unknown_shares": {
            "train": _unknown_shares(train.corpus, train),
            "validation": _unknown_shares(validation, train),
        },
    }
    if "test" in held_out:
        facts["unknown_shares"]["test"] = _unknown_shares(_some_encoded(held_out["test"], train, recipe), train)
    return Corpora(
        train=train,
        validation=validation,
        num_validation_words=num_validation_words,
        examples=examples,
        held_out=held_out,
        left_out=left_out,
        facts=facts,
    )


def unknown_warnings(recipe: Recipe, corpora: Corpora) -> list[str]:
    """Returns a line for each side of each split of which many tokens are unknown, with some of the symbols."""
    lines = []
    for split, shares in corpora.facts["unknown_shares"].items():
        for side, share in shares.items():
            if share > MANY_UNKNOWN:
                pairs = corpora.held_out.get(split)
                named = _unknown_symbols(side, pairs, corpora.train) if pairs else ""
                lines.append(
                    f"warning: {share:.1%} of the tokens of {split}'s {side}s are unknown{named} (see "
                    f"{side}.vocabulary_size, {side}.min_frequency, {side}.tokenizer)"
                )
    return lines


def refuse_unknown_targets(recipe: Recipe, corpora: Corpora) -> None:
    """Raises UserError: validation's targets are mostly unknown, so that no validation says how good the model is."""
    share = corpora.facts["unknown_shares"]["validation"]["target"]
    if share > MOST_UNKNOWN and not recipe.data.allow_unknown_targets:
        named = _unknown_symbols("target", corpora.held_out["validation"], corpora.train)
        raise UserError(
            f"{share:.1%} of the tokens of validation's targets are unknown{named}: take data of one kind, another "
            "target.tokenizer, a larger target.vocabulary_size or a lower target.min_frequency; "
            "data.allow_unknown_targets = true trains all the same"
        )


def _unknown_symbols(side: str, pairs: Sequence[Pair], train: TrainingSplit) -> str:
    """Returns some of a side's unknown symbols, as the end of a sentence."""
    tokenizer: Tokenizer = getattr(train, f"{side}_tokenizer")
    symbols: dict[str, None] = {}
    for pair in pairs[:MAX_SEARCHED]:
        text: str = getattr(pair, side)
        if len(text) <= tokenizer.max_characters(MAX_SEARCHED):
            symbols |= dict.fromkeys(unknown_symbols(text, tokenizer.encode(text), tokenizer))
        if len(symbols) >= MAX_NAMED:
            break
    return f", e.g. {', '.join(map(repr, list(symbols)[:MAX_NAMED]))}" if symbols else ""


def _lengths(corpus: Corpus, *, append_eos: bool) -> dict[str, list[int]]:
    """Returns by side the shortest length, the median, that of 99 % of the texts, and the longest, without EOS."""
    lengths = {"source": corpus.sources.lengths - append_eos, "target": corpus.targets.lengths}
    return {
        side: np.quantile(each, [0.0, 0.5, 0.99, 1.0], method="inverted_cdf").tolist() for side, each in lengths.items()
    }


def _unknown_shares(corpus: Corpus, train: TrainingSplit) -> dict[str, float]:
    """Returns by side the share of unknown tokens among those that stand for more than a space or an end."""
    sides = {"source": (corpus.sources, train.source_tokenizer), "target": (corpus.targets, train.target_tokenizer)}
    return {side: unknown_share(sequences, _blanks(tokenizer)) for side, (sequences, tokenizer) in sides.items()}


def _blanks(tokenizer: Tokenizer) -> list[int]:
    tokens = tokenizer.tokens_of(range(tokenizer.vocabulary_size))
    return [EOS_ID, *(place for place, token in enumerate(tokens) if not token.strip(WORD_MARKS))]


def _some_encoded(pairs: Sequence[Pair], train: TrainingSplit, recipe: Recipe) -> Corpus:
    """Returns a sample of a split, tokenized; texts far beyond the recipe's limits are left out."""
    chosen = pairs[:: max(1, len(pairs) // MAX_SEARCHED)]
    of_source, of_target = train.source_tokenizer, train.target_tokenizer
    most_source = of_source.max_characters(recipe.data.max_source_tokens)
    most_target = of_target.max_characters(recipe.data.max_target_tokens)
    sources = [pair.source for pair in chosen if len(pair.source) <= most_source]
    targets = [pair.target for pair in chosen if len(pair.target) <= most_target]
    source_ids = encode_source(of_source, sources, append_eos=recipe.source.append_eos)
    return Corpus(TokenSequences.of(source_ids), TokenSequences.of(of_target.encode_batch(targets)), 0)


def digests_of(files: Mapping[Split, SplitFiles]) -> tuple[dict[Split, dict[str, str]], str]:
    """Returns the sha256 of each split's files by path, and one digest of what they are read as."""
    by_path = {
        path: sha256_of(path)
        for path in dict.fromkeys(path for split_files in files.values() for path in split_files.paths)
    }
    digests = {split: {str(path): by_path[path] for path in split_files.paths} for split, split_files in files.items()}
    # Of the contents in their roles: where the files lie does not matter.
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
        pairs: by split.
        num_empty, num_huge: by split, the pairs left out: of an empty side; of a side too long to be measured.
        notes: on how they were read.
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
    held_out = _HeldOut()
    refusals = []
    for split in HELD_OUT:
        if split in files:
            reader = PairReader(files[split])
            try:
                read = list(reader)
                held_out.pairs[split] = [pair for pair in read if is_measurable(pair)]
                held_out.num_huge[split] = len(read) - len(held_out.pairs[split])
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


def _facts(train: TrainingSplit, validation: Corpus, held_out: Mapping[Split, Sequence[Pair]]) -> dict[str, Any]:
    survey, corpus = train.survey, train.corpus
    sources = [frozenset(pair.source for pair in held_out[split]) for split in HELD_OUT if split in held_out]
    return {
        "num_trained_pairs": len(corpus),
        "num_duplicates": survey.num_duplicates,
        "num_left_out": survey.num_left_out,
        "num_too_long": {"train": corpus.num_too_long, "validation": validation.num_too_long},
        "num_unequal": {"train": corpus.num_unequal, "validation": validation.num_unequal},
        "num_pairs_of_shared_sources": survey.num_shared,
        "num_sources_shared_with_training": {split: len(shared) for split, shared in survey.shared_sources.items()},
        "num_sources_shared_by_validation_and_test": len(frozenset.intersection(*sources)) if len(sources) > 1 else 0,
        "num_tokens": {"source": len(corpus.sources.ids), "target": len(corpus.targets.ids)},
        "vocabulary_size": {
            "source": train.source_tokenizer.vocabulary_size,
            "target": train.target_tokenizer.vocabulary_size,
        },
        "unknown_share_in_validation": {
            "source": unknown_share(validation.sources),
            "target": unknown_share(validation.targets),
        },
    }
