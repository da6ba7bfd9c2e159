"""Prepares a run for training: tokenizers, corpora, teachers' soft targets, first weights, and the run's metadata."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.files import translate_os_errors, write_json, write_text
from attendant.training.data.batches import all_batches, collate
from attendant.training.data.corpus import Corpus, open_soft_targets, positions_of, store_soft_targets
from attendant.training.data.pairs import sample_evenly
from attendant.training.data.vocabulary import tokenizer_for
from attendant.training.evaluation.evaluating import decode_examples
from attendant.training.evaluation.metrics import perplexity, refuse_missing, take_statistics
from attendant.training.kernels import hardware
from attendant.training.kernels.loss import NEVER_GENERATED, smoothed_cross_entropy
from attendant.training.loop.update import Processes
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper, evaluating
from attendant.training.progress import ShowProgress, counter
from attendant.training.recipe import Recipe
from attendant.training.run import loading
from attendant.training.run.checkpoint import LAST, checkpoint_path
from attendant.training.run.corpora import (
    SPLITS,
    Corpora,
    TrainingSplit,
    prepare_corpora,
    refuse_unknown_targets,
    warnings_of,
)
from attendant.training.run.directory import Run, read_json, versions
from attendant.training.table import as_setting

FIXED_ON_RESUME: Final = (
    "seed", "data", "source", "target", "model", "batches", "distillation", "optimizer.kind", "training.start_from",
    "training.source_vectors", "training.target_vectors", "training.accumulate_batches", "validation.metric",
    "validation.max_examples",
)  # fmt: skip
FREE_ON_RESUME: Final = (
    "data.directory", "data.cache",
    *(f"data.{split}.{name}" for split in SPLITS for name in ("pairs", "source", "target")),
)  # fmt: skip
"""Locations of the data, whose contents are compared by their digests."""
BYTES_PER_NUMBER: Final = 4  # Weights, gradients and averages are float32 in every precision.
# Numbers that a training holds for each weight: the weight, its gradient, and the optimizer's averages.
NUMBERS_PER_WEIGHT: Final = {"adam": 4, "adamw": 4, "adadelta": 4, "sgd": 2}


@dataclass(frozen=True, slots=True)
class Validator:
    """Validates a model: the loss under teacher forcing, and a metric of decoded outputs.

    Attributes:
        batches: of the pairs whose loss is taken, each [B] int64; the same in every validation.
    """

    recipe: Recipe
    corpora: Corpora
    batches: Sequence[NDArray[np.int64]]

    @property
    def names(self) -> list[str]:
        """The names of the values that `validate` returns, in their order."""
        return list(dict.fromkeys(("loss", "perplexity", "word_perplexity", self.recipe.validation.metric)))

    def validate(self, model: Seq2Seq, device: torch.device) -> dict[str, float]:
        """Returns the loss (nats per target token, not smoothed), its perplexities and the recipe's metric, by name.

        Draws no random numbers: the training continues as if it had not been validated.
        """
        recipe, corpora, train = self.recipe, self.corpora, self.corpora.train
        metric, scores = recipe.validation.metric, dict[str, float]()
        with evaluating(model):
            total, num_tokens = self._total_loss(model, device)
            if metric != "loss":
                stepper = TorchStepper(model, device)
                tokenizers = train.source_tokenizer, train.target_tokenizer
                text_model = loading.text_model_of(recipe, *tokenizers, stepper, model.start_id)
                examples = sample_evenly(corpora.examples, recipe.validation.max_examples)
                decoded = decode_examples(text_model, examples, DecodingOptions(max_length=text_model.max_length))
                outputs, references = [each.text for each in decoded], [each.example.references for each in decoded]
                statistics = take_statistics(metric, outputs, references, recipe.evaluation.bleu_tokenizer)
                scores[metric] = round(statistics.value, 4)
        return {
            "loss": total / num_tokens,
            "perplexity": perplexity(-total, num_tokens),
            "word_perplexity": perplexity(-total, corpora.num_validation_words),
            **scores,
        }

    def _total_loss(self, model: Seq2Seq, device: torch.device) -> tuple[float, int]:
        """Returns the sum over all target tokens, and their number."""
        total, num_tokens = 0.0, 0
        for indices in self.batches:
            batch = collate(self.corpora.validation, indices, model.start_id).to(device)
            logits = model(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
            total += smoothed_cross_entropy(logits, batch.target_ids, label_smoothing=0.0).item()
            num_tokens += batch.num_target_tokens
        return total, num_tokens


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that a trainer needs."""

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
    progress: ShowProgress | None = None,
) -> Experiment:
    """Reads the data, trains the tokenizers or takes the run's own, and writes the run's metadata.

    A run that begins with another's weights, or learns from others, takes their tokenizers too. The first process
    prepares while the others wait; they then read the results in the run directory.

    Args:
        announce: shows a line.
        progress: shows the teachers' work.

    Raises:
        UserError: bad data; the run was begun with another recipe or other data; the run to start from does not fit.
    """
    processes = processes or Processes()
    device = hardware.choose_device(recipe.training.device, processes.local_rank if processes.is_many else None)
    processes.join(device)
    hardware.keep_freed_memory()
    hardware.use_threads(recipe.training.num_threads)
    refuse_missing((recipe.validation.metric, *recipe.evaluation.metrics), recipe.evaluation.bleu_tokenizer)
    # Refused before anything is read or written; the vocabularies are at least as large as this.
    hardware.choose_precision(recipe.training.precision, device)
    check_memory(recipe.model, *[len(SPECIAL_TOKENS) + 1] * 2, optimizer=recipe.optimizer.kind, device=device)
    if not processes.is_first:
        processes.wait()
    resumed = checkpoint_path(run, LAST) is not None
    fixed = (*FIXED_ON_RESUME, "evaluation.bleu_tokenizer") if recipe.validation.metric == "bleu" else FIXED_ON_RESUME
    for field, _, begun in recipe.differences(run.recipe(), fixed) if resumed else ():
        if field not in FREE_ON_RESUME and not _is_tokenizer_of(run, field, recipe):
            raise UserError(f"{run.path} was begun with {as_setting(field, begun)}: take that, or another --output")
    start = None if resumed else loading.starting_run(recipe)
    teachers = [] if resumed else loading.teaching_runs(recipe, start)
    # Embeddings that another run trained belong to its symbols, also if the new data have others.
    tokenizers_of = run if resumed or not processes.is_first else start or next(iter(teachers), None)
    tokenizers = tokenizers_of.tokenizers() if tokenizers_of else None
    corpora = prepare_corpora(recipe, recipe.data.corpus_folder(run.path), tokenizers, run if resumed else None)
    if not resumed:
        refuse_unknown_targets(recipe, corpora)
    train, facts = corpora.train, corpora.facts
    corpus, teachers_record = _with_soft_targets(train, recipe, run, teachers, device, announce, progress)
    by_side = {"source": train.source_tokenizer, "target": train.target_tokenizer}
    sizes = [tokenizer.vocabulary_size for tokenizer in by_side.values()]
    check_memory(recipe.model, *sizes, optimizer=recipe.optimizer.kind, device=device)
    torch.manual_seed(recipe.seed)
    model = Seq2Seq(recipe.model, *sizes)
    start_record = {} if resumed else {run.start_path: loading.load_initial_weights(recipe, start, model, by_side)}
    if processes.is_first:
        records = start_record | {
            run.data_path: facts,
            run.versions_path: versions(),
            run.left_out_path: corpora.left_out,
            run.teachers_path: teachers_record,
        }
        _write(run, recipe, by_side, records)
        processes.wait()
    # Here, and not when it first validates: a pair beyond the budget is refused before the training.
    validator = Validator(recipe, corpora, all_batches(corpora.validation, recipe.batches))
    return Experiment(run, recipe, model, corpus, validator, device, facts, warnings_of(corpora))


