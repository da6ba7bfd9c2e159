"""Prepares a run for training: tokenizers, corpora, teachers' soft targets, first weights, and the run's metadata."""

import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer, special_ids
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.files import translate_os_errors, write_json, write_text
from attendant.training.data.batches import all_batches, collate
from attendant.training.data.corpus import Corpus, open_soft_targets, positions_of, store_soft_targets
from attendant.training.data.pairs import Example, sample_evenly
from attendant.training.evaluation.evaluating import Decoded, TextModel, decode_examples
from attendant.training.evaluation.metrics import perplexity, refuse_missing, take_statistics
from attendant.training.kernels.hardware import choose_device, choose_precision, use_threads
from attendant.training.kernels.loss import NEVER_GENERATED, smoothed_cross_entropy
from attendant.training.loop.update import Processes
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper, evaluating
from attendant.training.progress import progress_bar
from attendant.training.recipe import Recipe
from attendant.training.run.checkpoint import LAST, checkpoint_path
from attendant.training.run.corpora import TrainingSplit, prepare_corpora, refuse_unknown_targets, unknown_warnings
from attendant.training.run.directory import Run, read_json, versions
from attendant.training.run.loading import (
    load_initial_weights,
    load_members,
    starting_run,
    teaching_runs,
    weights_record,
)

CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
BYTES: Final = 4
"""Of a float32: weights, gradients and averages are of this type in every precision."""

COPIES: Final = {"adam": 4, "adamw": 4, "adadelta": 4, "sgd": 2}
"""Numbers that a training holds for each weight: the weight, its gradient, and the optimizer's averages."""

REMEDY: Final = "lower model.hidden_size, model.embedding_size or the vocabulary sizes"
# From glibc's malloc.h.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_MAX: Final = -4
NEVER: Final = 2**31 - 1

ALLOCATION_FAILED: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of the messages of torch's allocators."""


def check_memory(
    model: ModelConfig, source_size: int, target_size: int, *, optimizer: str, device: torch.device
) -> None:
    """Refuses a model whose training can't fit, before any of it is built.

    Args:
        source_size, target_size: of the vocabularies.
        optimizer: a key of COPIES.

    Raises:
        UserError: weights, gradients and the optimizer's averages need more memory than there is.
    """
    with torch.device("meta"):
        num_parameters = Seq2Seq(model, source_size, target_size).num_parameters
    needed, limit = num_parameters * COPIES[optimizer] * BYTES, total_memory(device)
    if limit is not None and needed > limit:
        raise UserError(
            f"model.hidden_size = {model.hidden_size}, model.embedding_size = {model.embedding_size}: "
            f"{num_parameters:,} parameters need {_gigabytes(needed)} for training by {optimizer}, and there are "
            f"{_gigabytes(limit)}: {REMEDY}"
        )


def total_memory(device: torch.device) -> int | None:
    """Returns the bytes of memory of a GPU, or of this machine or its container; None if the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [int(text) for path in CGROUP_LIMITS if (text := _content(path)).isdecimal()]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes, default=None)


@contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Raises UserError for an allocation that fails within, with the remedy; torch's message has no remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
            part in str(error) for part in ALLOCATION_FAILED
        ):
            raise
        raise UserError(
            "memory ran out: halve batches.max_tokens (with training.accumulate_batches = 2 an update uses as many "
            f"tokens), or {REMEDY}"
        ) from None


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def keep_freed_memory() -> bool:
    """Makes the process keep the memory that it frees, for reuse; its resident memory stays at the peak.

    Returns:
        False if the C library is not glibc, and nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return False
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # Large blocks come from the heap, not from a mapping each, which would go back to the kernel with its tensor; and
    # the heap is never trimmed.
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, NEVER))


