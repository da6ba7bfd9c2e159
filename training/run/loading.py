"""Opens trained runs: to evaluate, to export, to teach, or to start from; and reads word vectors.

Shapes: K symbols with a vector, E embedding size.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import Tokenizer, special_ids
from attendant.runtime.decoding.options import MAX_LENGTH_RATIO
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.runtime.stepper import Stepper
from attendant.training.data.config import Split, SplitFiles
from attendant.training.data.lines import Problems, numbered_lines
from attendant.training.data.pairs import group_references, read_pairs, sample_evenly
from attendant.training.data.tokenization import WORD_START, encode_source
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.session import EvaluationData, OpenedModel, read_data
from attendant.training.kernels.hardware import choose_device, use_threads
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper
from attendant.training.recipe import Recipe
from attendant.training.run.checkpoint import (
    BEST,
    LAST,
    TrainingState,
    checkpoint_path,
    load_state,
    load_weights,
    weights_digest,
)
from attendant.training.run.corpora import digests_of
from attendant.training.run.directory import Run, read_json
from attendant.training.table import as_setting

FREE_FIELDS: Final = ("model.dropout",)  # In these, a run to start from may differ from the recipe.


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with its provenance.

    Attributes:
        recipe: the recipe as resolved; `recipe.model_dump(mode="json")` is its plain form.
        model: in evaluation mode, on the CPU.
        checkpoint: "sha256:" and the digest of the weights' file.
        state: the training's state at the checkpoint.
        evaluation: entries {metric, value, protocol, num_examples, decoding} of this checkpoint; may be empty.
        versions: software and hardware of the training; `commit` is among them.
        data: files with their digests, and counts; `digest` is the digest of all of them.
    """

    path: Path
    recipe: Recipe
    model: Seq2Seq
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    checkpoint: str
    state: TrainingState
    evaluation: list[dict[str, Any]]
    versions: dict[str, str]
    data: dict[str, Any]

    @property
    def max_length_ratio(self) -> float | None:
        """The ratio of training/data/corpus.py. None for runs that are older than this record, and if it is beyond a
        bundle's range: the bundle's default is then the longest target.
        """
        ratio: float | None = self.data.get("max_length_ratio")
        return ratio if ratio is not None and ratio <= MAX_LENGTH_RATIO else None

    def text_model(self, stepper: Stepper) -> TextModel:
        """Returns a text model around a stepper of this run's weights."""
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return text_model_of(self.recipe, *tokenizers, stepper, self.model.start_id)

    def held_out_sources(self, limit: int, splits: Sequence[Split] = ("validation", "test")) -> list[list[int]]:
        """Returns at most `limit` sources that a request could have, without EOS; none if the data are gone."""
        sources: list[list[int]] = []
        for split in splits:
            files = self.recipe.data.files(split)
            if files is None or not all(path.is_file() for path in files.paths) or len(sources) >= limit:
                continue
            examples = sample_evenly(group_references(read_pairs(files)), limit - len(sources))
            encoded = encode_source(self.source_tokenizer, [example.source for example in examples], append_eos=False)
            sources += [source for source in encoded if 0 < len(source) <= self.recipe.data.max_source_tokens]
        return sources


def text_model_of(
    recipe: Recipe, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, stepper: Stepper, start_id: int
) -> TextModel:
    """Returns a text model around a stepper of weights that were trained by a recipe."""
    return TextModel(
        stepper=stepper,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        special_ids=special_ids(start_id),
        append_eos=recipe.source.append_eos,
        max_length=recipe.data.max_target_tokens,
    )


def load_run(path: Path | str, which: str = BEST) -> LoadedRun:
    """Opens a run for evaluation or export.

    Args:
        which: "best" or "last".

    Raises:
        UserError: not a run, no checkpoint yet, a damaged file.
    """
    run = Run(Path(path))
    recipe = run.recipe()
    if which not in (BEST, LAST):
        raise UserError(f"checkpoint={which!r}: must be {BEST!r} or {LAST!r}")
    directory = checkpoint_path(run, which)
    if directory is None:
        raise UserError(f"{run.path} has no checkpoint {which!r} yet: train it (--resume continues a training)")
    try:
        return _loaded(run, recipe, directory)
    except UserError:
        if checkpoint_path(run, which) == directory:
            raise
        return load_run(path, which)  # a training has replaced the checkpoint meanwhile


