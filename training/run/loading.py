"""Opens trained runs: for evaluation, for export, to teach, or to start from; and reads word vectors.

Shapes: K symbols with a vector, E embedding size.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import Tokenizer, special_ids
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.runtime.stepper import Stepper
from attendant.training.data.config import CorpusFiles, Split
from attendant.training.data.pairs import Problems, group_references, numbered_lines, read_pairs, sample_evenly
from attendant.training.data.tokenization import WORD_START, encode_source
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.session import EvaluationData, OpenedModel, read_data
from attendant.training.kernels.hardware import choose_device, use_threads
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper
from attendant.training.recipe import Recipe
from attendant.training.run.checkpoint import (
    BEST,
    TrainingState,
    checkpoint_path,
    load_state,
    load_weights,
    weights_digest,
)
from attendant.training.run.directory import Run, read_json


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The symbols that are whole words: word -> id. Of bpe these are those that begin one."""
    symbols = {symbol: index for index, symbol in enumerate(tokenizer.tokens_of(range(tokenizer.vocabulary_size)))}
    begins = {symbol.removeprefix(WORD_START): index for symbol, index in symbols.items() if symbol[:1] == WORD_START}
    return begins or symbols


def read_vectors(path: Path, words: Mapping[str, int], size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The vectors of some words, read a line at a time; of a word that stands twice the first.

    Args:
        path: UTF-8; may be gzip.
        words: word -> id.
        size: E.

    Returns:
        ids [K], and their vectors [K, E].

    Raises:
        UserError: a file that can't be read; a line of another size, or of numbers that are none or not finite; none
            of the words.
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
    """Returns a line's numbers [E]; one that is none, or not finite in float32, is a problem."""
    with np.errstate(over="ignore"):
        try:
            vector = np.array(values, np.float32)
        except ValueError as error:
            problems.add("vector", path, number, str(error))
            return np.zeros(len(values), np.float32)
    for value in np.flatnonzero(~np.isfinite(vector))[:1]:
        problems.add("vector", path, number, f"number {value + 1} is {values[value]}")
    return vector


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with everything that says where it came from.

    Attributes:
        recipe: the recipe as resolved; `recipe.model_dump(mode="json")` is its plain form.
        model: in evaluation mode, on the CPU.
        checkpoint: "sha256:" and the digest of the weights' file.
        state: where the training stood.
        evaluation: entries {metric, value, protocol, num_examples, decoding}; may be empty.
        versions: what the training ran on; `commit` is among them.
        data: files with their digests, and counts; `digest` stands for all of them.
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
    def commit(self) -> str:
        return self.versions["commit"]

    @property
    def data_digest(self) -> str:
        return str(self.data["digest"])

    @property
    def max_length_ratio(self) -> float | None:
        """The ratio of training/data/corpus.py; None: the run is older than that, and did not record it."""
        found: float | None = self.data.get("max_length_ratio")
        return found

    def held_out_sources(self, limit: int, splits: Sequence[Split] = ("validation", "test")) -> list[list[int]]:
        """At most `limit` sources, without EOS, that a request could give; none where the data is not here any more."""
        sources: list[list[int]] = []
        for split in splits:
            files = self.recipe.data.files(split)
            if files is None or not all(path.is_file() for path in files.paths) or len(sources) >= limit:
                continue
            examples = sample_evenly(group_references(read_pairs(files)), limit - len(sources))
            encoded = encode_source(self.source_tokenizer, [example.source for example in examples], append_eos=False)
            sources += [source for source in encoded if 0 < len(source) <= self.recipe.data.max_source_tokens]
        return sources


def load_run(path: Path | str, which: str = BEST) -> LoadedRun:
    """Opens a run for evaluation or export.

    Args:
        which: "best" or "last".

    Raises:
        UserError: no run, no checkpoint yet, a damaged file.
    """
    run = Run(Path(path))
    recipe = run.recipe()
    directory = checkpoint_path(run, which)
    if directory is None:
        raise UserError(f"{run.path} has no checkpoint {which!r} yet: train it (--resume continues what was begun)")
    source_tokenizer, target_tokenizer = run.tokenizers()
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    load_weights(directory, model)
    return LoadedRun(
        path=run.path,
        recipe=recipe,
        model=model.eval(),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        checkpoint=weights_digest(directory),
        state=load_state(directory),
        evaluation=run.evaluations(),
        versions=read_json(run.versions_path, dict, "commit"),
        data=read_json(run.data_path, dict, "digest"),
    )


def load_members(paths: Sequence[Path], option: str, which: str = BEST) -> list[LoadedRun]:
    """Opens runs that predict together.

    Args:
        option: what names them, for errors.

    Raises:
        UserError: a run that can't be opened, or that has another tokenizer than the first.
    """
    loaded = [load_run(path, which) for path in paths]
    first = loaded[0]
    for one in loaded:
        for side in ("source_tokenizer", "target_tokenizer"):
            if getattr(one, side).to_text() != getattr(first, side).to_text():
                raise UserError(
                    f"{option}: {one.path} and {first.path} have different tokenizers ({side}): train all members with "
                    "the tokenizers of one (the same data, or training.start_from)"
                )
        ends = (one.model.start_id, one.recipe.source.append_eos)
        if ends != (first.model.start_id, first.recipe.source.append_eos):
            raise UserError(
                f"{option}: {one.path} and {first.path} differ in model.decoder.start_symbol or source.append_eos: "
                "train all members with the same"
            )
    return loaded


FREE_FIELDS: Final = ("model.dropout",)


def starting_run(recipe: Recipe) -> Run | None:
    """The run that `training.start_from` names; None: the training starts from random weights. Raises UserError: it is
    no run, has no checkpoint, or is of another architecture or other tokenizers.
    """
    name = recipe.training.start_from
    return None if name is None else _named_run(recipe, "training.start_from", name, ("source", "target", "model"))


def teaching_runs(recipe: Recipe, start: Run | None) -> list[Run]:
    """The runs that `distillation.teachers` names.

    Args:
        start: the run that the training starts from, whose tokenizers they must have too.

    Raises:
        UserError: as `starting_run`, but for the architecture; other tokenizers than the first has.
    """
    option, names = "distillation.teachers", recipe.distillation.teachers
    runs = [_named_run(recipe, option, name, ("source", "target")) for name in names]
    together = [start, *runs] if start else runs
    for run in runs:
        for own, theirs in zip(run.tokenizers(), together[0].tokenizers(), strict=True):
            if own.to_text() != theirs.to_text():
                raise UserError(
                    f"{option}: {run.path} and {together[0].path} have different tokenizers: take runs that share them"
                )
    return runs


def _named_run(recipe: Recipe, option: str, name: str, agreeing: Collection[str]) -> Run:
    run = Run(Path(name))
    for field, own, theirs in recipe.differences(run.recipe(), agreeing):
        if field not in FREE_FIELDS:
            raise UserError(
                f"{option} = {name!r} was trained with {field} = {json.dumps(theirs)}, and this recipe says "
                f"{json.dumps(own)}: make them equal, or take another run"
            )
    if checkpoint_path(run, BEST) is None:
        raise UserError(f"{option} = {name!r} has no checkpoint {BEST!r} yet: train it first")
    return run


def load_initial_weights(
    recipe: Recipe, start: Run | None, model: Seq2Seq, tokenizers: Mapping[str, Tokenizer]
) -> dict[str, Any]:
    """Gives the model the weights of a run's best checkpoint, averaged where it averages, or word vectors.

    Args:
        start: what `starting_run` found.
        tokenizers: "source" and "target".

    Returns:
        what the new run says of them, start.json; empty where the model begins as it is.

    Raises:
        UserError: word vectors that can't be read, or of another size than the embeddings, or of no symbol.
    """
    if start is None:
        return _take_vectors(recipe, model, tokenizers)
    directory = checkpoint_path(start, BEST)
    assert directory is not None
    load_weights(directory, model)
    return weights_record(start)


def _take_vectors(recipe: Recipe, model: Seq2Seq, tokenizers: Mapping[str, Tokenizer]) -> dict[str, Any]:
    """Puts them into the embeddings of the symbols that have one; the others keep their random values."""
    said = {}
    embeddings = {"source": model.embedding_of_sources, "target": model.target_embedding}
    for side, name in recipe.training.vectors.items():
        path, embedding = Path(name), embeddings[side]
        ids, vectors = read_vectors(path, words_of(tokenizers[side]), recipe.model.embedding_size)
        with torch.no_grad():
            embedding.weight[torch.from_numpy(ids)] = torch.from_numpy(vectors)
        said[f"{side}_vectors"] = {"file": name, "sha256": sha256_of(path), "num_symbols": len(ids)}
    return said


def weights_record(run: Run) -> dict[str, Any]:
    """What a run records of another one whose best weights it uses: {run, checkpoint, step}."""
    directory = checkpoint_path(run, BEST)
    assert directory is not None
    return {
        "run": str(run.path),
        "checkpoint": weights_digest(directory),
        "step": load_state(directory).step,
    }


def open_run(path: Path, checkpoint: str = BEST) -> OpenedModel:
    """Raises UserError where the run has no such checkpoint, or is damaged."""
    return open_runs([path], "", checkpoint)


def open_runs(paths: Sequence[Path], option: str, checkpoint: str = BEST) -> OpenedModel:
    """A run, or several as one model, which is measured as the first one's recipe says.

    Args:
        option: what names them, for errors.

    Raises:
        UserError: a run that can't be opened, or that has another tokenizer than the first.
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
    )


def model_of_runs(loaded: Sequence[LoadedRun]) -> TextModel:
    """A run's model, or several as an ensemble, on the device of the first one's recipe."""
    first = loaded[0]
    use_threads(None)
    model = first.model if len(loaded) == 1 else Ensemble([one.model for one in loaded])
    return text_model(first, TorchStepper(model, choose_device(first.recipe.training.device)))


def text_model(loaded: LoadedRun, stepper: Stepper) -> TextModel:
    """A run's text model around a stepper of its weights."""
    recipe = loaded.recipe
    return TextModel(
        stepper=stepper,
        source_tokenizer=loaded.source_tokenizer,
        target_tokenizer=loaded.target_tokenizer,
        special_ids=special_ids(loaded.model.start_id),
        append_eos=recipe.source.append_eos,
        max_length=recipe.data.max_target_tokens,
    )


def read_chosen(file: str | None, runs: Sequence[Path], split: Split) -> EvaluationData:
    """What `--data` names, FILE.tsv or SOURCE,TARGET; None: the split of these runs. Raises UserError: no such data."""
    return read_held_out(runs, split) if file is None else read_data(CorpusFiles.named(file))


def read_held_out(runs: Sequence[Path], split: Split) -> EvaluationData:
    """The held-out split that all these runs' recipes name, without what one of them was trained on. Raises UserError:
    a recipe names no such split, or another one than the first's; bad or no data.
    """
    found = [_held_out_files(path, split) for path in runs]
    for path, files in zip(runs, found, strict=True):
        if files != found[0]:
            raise UserError(
                f"the {split} split of {path} is {files}, that of {runs[0]} is {found[0]}: to compare them on one, "
                "give --data FILE.tsv"
            )
    return read_data(found[0], frozenset().union(*(Run(path).left_out(split) for path in runs)))


def _held_out_files(path: Path, split: Split) -> CorpusFiles:
    files = Run(path).recipe().data.files(split)
    if files is None:
        other = ", or --split validation" if split == "test" else ""
        raise UserError(f"the recipe of {path} has no data.{split}: give --data FILE.tsv{other}")
    return files
