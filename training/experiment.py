"""A run set up for training: tokenizers, corpora, first weights, and what the run says of them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.errors import UserError
from runtime.tokenizer import Tokenizer
from training.checkpoint import LAST, checkpoint_path
from training.data.config import CorpusFiles, Part
from training.data.corpus import Corpus, encode_pairs, unknown_share
from training.data.fetch.published import file_digest
from training.data.pairs import Pair, group_references, read_pairs, sample_evenly
from training.model import Seq2Seq
from training.recipe import Recipe
from training.run import Run, versions, write_json, write_text
from training.tokenization import train_tokenizer
from training.validation import Validator

PARTS: tuple[Part, ...] = ("train", "validation", "test")
FIXED_ON_RESUME = ("seed", "data", "source", "target", "model", "batches")


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a trainer takes."""

    run: Run
    recipe: Recipe
    model: Seq2Seq
    corpus: Corpus
    validator: Validator
    device: torch.device
    facts: dict[str, Any]


def prepare(run: Run, recipe: Recipe) -> Experiment:
    """Reads the data, trains the tokenizers or takes the run's own, and writes what the run says of itself.

    Raises:
        UserError: bad data; or the run was begun with another recipe or other data.
    """
    device = choose_device(recipe)
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)
    resumed = checkpoint_path(run, LAST) is not None
    files = {part: found for part in PARTS if (found := recipe.data.files(part)) is not None}
    digests = {part: {str(path): file_digest(path) for path in found.paths} for part, found in files.items()}
    # Of the contents in their roles: where the files lie does not matter.
    contents = {part: list(found.values()) for part, found in digests.items()}
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    if resumed:
        _check_resumption(run, recipe, digest)
    train = _read(files["train"])
    validation = _read(files["validation"])
    if resumed:
        source_tokenizer, target_tokenizer = run.tokenizer("source"), run.tokenizer("target")
    else:
        source_tokenizer, target_tokenizer = _train_tokenizers(recipe, train)
    corpus = _encode(recipe, train, source_tokenizer, target_tokenizer)
    validation_corpus = _encode(recipe, validation, source_tokenizer, target_tokenizer)
    examples = group_references(validation)
    facts = {
        "digest": digest,
        "files": digests,
        "num_pairs": {"train": len(train), "validation": len(validation)},
        "num_too_long": {"train": corpus.num_too_long, "validation": validation_corpus.num_too_long},
        "num_tokens": {"source": len(corpus.sources.ids), "target": len(corpus.targets.ids)},
        "num_validation_examples": len(examples),
        "num_validation_sources_seen_in_training": len(
            {example.source for example in examples} & {pair.source for pair in train}
        ),
        "vocabulary_size": {"source": source_tokenizer.vocabulary_size, "target": target_tokenizer.vocabulary_size},
        "unknown_share_in_validation": {
            "source": unknown_share(validation_corpus.sources),
            "target": unknown_share(validation_corpus.targets),
        },
    }
    torch.manual_seed(recipe.seed)
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    validator = Validator(
        config=recipe.validation,
        corpus=validation_corpus,
        batches=recipe.batches,
        examples=sample_evenly(examples, recipe.validation.max_examples),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        append_eos=recipe.source.append_eos,
        max_length=recipe.data.max_target_tokens,
    )
    run.path.mkdir(parents=True, exist_ok=True)
    write_text(run.tokenizer_path("source"), source_tokenizer.to_text())
    write_text(run.tokenizer_path("target"), target_tokenizer.to_text())
    write_json(run.path / "data.json", facts)
    write_json(run.path / "versions.json", versions())
    write_text(run.recipe_path, recipe.to_text())
    return Experiment(run, recipe, model, corpus, validator, device, facts)


def choose_device(recipe: Recipe) -> torch.device:
    """Raises UserError where CUDA is asked for and absent."""
    wanted = recipe.training.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda", and torch finds no CUDA device here: set it to "cpu" or "auto"')
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def refuse_existing(path: Path) -> None:
    """Raises UserError where the output stands already."""
    if path.exists():
        raise UserError(f"{path} exists: --resume continues it, --output names another")


def _check_resumption(run: Run, recipe: Recipe, digest: str) -> None:
    begun = run.recipe()
    for field in FIXED_ON_RESUME:
        if getattr(begun, field) != getattr(recipe, field):
            raise UserError(f"{run.path} was begun with another [{field}]: take that recipe, or another --output")
    if begun.optimizer.kind != recipe.optimizer.kind:
        raise UserError(
            f"{run.path} was begun with optimizer.kind = {begun.optimizer.kind!r}: take that, or another --output"
        )
    if run.facts("data.json")["digest"] != digest:
        raise UserError(f"the data of {run.path} have changed since it was begun: take another --output")


def _read(files: CorpusFiles) -> list[Pair]:
    pairs = list(read_pairs(files))
    if not pairs:
        raise UserError(f"{files} has no pairs")
    return pairs


def _train_tokenizers(recipe: Recipe, pairs: list[Pair]) -> tuple[Tokenizer, Tokenizer]:
    if recipe.model.shared_embeddings:
        shared = train_tokenizer(recipe.target, (text for pair in pairs for text in (pair.source, pair.target)))
        return shared, shared
    source = train_tokenizer(recipe.source, (pair.source for pair in pairs))
    return source, train_tokenizer(recipe.target, (pair.target for pair in pairs))


def _encode(recipe: Recipe, pairs: list[Pair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> Corpus:
    append_eos = recipe.source.append_eos
    return encode_pairs(pairs, source_tokenizer, target_tokenizer, recipe.data, append_eos=append_eos)