def _is_tokenizer_of(run: Run, field: str, recipe: Recipe) -> bool:
    """Returns True if a field names a file with the tokenizer that the run has, which may be another file's copy."""
    for config, own in zip((recipe.source, recipe.target), run.tokenizers(), strict=True):
        if field == f"{config.TABLE}.tokenizer" and config.file is not None:
            return tokenizer_for(config, ()).to_text() == own.to_text()
    return False


def check_memory(
    model: ModelConfig, source_size: int, target_size: int, *, optimizer: str, device: torch.device
) -> None:
    """Refuses a model whose training does not fit into memory, before it is built.

    Args:
        source_size, target_size: sizes of the vocabularies.
        optimizer: a key of NUMBERS_PER_WEIGHT.

    Raises:
        UserError: weights, gradients and the optimizer's averages need more memory than there is.
    """
    with torch.device("meta"):
        num_parameters = Seq2Seq(model, source_size, target_size).num_parameters
    needed = num_parameters * NUMBERS_PER_WEIGHT[optimizer] * BYTES_PER_NUMBER
    limit = hardware.total_memory(device)
    if limit is not None and needed > limit:
        raise UserError(
            f"model.hidden_size = {model.hidden_size}, model.embedding_size = {model.embedding_size}: "
            f"{num_parameters:,} parameters need {needed / 1e9:,.1f} GB for training by {optimizer}, and there are "
            f"{limit / 1e9:,.1f} GB: {hardware.MEMORY_REMEDY}"
        )