def _loaded(run: Run, recipe: Recipe, directory: Path) -> LoadedRun:
    """Opens a run's checkpoint. Raises UserError: a damaged file, or the checkpoint was removed."""
    source_tokenizer, target_tokenizer = run.tokenizers()
    with torch.random.fork_rng(devices=[]):  # the caller may be a callback of a training, which has its own numbers
        model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    load_weights(directory, model)
    checkpoint = weights_digest(directory)
    return LoadedRun(
        path=run.path,
        recipe=recipe,
        model=model.eval(),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        checkpoint=checkpoint,
        state=load_state(directory),
        evaluation=run.evaluations(checkpoint),
        versions=read_json(run.versions_path, dict, "commit"),
        data=read_json(run.data_path, dict, "digest"),
    )


def load_members(paths: Sequence[Path], option: str, which: str = BEST) -> list[LoadedRun]:
    """Opens runs that predict together.

    Args:
        option: the option that names them, for errors.

    Raises:
        UserError: a run can't be opened, or has another tokenizer, start symbol or end of sources than the first.
    """
    loaded = [load_run(path, which) for path in paths]
    first = loaded[0]
    for member in loaded:
        for side in ("source_tokenizer", "target_tokenizer"):
            if getattr(member, side).to_text() != getattr(first, side).to_text():
                raise UserError(
                    f"{option}: {member.path} and {first.path} have different tokenizers ({side}): train all members "
                    "with the tokenizers of one (the same data, or training.start_from)"
                )
        ends = (member.model.start_id, member.recipe.source.append_eos)
        if ends != (first.model.start_id, first.recipe.source.append_eos):
            raise UserError(
                f"{option}: {member.path} and {first.path} differ in model.decoder.start_symbol or source.append_eos: "
                "train all members with the same"
            )
    return loaded


def open_runs(paths: Sequence[Path], option: str = "", checkpoint: str = BEST) -> OpenedModel:
    """Opens a run, or several runs as an ensemble. The first run's recipe decides how they are measured.

    Raises:
        UserError: as `load_members`.
    """
    loaded = load_members(paths, option, checkpoint)
    weights = "" if checkpoint == BEST else f"{checkpoint} checkpoint"
    others = f"with {', '.join(map(str, paths[1:]))} as an ensemble" if len(paths) > 1 else ""
    return OpenedModel(
        path=paths[0],
        model=model_of_runs(loaded),
        config=loaded[0].recipe.evaluation,
        variant=", ".join(filter(None, (weights, others))),
        max_beam_size=None,
        checkpoint="" if others else loaded[0].checkpoint,
    )


def model_of_runs(loaded: Sequence[LoadedRun]) -> TextModel:
    """Returns a run's model, or several as an ensemble, on the device of the first one's recipe if it is there."""
    first = loaded[0]
    use_threads(None)
    model = first.model if len(loaded) == 1 else Ensemble([member.model for member in loaded])
    # A run may be measured on a host without the CUDA device that it was trained on.
    device = choose_device("cpu" if first.recipe.training.device == "cpu" else "auto")
    return first.text_model(TorchStepper(model, device))


def read_held_out(runs: Sequence[Path], split: Split) -> EvaluationData:
    """Reads the held-out split that the recipes of all runs name, without the sources that any run was trained on.

    Runs may have copies of it, e.g. of pairs in memory.

    Raises:
        UserError: a recipe names no such split, or another one than the first; bad or no data.
    """
    files_of_runs = [held_out_files(path, split) for path in runs]
    first = files_of_runs[0]
    for path, files in zip(runs, files_of_runs, strict=True):
        if files != first and digests_of({split: files})[1] != digests_of({split: first})[1]:
            raise UserError(
                f"the {split} split of {path} is {files}, that of {runs[0]} is {first}: to compare them on one, give "
                "--data FILE.tsv"
            )
    return read_data(first, frozenset().union(*(Run(path).left_out(split) for path in runs)))


def held_out_files(path: Path, split: Split) -> SplitFiles:
    """Returns the files of a held-out split of the recipe of a run. Raises UserError: it names none."""
    files = Run(path).recipe().data.files(split)
    if files is None:
        other = ", or --split validation" if split == "test" else ""
        raise UserError(f"the recipe of {path} has no data.{split}: give --data FILE.tsv{other}")
    return files


def starting_run(recipe: Recipe) -> Run | None:
    """Returns the run that `training.start_from` names. If None, the training starts from random weights.

    Raises:
        UserError: it is not a run, has no checkpoint, or has another architecture or other tokenizers.
    """
    name = recipe.training.start_from
    return None if name is None else _named_run(recipe, "training.start_from", name, ("source", "target", "model"))


