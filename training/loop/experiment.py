"""Prepares a run for training: tokenizers, corpora, first weights, and the facts that the run records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import told_of, write_json, write_text
from attendant.training.data.corpus import Corpus
from attendant.training.data.pairs import sample_evenly
from attendant.training.evaluation.metrics import refuse_missing
from attendant.training.kernels.device import choose_device, use_threads
from attendant.training.kernels.precision import choose_precision
from attendant.training.loop.memory import check_memory, keep_freed_memory
from attendant.training.loop.processes import Processes
from attendant.training.loop.teaching import with_soft_targets
from attendant.training.loop.validation import Validator
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.checkpoint import LAST, checkpoint_path
from attendant.training.run.corpora import prepare_corpora, refuse_unknown_targets, unknown_warnings
from attendant.training.run.directory import Run, read_json, versions
from attendant.training.run.starting import load_initial_weights, starting_run, teaching_runs

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
    warnings: Sequence[str] = ()


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
    refuse_missing((recipe.validation.metric, *recipe.evaluation.metrics), recipe.evaluation.bleu_tokenizer)
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
    corpora = prepare_corpora(
        recipe,
        recipe.data.corpus_folder(run.path),
        tokenizers_of.tokenizers() if tokenizers_of else None,
        check_digest=partial(_check_resumption, run, recipe) if resumed else lambda digest: None,
    )
    if not resumed:
        refuse_unknown_targets(recipe, corpora)
    train, facts = corpora.train, corpora.facts
    corpus, teachers_record = with_soft_targets(train, recipe, run, teachers, device, announce)
    source_tokenizer, target_tokenizer = train.source_tokenizer, train.target_tokenizer
    tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
    _check_memory(recipe, device, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    torch.manual_seed(recipe.seed)
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    started = {} if resumed else load_initial_weights(recipe, start, model, tokenizers)
    validator = Validator(
        recipe=recipe,
        corpus=corpora.validation,
        num_words=corpora.num_validation_words,
        examples=sample_evenly(corpora.examples, recipe.validation.max_examples),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
    )
    if processes.is_first:
        records = {
            run.data_path: facts,
            run.versions_path: versions(),
            run.left_out_path: corpora.left_out,
            run.start_path: started,
            run.teachers_path: teachers_record,
        }
        _write(run, recipe, tokenizers, records)
        processes.wait()
    return Experiment(run, recipe, model, corpus, validator, device, facts, unknown_warnings(recipe, corpora))


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
