"""What a training begins with, of other runs and of files: weights, teachers, word vectors."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.checkpoint import BEST, checkpoint_path, load_state, load_weights, weights_digest
from attendant.training.run.directory import Run
from attendant.training.run.vectors import read_vectors, words_of

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