def _write(run: Run, recipe: Recipe, tokenizers: Mapping[str, Tokenizer], records: Mapping[Path, Any]) -> None:
    """Writes the run's metadata, and removes records that are empty, which a training that never saved a step may have
    left. The recipe is last: a directory that has one is a run.
    """
    with translate_os_errors(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
    for side, tokenizer in tokenizers.items():
        write_text(run.tokenizer_path(side), tokenizer.to_text())
    for path, content in records.items():
        if content:
            write_json(path, content)
        else:
            path.unlink(missing_ok=True)
    write_text(run.recipe_path, recipe.to_text(run.path))


def _with_soft_targets(
    train: TrainingSplit,
    recipe: Recipe,
    run: Run,
    teachers: Sequence[Run],
    device: torch.device,
    announce: Callable[[str], None],
    progress: ShowProgress | None,
) -> tuple[Corpus, dict[str, Any] | None]:
    """Returns the training split with the teachers' soft targets, and the content of teachers.json; if the recipe names
    no teachers, the split as it is and None.

    Soft targets are kept on disk, not computed with each batch: they are the same in every epoch, and a teacher's
    forward pass takes a third of a training step.

    Args:
        run: the run that learns.
        teachers: empty if the run is resumed: teachers.json then names them.

    Raises:
        UserError: a teacher can't be opened, or starts or ends its texts differently from the first.
    """
    config, offsets = recipe.distillation, train.corpus.targets.offsets
    if not config.teachers:
        return train.corpus, None
    record: dict[str, Any] = (
        {"runs": list(map(loading.weights_record, teachers))}
        if teachers
        else read_json(run.teachers_path, dict, "runs")
    )
    checkpoints = [teacher["checkpoint"] for teacher in record["runs"]]
    key = hashlib.sha256(json.dumps([train.key, *checkpoints, config.top_k]).encode()).hexdigest()
    folder = recipe.data.corpus_folder(run.path) / key
    soft_targets = open_soft_targets(folder, offsets, config)
    if soft_targets is None:
        loaded = loading.load_members([Path(path) for path in config.teachers], "distillation.teachers")
        for teacher, checkpoint in zip(loaded, checkpoints, strict=True):
            if teacher.checkpoint != checkpoint:
                raise UserError(
                    f"{teacher.path} has other weights than when {run.path} began to learn from it, whose predictions "
                    f"are gone from {folder.parent}: take another --output"
                )
        num_positions = int(offsets[-1]) + len(train.corpus)
        announce(f"computing the predictions of {len(loaded)} teachers for {num_positions:,} symbols, once")
        ensemble = Ensemble([teacher.model for teacher in loaded]).to(device).eval()
        num_symbols = min(config.top_k, train.target_tokenizer.vocabulary_size - len(NEVER_GENERATED))
        advance = counter(progress, "teachers", num_positions)
        parts = _soft_targets(ensemble, train.corpus, recipe, num_symbols, device, advance)
        store_soft_targets(folder, num_positions, num_symbols, parts)
        soft_targets = open_soft_targets(folder, offsets, config)
    return replace(train.corpus, soft_targets=soft_targets), record


@torch.inference_mode()
def _soft_targets(
    ensemble: Ensemble,
    corpus: Corpus,
    recipe: Recipe,
    num_symbols: int,
    device: torch.device,
    advance: Callable[[int], None],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]]:
    """Yields positions [n], their K most probable symbols [n, K] and the symbols' probabilities [n, K], which add up to
    1, batch by batch; `advance` is called with each n.
    """
    for indices in all_batches(corpus, recipe.batches):
        batch = collate(corpus, indices, ensemble.start_id).to(device)
        log_probs = ensemble(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
        values, ids = log_probs.topk(num_symbols, -1)
        probabilities = torch.softmax(values.float(), -1).half()
        places = positions_of(corpus.targets.offsets, indices)
        yield places, ids.int().cpu().numpy(), probabilities.cpu().numpy()
        advance(len(places))
