"""Prepares a run for training: tokenizers, corpora, first weights, and the facts that the run records."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of, told_of, write_json, write_text
from attendant.training.data.config import Split, SplitFiles
from attendant.training.data.corpus import Corpus, PairEncoder, encode_pairs, max_length_ratio, unknown_share
from attendant.training.data.pairs import Pair, PairReader, group_references, no_pairs, sample_evenly
from attendant.training.data.training_split import TrainingSplit, prepare_training_split
from attendant.training.kernels.device import choose_device, use_threads
from attendant.training.kernels.precision import choose_precision
from attendant.training.loop.allocator import keep_freed_memory
from attendant.training.loop.memory import check_memory
from attendant.training.loop.processes import Processes
from attendant.training.loop.teaching import with_soft_targets
from attendant.training.loop.validation import Validator
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.checkpoint import LAST, checkpoint_path
from attendant.training.run.directory import Run, read_json, versions
from attendant.training.run.starting import load_initial_weights, starting_run, teaching_runs

SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
HELD_OUT: Final[tuple[Split, ...]] = ("validation", "test")
FIXED_ON_RESUME: Final = (
    "seed", "data", "source", "target", "model", "batches", "distillation", "optimizer.kind", "training.start_from",
    "training.source_vectors", "training.target_vectors",
)  # fmt: skip
"""Tables and fields."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that a trainer is made from."""

    run: Run
    recipe: Recipe
    model: Seq2Seq
    corpus: Corpus
    validator: Validator
    device: torch.device
    facts: dict[str, Any]


