"""A recipe: one TOML file that says a whole experiment. Its tables stand beside the components that they configure."""

import difflib
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import tomli_w
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from attendant.runtime.errors import UserError
from attendant.training.data.config import BatchConfig, DataConfig
from attendant.training.data.tokenization import SourceConfig, TargetConfig, TokenizerConfig
from attendant.training.evaluation import EvaluationConfig
from attendant.training.model import ModelConfig
from attendant.training.optimization.optimizer import OptimizerConfig
from attendant.training.optimization.schedule import DECAYS_TO_AN_END, ScheduleConfig
from attendant.training.recipe.training import TrainerConfig, ValidationConfig
from attendant.training.table import Table


class Recipe(Table):
    """The file's tables.

    Attributes:
        seed: of the first weights, dropout and the order of batches.
    """

    seed: int = Field(default=1, ge=0)
    data: DataConfig
    source: SourceConfig
    target: TargetConfig
    model: ModelConfig = ModelConfig()
    batches: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainerConfig
    validation: ValidationConfig = ValidationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def a_shared_vocabulary_is_one(self) -> Self:
        if self.model.shared_embeddings:
            for field in TokenizerConfig.model_fields:
                source, target = getattr(self.source, field), getattr(self.target, field)
                if source != target:
                    raise ValueError(
                        f"model.shared_embeddings = true trains one tokenizer for both sides, and source.{field} = "
                        f"{source!r} differs from target.{field} = {target!r}: make them equal"
                    )
        return self

    @model_validator(mode="after")
    def a_training_ends(self) -> Self:
        training = self.training
        limits = (training.max_epochs, training.max_steps, training.max_seconds)
        if all(limit is None for limit in limits):
            if self.schedule.kind in DECAYS_TO_AN_END:
                raise ValueError(
                    f'schedule.kind = "{self.schedule.kind}" falls towards an end: set training.max_epochs, max_steps '
                    "or max_seconds"
                )
            if self.validation.patience is None:
                raise ValueError(
                    "training would never end: set training.max_epochs, max_steps or max_seconds, or "
                    "validation.patience"
                )
        return self

    def to_text(self) -> str:
        """The resolved recipe as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load_recipe(path: Path, overrides: Sequence[str] = (), *, ignored: Collection[tuple[str, str]] = ()) -> Recipe:
    """Reads and validates a recipe.

    Args:
        path: the TOML file.
        overrides: `table.key=value` each; a value that is no TOML is taken as a string.
        ignored: table and key each, of what may stand there and means nothing.

    Raises:
        UserError: one line per problem, with the file, the field, the value and the choices or the nearest key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    for override in overrides:
        _apply(content, override)
    for table, key in ignored:
        content.get(table, {}).pop(key, None)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise UserError("\n".join(f"{path}: {_explain(problem)}" for problem in error.errors())) from None


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, name = key.strip().split(".")
    if not equals or not all((*tables, name)):
        raise UserError(f"--set {override}: must be table.key=value, e.g. --set training.max_epochs=3")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {override}: {table} is a value, not a table")
        content = inner
    content[name] = _parse(text.strip())


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(problem: ErrorDetails) -> str:
    location = [part for part in problem["loc"] if isinstance(part, str)]
    field = ".".join(map(str, problem["loc"])) or "recipe"
    match problem["type"]:
        case "extra_forbidden":
            choices = list(_table_at(location[:-1]).model_fields)
            nearest = difflib.get_close_matches(location[-1], choices, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known here: {', '.join(choices)}"
            return f"unknown key {field}; {hint}"
        case "missing":
            return f"{field} is missing"
        case "value_error":
            # Raised by our own validators, which name field, value and remedy.
            said = str(problem["ctx"]["error"])
            return said if not location or said.startswith(f"{location[0]}.") else f"{field}: {said}"
        case _:
            return f"{field} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _table_at(location: Sequence[str]) -> type[BaseModel]:
    table: type[BaseModel] = Recipe
    for name in location:
        annotation = table.model_fields[name].annotation
        # `Table | None` is a table too.
        candidates = [annotation, *get_args(annotation)]
        table = next(kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel))
    return table