def with_soft_targets(
    train: TrainingSplit,
    recipe: Recipe,
    run: Run,
    teachers: Sequence[Run],
    device: torch.device,
    announce: Callable[[str], None],
) -> tuple[Corpus, dict[str, Any] | None]:
    """The training split with the teachers' soft targets, and the content of teachers.json; where the recipe names no
    teachers, the split as it is and None.

    Args:
        run: that learns.
        teachers: empty where the run is resumed: teachers.json then says which they were.

    Raises:
        UserError: a teacher that can't be opened, or that starts or ends its texts otherwise than the first.
    """
    config, offsets = recipe.distillation, train.corpus.targets.offsets
    if not config.teachers:
        return train.corpus, None
    said: dict[str, Any] = (
        {"runs": list(map(weights_record, teachers))} if teachers else read_json(run.teachers_path, dict, "runs")
    )
    folder = recipe.data.corpus_folder(run.path)
    checkpoints = [one["checkpoint"] for one in said["runs"]]
    key = hashlib.sha256(json.dumps([train.key, *checkpoints, config.top_k]).encode()).hexdigest()
    found = open_soft_targets(folder / key, offsets, config)
    if found is None:
        loaded = load_members([Path(path) for path in config.teachers], "distillation.teachers")
        num_positions = int(offsets[-1]) + len(train.corpus)
        announce(f"asking {len(loaded)} teachers about {num_positions:,} symbols, once")
        ensemble = Ensemble([one.model for one in loaded]).to(device).eval()
        num_symbols = min(config.top_k, train.target_tokenizer.vocabulary_size - len(NEVER_GENERATED))
        with progress_bar() as progress:
            task = progress.add_task("asking", total=num_positions)
            store_soft_targets(
                folder / key,
                num_positions,
                num_symbols,
                _soft_targets(ensemble, train.corpus, recipe, num_symbols, device, partial(progress.advance, task)),
            )
        found = open_soft_targets(folder / key, offsets, config)
    return replace(train.corpus, soft_targets=found), said


@torch.inference_mode()
def _soft_targets(
    ensemble: Ensemble,
    corpus: Corpus,
    recipe: Recipe,
    num_symbols: int,
    device: torch.device,
    advance: Callable[[int], None],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]]:
    """Positions [n], their K most probable symbols [n, K] and those symbols' probabilities [n, K], which add up to 1,
    batch by batch; `advance` is called with each n.
    """
    for indices in all_batches(corpus, recipe.batches):
        batch = collate(corpus, indices, ensemble.start_id).to(device)
        log_probs = ensemble(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
        values, ids = log_probs.topk(num_symbols, -1)
        probabilities = torch.softmax(values.float(), -1).half()
        places = positions_of(corpus.targets.offsets, indices)
        yield places, ids.int().cpu().numpy(), probabilities.cpu().numpy()
        advance(len(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Validates a model as it stands.

    Attributes:
        corpus: the pairs whose loss is taken.
        num_words: of their targets, as perplexity counts them.
        examples: what is decoded.
    """

    recipe: Recipe
    corpus: Corpus
    num_words: int
    examples: Sequence[Example]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer

    @property
    def names(self) -> list[str]:
        """Of the values that `validate` returns, in their order."""
        return list(dict.fromkeys(("loss", "perplexity", "word_perplexity", self.recipe.validation.metric)))

    def validate(self, model: Seq2Seq, device: torch.device) -> dict[str, float]:
        """The loss (nats per target token, not smoothed), its perplexities and the configured metric, by name.

        Draws no random numbers: a training goes on as if it had not been looked at.
        """
        metric = self.recipe.validation.metric
        with evaluating(model):
            total, num_tokens = self._total_loss(model, device)
            decoded = [] if metric == "loss" else self._decoded(model, device)
        values = {
            "loss": total / num_tokens,
            "perplexity": perplexity(-total, num_tokens),
            "word_perplexity": perplexity(-total, self.num_words),
        }
        if metric != "loss":
            outputs, references = [one.text for one in decoded], [one.example.references for one in decoded]
            values[metric] = round(
                take_statistics(metric, outputs, references, self.recipe.evaluation.bleu_tokenizer).value, 4
            )
        return values

    def _total_loss(self, model: Seq2Seq, device: torch.device) -> tuple[float, int]:
        """The sum over all target tokens, and their number."""
        total, num_tokens = 0.0, 0
        for indices in all_batches(self.corpus, self.recipe.batches):
            batch = collate(self.corpus, indices, model.start_id).to(device)
            logits = model(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
            total += smoothed_cross_entropy(logits, batch.target_ids, label_smoothing=0.0).item()
            num_tokens += batch.num_target_tokens
        return total, num_tokens

    def _decoded(self, model: Seq2Seq, device: torch.device) -> list[Decoded]:
        max_length = self.recipe.data.max_target_tokens
        text_model = TextModel(
            stepper=TorchStepper(model, device),
            source_tokenizer=self.source_tokenizer,
            target_tokenizer=self.target_tokenizer,
            special_ids=special_ids(model.start_id),
            append_eos=self.recipe.source.append_eos,
            max_length=max_length,
        )
        return decode_examples(text_model, self.examples, DecodingOptions(max_length=max_length))


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
    with translate_os_errors(run.path):
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