def prepare(
    run: Run,
    recipe: Recipe,
    processes: Processes | None = None,
    *,
    announce: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Reads the data, trains the tokenizers or takes the run's own, and writes what the run says of itself.

    A run that begins with another's weights, or learns from others, takes their tokenizers too.

    The first process does so while the others wait; they then find all of it in the run. Raises UserError: bad data;
    the run was begun with another recipe or other data; the run to start from does not fit.
    """
    processes = processes or Processes()
    device = choose_device(recipe.training.device, processes.local_rank if processes.is_many else None)
    processes.join(device)
    keep_freed_memory()
    use_threads(recipe.training.num_threads)
    # Refused before anything is read or written; the vocabularies are at least as large as this.
    choose_precision(recipe.training.precision, device)
    _check_memory(recipe, device, *[len(SPECIAL_TOKENS) + 1] * 2)
    if not processes.is_first:
        processes.wait()
    resumed = checkpoint_path(run, LAST) is not None
    start = None if resumed else starting_run(recipe)
    teachers = [] if resumed else teaching_runs(recipe, start)
    # Embeddings that another run trained are of its symbols, whatever the new data have.
    tokenizers_of = run if resumed or not processes.is_first else start or next(iter(teachers), None)
    files = {split: found for split in SPLITS if (found := recipe.data.files(split)) is not None}
    digests, digest = digests_of(files)
    if resumed:
        _check_resumption(run, recipe, digest)
    held_out, num_empty, notes = _read_held_out(files)
    train = prepare_training_split(
        files["train"],
        recipe.data,
        recipe.source,
        recipe.target,
        shared_vocabulary=recipe.model.shared_embeddings,
        digest=digest,
        held_out={split: frozenset(pair.source for pair in pairs) for split, pairs in held_out.items()},
        folder=recipe.data.corpus_folder(run.path),
        tokenizers=tokenizers_of.tokenizers() if tokenizers_of else None,
    )
    num_read = {split: len(pairs) for split, pairs in held_out.items()}
    left_out = train.survey.shared_sources if recipe.data.shared_sources == "drop_from_held_out" else {}
    held_out = {split: _without(pairs, frozenset(left_out.get(split, ())), split) for split, pairs in held_out.items()}
    corpus, teachers_record = with_soft_targets(train, recipe, run, teachers, device, announce)
    source_tokenizer, target_tokenizer = train.source_tokenizer, train.target_tokenizer
    tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
    encoder = PairEncoder(source_tokenizer, target_tokenizer, recipe.data, append_eos=recipe.source.append_eos)
    validation_corpus = encode_pairs(held_out["validation"], encoder)
    examples = group_references(held_out["validation"])
    facts = _facts(train, validation_corpus, held_out) | {
        "max_length_ratio": max_length_ratio(train.corpus, append_eos=recipe.source.append_eos),
        "digest": digest,
        "files": digests,
        "num_pairs": {"train": train.survey.num_pairs} | num_read,
        "num_validation_examples": len(examples),
        "num_empty": {"train": train.survey.num_empty} | num_empty,
        "notes": list(dict.fromkeys([*train.survey.notes, *notes])),
    }
    _check_memory(recipe, device, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    torch.manual_seed(recipe.seed)
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    started = {} if resumed else load_initial_weights(recipe, start, model, tokenizers)
    validator = Validator(
        recipe=recipe,
        corpus=validation_corpus,
        num_words=encoder.num_target_words,
        examples=sample_evenly(examples, recipe.validation.max_examples),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
    )
    if processes.is_first:
        records = {
            run.data_path: facts,
            run.versions_path: versions(),
            run.left_out_path: left_out,
            run.start_path: started,
            run.teachers_path: teachers_record,
        }
        _write(run, recipe, tokenizers, records)
        processes.wait()
    return Experiment(run, recipe, model, corpus, validator, device, facts)


def _check_memory(recipe: Recipe, device: torch.device, source_size: int, target_size: int) -> None:
    check_memory(recipe.model, source_size, target_size, optimizer=recipe.optimizer.kind, device=device)


def _write(run: Run, recipe: Recipe, tokenizers: Mapping[str, Tokenizer], records: Mapping[Path, Any]) -> None:
    """Writes what the run says of itself, but for empty records. The recipe is last: what has one is a run."""
    with told_of(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
    for side, tokenizer in tokenizers.items():
        write_text(run.tokenizer_path(side), tokenizer.to_text())
    for path, content in records.items():
        if content:
            write_json(path, content)
    write_text(run.recipe_path, recipe.to_text())


def _check_resumption(run: Run, recipe: Recipe, digest: str) -> None:
    for field, _, begun in recipe.differences(run.recipe(), FIXED_ON_RESUME):
        raise UserError(f"{run.path} was begun with {field} = {begun!r}: take that, or another --output")
    if read_json(run.data_path, dict, "digest")["digest"] != digest:
        raise UserError(f"the data of {run.path} have changed since it was begun: take another --output")


def digests_of(files: Mapping[Split, SplitFiles]) -> tuple[dict[Split, dict[str, str]], str]:
    """Returns the sha256 of each split's files by path, and one digest of what they are read as."""
    by_path = {
        path: sha256_of(path) for path in dict.fromkeys(path for found in files.values() for path in found.paths)
    }
    digests = {split: {str(path): by_path[path] for path in found.paths} for split, found in files.items()}
    # Of the contents in their roles: where the files lie does not matter.
    contents: dict[str, Any] = {split: [by_path[path] for path in found.paths] for split, found in files.items()}
    for split, found in files.items():
        if reading := found.reading():
            contents[f"{split} is read"] = reading
    return digests, hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _read_held_out(files: Mapping[Split, SplitFiles]) -> tuple[dict[Split, list[Pair]], dict[str, int], list[str]]:
    """Returns the pairs of the held-out splits, the empty ones that each lost, and notes on how they were read.

    Raises:
        UserError: no pairs; bad rows of all splits together, of the training split too.
    """
    read: dict[Split, list[Pair]] = {}
    num_empty: dict[str, int] = {}
    notes: list[str] = []
    refusals = []
    for split in HELD_OUT:
        if split in files:
            reader = PairReader(files[split])
            try:
                read[split] = list(reader)
                if not read[split]:
                    raise no_pairs(files[split])
            except UserError as refusal:
                refusals.append(refusal)
            num_empty[split] = reader.num_empty
            notes += reader.notes
    if refusals:
        try:
            for _ in PairReader(files["train"]):
                pass
        except UserError as refusal:
            refusals.append(refusal)
        first, *others = {str(refusal): refusal for refusal in refusals}.values()
        more = [line for refusal in others for line in (refusal.summary, *refusal.differences)]
        raise UserError(first.summary, [*first.differences, *more])
    return read, num_empty, notes


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
