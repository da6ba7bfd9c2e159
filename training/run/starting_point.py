"""A training that goes on from another run's weights, with its own data, rate and loss: fine-tuning."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.fetch.published import file_digest
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.checkpoint import BEST, MODEL_FILE, checkpoint_path, load_state, load_weights
from attendant.training.run.directory import Run

AGREEING_TABLES: Final = ("source", "target", "model")
FREE_FIELDS: Final = ("model.dropout",)


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The run that `training.start_from` names: its best checkpoint's weights, averaged where it averages."""

    run: Run

    @classmethod
    def of(cls, recipe: Recipe) -> "StartingPoint | None":
        """Where this recipe starts; None: from random weights.

        Raises:
            UserError: it is no run, has no checkpoint, or is of another architecture or other tokenizers.
        """
        if recipe.training.start_from is None:
            return None
        run = Run(Path(recipe.training.start_from))
        theirs = run.recipe()
        for field, own, other in _differences(recipe, theirs):
            raise UserError(
                f"training.start_from = {str(run.path)!r} was trained with {field} = {json.dumps(other)}, and this "
                f"recipe says {json.dumps(own)}: make them equal, or start from another run"
            )
        if checkpoint_path(run, BEST) is None:
            raise UserError(f"training.start_from = {str(run.path)!r} has no checkpoint {BEST!r} yet: train it first")
        return cls(run)

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Of source and target: the embeddings' rows are of these symbols, whatever the new data have."""
        return self.run.tokenizer("source"), self.run.tokenizer("target")

    def fill(self, model: Seq2Seq) -> dict[str, Any]:
        """Gives the model the weights. Returns what the new run says of them, start.json."""
        directory = checkpoint_path(self.run, BEST)
        assert directory is not None
        load_weights(directory, model)
        return {
            "run": str(self.run.path),
            "checkpoint": f"sha256:{file_digest(directory / MODEL_FILE)}",
            "step": load_state(directory).step,
        }


def _differences(recipe: Recipe, theirs: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Field, own value, their value."""
    other = theirs.fields()
    for field, value in recipe.fields().items():
        shall_agree = field.partition(".")[0] in AGREEING_TABLES and field not in FREE_FIELDS
        if shall_agree and value != other.get(field):
            yield field, value, other.get(field)