def teaching_runs(recipe: Recipe, start: Run | None) -> list[Run]:
    """Returns the runs that `distillation.teachers` names.

    Args:
        start: the run that the training starts from; its tokenizers must be the teachers' too.

    Raises:
        UserError: as `starting_run`, except for the architecture; a run has a vocabulary for each side, and the
            recipe's model one for both.
    """
    option = "distillation.teachers"
    runs = [_named_run(recipe, option, name, ("source", "target")) for name in recipe.distillation.teachers]
    together = [start, *runs] if start else runs
    for name, run in zip(recipe.distillation.teachers, runs, strict=True):
        if recipe.model.shared_embeddings and len({tokenizer.to_text() for tokenizer in run.tokenizers()}) > 1:
            raise UserError(
                f"{option} = {name!r} has other symbols for sources than for targets, and model.shared_embeddings = "
                "true needs the same: leave it out, or take teachers that were trained with it"
            )
    for run in runs:
        for own, theirs in zip(run.tokenizers(), together[0].tokenizers(), strict=True):
            if own.to_text() != theirs.to_text():
                raise UserError(
                    f"{option}: {run.path} and {together[0].path} have different tokenizers: take runs that share them"
                )
    return runs


def _named_run(recipe: Recipe, option: str, name: str, equal_tables: Collection[str]) -> Run:
    run = Run(Path(name))
    for field, own, theirs in recipe.differences(run.recipe(), equal_tables):
        if field not in FREE_FIELDS:
            raise UserError(
                f"{option} = {name!r} was trained with {as_setting(field, theirs)}, and this recipe has "
                f"{as_setting(field, own)}: make them equal, or take another run"
            )
    if checkpoint_path(run, BEST) is None:
        raise UserError(f"{option} = {name!r} has no checkpoint {BEST!r} yet: train it first")
    return run


def load_initial_weights(
    recipe: Recipe, start: Run | None, model: Seq2Seq, tokenizers: Mapping[str, Tokenizer]
) -> dict[str, Any]:
    """Gives the model the published weights of the starting run's best checkpoint, or word vectors.

    Args:
        start: the result of `starting_run`.
        tokenizers: "source" and "target".

    Returns:
        the content of start.json; empty if the model keeps its random weights.

    Raises:
        UserError: word vectors can't be read, have another size than the embeddings, or belong to no symbol.
    """
    if start is not None:
        directory = checkpoint_path(start, BEST)
        assert directory is not None
        load_weights(directory, model)
        return weights_record(start)
    record = {}
    embeddings = {"source": model.embedding_of_sources, "target": model.target_embedding}
    for side, name in recipe.training.vectors.items():
        path = Path(name)
        ids, vectors = read_vectors(path, words_of(tokenizers[side]), recipe.model.embedding_size)
        with torch.no_grad():
            embeddings[side].weight[torch.from_numpy(ids)] = torch.from_numpy(vectors)
        record[f"{side}_vectors"] = {"file": name, "sha256": sha256_of(path), "num_symbols": len(ids)}
    return record


def weights_record(run: Run) -> dict[str, Any]:
    """Returns the record of another run whose best weights a run uses: {run, checkpoint, step}."""
    directory = checkpoint_path(run, BEST)
    assert directory is not None
    return {"run": str(run.path), "checkpoint": weights_digest(directory), "step": load_state(directory).step}


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the symbols that are whole words, word -> id; of bpe, the symbols that begin a word."""
    symbols = {symbol: index for index, symbol in enumerate(tokenizer.tokens_of(range(tokenizer.vocabulary_size)))}
    begins = {symbol.removeprefix(WORD_START): index for symbol, index in symbols.items() if symbol[:1] == WORD_START}
    return begins or symbols


def read_vectors(path: Path, words: Mapping[str, int], size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Reads word vectors in the text format of word2vec, GloVe and fastText, line by line.

    Each line is a word and its numbers, separated by spaces or tabs. A first line may have the number of words and of
    numbers. If a word occurs twice, the first vector counts.

    Args:
        path: UTF-8; may be compressed.
        words: word -> id.
        size: E.

    Returns:
        ids [K], and their vectors [K, E].

    Raises:
        UserError: the file can't be read; a line has another size, or numbers that are not finite; no word matches.
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
    """Returns a line's numbers [E]; numbers that can't be read or are not finite in float32 are problems."""
    with np.errstate(over="ignore"):
        try:
            vector = np.array(values, np.float32)
        except ValueError as error:
            problems.add("vector", path, number, str(error))
            return np.zeros(len(values), np.float32)
    for place in np.flatnonzero(~np.isfinite(vector))[:1]:
        problems.add("vector", path, number, f"number {place + 1} is {values[place]}")
    return vector
