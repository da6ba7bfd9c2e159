"""A recipe: one TOML file that describes a whole experiment. Each component defines its own table."""

import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import numpy as np
import tomli_w
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from attendant.runtime.command import suggestion
from attendant.runtime.errors import UserError
from attendant.runtime.files import read_text
from attendant.training.data.config import BatchConfig, DataConfig, Split
from attendant.training.data.corpus import DistillationConfig
from attendant.training.data.fetch import RECIPES
from attendant.training.data.pairs import InMemoryPairs, is_in_memory
from attendant.training.data.tokenization import SourceConfig, TargetConfig, TokenizerConfig, TokenizerKind
from attendant.training.evaluation.evaluating import EvaluationConfig
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.kernels.hardware import WantedDevice, WantedPrecision
from attendant.training.model import ModelConfig
from attendant.training.optimization import DECAYS_TO_AN_END, OptimizerConfig, ScheduleConfig
from attendant.training.table import Count, Share, Table, as_written, parsed_toml, problems_of, requirement

RECIPE_NAME: Final = "recipe.toml"
STANDARD_INPUT: Final = Path("-")


class TrainerConfig(Table):
    """`[training]`. The first limit that is reached ends the training.

    Attributes:
        start_from: a run directory. This training begins with its best weights, on the same data or others, and uses
            its tokenizers. `[source]`, `[target]` and `[model]` must be equal except for `model.dropout`. --resume no
            longer needs it. If None, the weights are random.
        source_vectors: a file of word vectors (the text format of word2vec, GloVe and fastText) with
            `model.embedding_size` numbers each, as initial embeddings. Symbols that are not in it start at random.
            --resume no longer needs it. If None, all start at random.
        target_vectors: the same for targets; also for shared embeddings.
        max_epochs: passes over the training split.
        max_steps: updates.
        max_seconds: seconds of training and validation together, over all resumptions.
        label_smoothing: e of Szegedy et al. 2016, section 7.
        coverage_loss: weight of a loss on repeated attention to the same positions (See et al. 2017, eq. 13). 0
            disables it.
        scheduled_sampling: the probability, at the run's limit, that an input of the decoder is the model's own
            prediction instead of the true symbol. It rises linearly, from 0 after `schedule.warmup_steps` (Bengio et
            al. 2015). If 0, all inputs are the true symbols.
        clip_norm: gradients with a larger norm are scaled down to this norm (Pascanu et al. 2013). 0 disables it.
        accumulate_batches: batches whose gradients make one update, as if they were one batch. An epoch's last update
            may have fewer.
        ema_decay: d of an exponential moving average of the weights (Polyak and Juditsky 1992), which is then validated
            and published instead of the weights; between 0.99 and 0.9999, higher for longer trainings. If None, no
            average.
        precision: "fp32"; "bf16" and "fp16": mixed precision, products in 16 bits (bf16: GPUs, and CPUs with
            avx512_bf16 or AMX; fp16: GPUs only); "auto": bf16 if the hardware has it, else fp16 on a GPU and fp32 on a
            CPU.
        divergence_margin: in nats per target token. A loss that exceeds its lowest value by this margin counts as
            diverging.
        divergence_updates: this many diverging updates in a row stop the training; 0 disables it. A loss or gradient
            that is not finite stops it at once.
        checkpoint_every_seconds: longest time between checkpoints, and so the most work that a killed run loses. Every
            validation also writes a checkpoint.
        checkpoint_every_steps: the same limit, in steps.
        keep_checkpoints: number of last validated checkpoints to keep, for `attendant average`. The best and the last
            one are always kept.
        log_every_steps: steps that each line of metrics.jsonl summarizes; the first line after a resumption may
            summarize fewer.
        device: "auto": CUDA if there is a device, else the CPU.
        num_threads: threads of torch on the CPU. If None, one for each core that the process may use, by its affinity
            and its container's quota. A run resumes bit for bit only with the same number.
    """

    start_from: str | None = None
    source_vectors: str | None = None
    target_vectors: str | None = None
    max_epochs: Count | None = None
    max_steps: Count | None = None
    max_seconds: Annotated[float, Field(gt=0.0)] | None = None
    label_smoothing: Share = 0.1
    coverage_loss: Annotated[float, Field(ge=0.0)] = 0.0
    scheduled_sampling: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    accumulate_batches: Count = 1
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    precision: WantedPrecision = "fp32"
    divergence_margin: Annotated[float, Field(gt=0.0)] = 2.0
    divergence_updates: Annotated[int, Field(ge=0)] = 300
    checkpoint_every_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    checkpoint_every_steps: Count | None = None
    keep_checkpoints: Annotated[int, Field(ge=0)] = 0
    log_every_steps: Count = 20
    device: WantedDevice = "auto"
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = None

    @property
    def vectors(self) -> dict[str, str]:
        """The files of word vectors, by side."""
        named = {"source": self.source_vectors, "target": self.target_vectors}
        return {side: name for side, name in named.items() if name is not None}

    def steps_of_an_epoch(self, num_batches: int) -> int:
        """Returns the updates of an epoch of `num_batches` batches."""
        return ceil(num_batches / self.accumulate_batches)

    def step_limit(self, num_batches: int) -> int | None:
        """Returns the updates after which max_steps or max_epochs ends the training; None if neither is set.

        Args:
            num_batches: batches of an epoch.
        """
        by_epochs = None if self.max_epochs is None else self.max_epochs * self.steps_of_an_epoch(num_batches)
        return min((limit for limit in (self.max_steps, by_epochs) if limit is not None), default=None)

    @model_validator(mode="after")
    def refuse_contradictions(self) -> Self:
        if self.start_from is not None and self.vectors:
            raise ValueError(
                f"training.{next(iter(self.vectors))}_vectors would take the place of embeddings of "
                "training.start_from: leave one of them out"
            )
        if self.precision == "fp16" and self.device == "cpu":
            raise ValueError(
                'training.precision = "fp16" is for CUDA, and training.device = "cpu": set precision to "auto" or '
                '"fp32", or device to "cuda"'
            )
        return self


class ValidationConfig(Table):
    """`[validation]`. Decodes greedily, with the same search as the server.

    Attributes:
        metric: determines the best checkpoint, and early stopping. Of equal values, the one with the lower loss is
            better. "loss" decodes nothing.
        every_steps: steps between validations; if None, one after each epoch.
        max_examples: number of examples to decode, at equal distances in the data. If None, all. The loss is always
            that of all pairs within the limits of `[data]`.
        patience: stops after this many validations without a new best. If None, never.
    """

    metric: TextMetricName | Literal["loss"] = "loss"
    every_steps: Count | None = None
    max_examples: Count | None = None
    patience: Count | None = None


class Recipe(Table):
    """The file's tables.

    Attributes:
        description: purpose of the model, in one sentence for pages and clients.
        seed: random seed of the initial weights, of dropout and of the order of batches.
    """

    description: str = Field(default="", max_length=200)
    seed: int = Field(default=1, ge=0, lt=2**63)
    data: DataConfig
    source: SourceConfig
    target: TargetConfig
    model: ModelConfig = ModelConfig()
    batches: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainerConfig
    distillation: DistillationConfig = DistillationConfig()
    validation: ValidationConfig = ValidationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def refuse_contradictions(self) -> Self:
        for problem in (*self._problems_between_tables(), *self._problems_without_end()):
            raise ValueError(problem)
        return self

    def _problems_between_tables(self) -> Iterator[str]:
        shared, training = self.model.shared_embeddings, self.training
        for field in TokenizerConfig.model_fields if shared else ():
            source, target = getattr(self.source, field), getattr(self.target, field)
            if source != target:
                yield (
                    f"model.shared_embeddings = true trains one tokenizer for both sides, and source.{field} = "
                    f"{as_written(source)} differs from target.{field} = {as_written(target)}: make them equal"
                )
        if shared and training.source_vectors is not None:
            yield (
                "training.source_vectors: model.shared_embeddings = true has one matrix for both sides: name the file "
                "as training.target_vectors"
            )
        if training.coverage_loss and not self.model.has_attention:
            yield (
                f"training.coverage_loss = {training.coverage_loss:g} is of attention, and model.attention.score "
                'is "none": leave it out'
            )

    def _problems_without_end(self) -> Iterator[str]:
        training, limits = self.training, "training.max_epochs, max_steps or max_seconds"
        if (training.max_epochs, training.max_steps, training.max_seconds) != (None, None, None):
            return
        if self.schedule.kind in DECAYS_TO_AN_END:
            yield f'schedule.kind = "{self.schedule.kind}" falls towards an end: set {limits}'
        if training.scheduled_sampling:
            yield f"training.scheduled_sampling = {training.scheduled_sampling:g} rises towards an end: set {limits}"
        if self.validation.patience is None:
            yield f"training would never end: set {limits}, or validation.patience"

    def differences(self, other: Self, names: Collection[str]) -> Iterator[tuple[str, Any, Any]]:
        """Yields the fields in which another recipe differs: dotted name, own value and the other's.

        Args:
            names: names of the compared tables and fields.
        """
        here, there = self.fields(), other.fields()
        for field in here | there:
            own, theirs = here.get(field), there.get(field)
            if own != theirs and (field in names or field.partition(".")[0] in names):
                yield field, own, theirs

    def to_text(self, folder: Path | None = None) -> str:
        """Returns the resolved recipe as TOML, to be written into `folder`. The paths of files in this folder are
        relative, so that it can be moved.
        """

        def within(name: str) -> str:
            return name if folder is None else name.removeprefix(f"{folder}/")

        content = self.model_dump(mode="json", exclude_none=True)
        _rename(content, within)
        return tomli_w.dumps(content)


Overrides = Sequence[str] | Mapping[str, Any]
"""Changes of a recipe: `table.key=value` each, as --set takes them; or values by their dotted names. A table changes
the fields that it names."""

KeepPairs = Callable[[str, InMemoryPairs], dict[str, Any]]
"""Stores the pairs of a split; returns the files as `CorpusFiles` takes them."""


def load_recipe(path: Path, overrides: Overrides = (), *, keep_pairs: KeepPairs | None = None) -> Recipe:
    """Reads and validates a recipe.

    Args:
        path: the TOML file, a folder with a recipe.toml, or the name of a recipe that comes with the package.
        overrides: in text form, a value that is not TOML is taken as a string; None removes the key.

    Raises:
        UserError: one line per problem, with the file, the field, the value and the choices or the nearest key.
    """
    recipes = shipped_recipes()
    if (path / RECIPE_NAME).is_file():
        path /= RECIPE_NAME
    elif not path.is_file():
        path = recipes.get(path.as_posix(), path)
    if path.is_dir() or not path.exists():
        problem = f"there is no such recipe{suggestion(path.stem, recipes)}"
        if path.is_dir():
            problem = f"the folder has no {RECIPE_NAME}"
        elif path == STANDARD_INPUT:
            problem = "standard input is no recipe"
        raise UserError(
            f"{path}: {problem}; give a file, a folder with a {RECIPE_NAME}, or the name of an included recipe: "
            f"{', '.join(recipes)}"
        )
    content = parsed_toml(read_text(path), str(path))
    return recipe_from(content, str(path), overrides, folder=path.parent, keep_pairs=keep_pairs)


def recipe_from(
    content: Mapping[str, Any],
    name: str,
    overrides: Overrides = (),
    *,
    folder: Path | None = None,
    keep_pairs: KeepPairs | None = None,
) -> Recipe:
    """Returns the recipe of a parsed TOML file, or of the same tables as a dictionary.

    Args:
        name: its name in errors.
        overrides: as `load_recipe` takes them.
        folder: the folder of files that are not in the working directory; may be None.
        keep_pairs: stores the splits that are pairs in memory; if None, they are refused.

    Raises:
        UserError: as `load_recipe`.
    """
    try:
        tables: dict[str, Any] = _plain(content)
    except RecursionError:
        raise UserError(f"{name}: tables or lists are nested too deep") from None
    for key, value in settings_of(overrides).items():
        _set(tables, key, value)
    if isinstance(data := tables.get("data"), dict):
        for split in get_args(Split):
            if keep_pairs is not None and is_in_memory(data.get(split)):
                data[split] = keep_pairs(split, data[split])
    if folder is not None:
        _rename(tables, partial(_located, folder))
    try:
        return Recipe.model_validate(tables, strict=True)
    except ValidationError as error:
        problems = [_explain(problem) for problem in problems_of(error)]
        if len(problems) == 1:
            raise UserError(f"{name}: {problems[0]}") from None
        raise UserError(f"{name}: {len(problems)} fields are wrong:", problems) from None


def shipped_recipes() -> dict[str, Path]:
    """Returns the recipes that come with the package: name -> file. A recipe.toml has the name of its folder."""
    names = {file: file.relative_to(RECIPES) for file in sorted(RECIPES.glob("*/*.toml"))}
    return {
        (name.parent if name.name == RECIPE_NAME else name.with_suffix("")).as_posix(): file
        for file, name in names.items()
    }


def _rename(content: Mapping[str, Any], rename: Callable[[str], str]) -> None:
    """Renames the files of data and tokenizers in a recipe's tables."""

    def renamed(files: Any) -> Any:
        if isinstance(files, list):
            return [renamed(name) for name in files]
        if isinstance(files, dict):
            return {key: names if key == "columns" else renamed(names) for key, names in files.items()}
        return rename(files) if isinstance(files, str) else files

    keys = {"data": get_args(Split), "source": ("tokenizer",), "target": ("tokenizer",)}
    for name, names in keys.items():
        if not isinstance(table := content.get(name), dict):
            continue
        for key in names:
            if key in table and (key != "tokenizer" or table[key] not in get_args(TokenizerKind)):
                table[key] = renamed(table[key])


def _located(folder: Path, name: str) -> str:
    """Returns a file's name, or its path in `folder` if it is there and not in the working directory."""
    return str(folder / name) if not Path(name).exists() and (folder / name).exists() else name


def _plain(value: Any) -> Any:
    """Returns a copy of a recipe's tables, with names instead of paths, and numbers instead of numpy's."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def settings_of(overrides: Overrides) -> dict[str, Any]:
    """Returns the values of overrides by their dotted names. Raises UserError: one is not `table.key=value`."""
    if isinstance(overrides, Mapping):
        return {name: each for key, value in overrides.items() for name, each in _fields_of(str(key), value)}
    settings: dict[str, Any] = {}
    is_single = isinstance(overrides, str) or not isinstance(overrides, Iterable)
    for override in [overrides] if is_single else overrides:
        key, equals, text = str(override).partition("=")
        if not equals:
            raise UserError(f"--set {override}: must be table.key=value, e.g. --set training.max_epochs=3")
        try:
            content = tomllib.loads(f"value = {text.strip()}")
        except (ValueError, RecursionError):
            content = {"value": text.strip()}
        if len(content) > 1:
            raise UserError(f"--set {override}: has several lines: give each key a --set of its own")
        settings |= _fields_of(key.strip(), content["value"])
    return settings


def _fields_of(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a table by their dotted names; anything else, such as the files of a split, as it is."""
    if isinstance(value, Mapping) and ("." not in key or key.startswith("model.") or key == "data.split"):
        for name, each in value.items():
            yield from _fields_of(f"{key}.{name}", each)
    else:
        yield key, value


MAX_TABLES: Final = 8
"""Limit of the tables in a dotted name, of which a recipe has three at most."""


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    *tables, name = key.split(".")
    if not all((*tables, name)) or len(tables) > MAX_TABLES:
        raise UserError(f"--set {key}={value}: must be table.key=value, e.g. --set training.max_epochs=3")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {key}={value}: {table} is a value, not a table")
        content = inner
    if value is None:
        content.pop(name, None)
    else:
        content[name] = _plain(value)


CLOSE: Final = 0.8  # Similarity, by difflib, of a key to that of another table.


def _explain(problem: ErrorDetails) -> str:
    location = [part for part in problem["loc"] if isinstance(part, str)]
    field = ".".join(str(part) or '""' for part in problem["loc"]) or "recipe"
    match problem["type"]:
        case "extra_forbidden":
            choices = list(_table_at(location[:-1]).model_fields)
            meant = suggestion(location[-1], choices) or _elsewhere(location[-1])
            return f"unknown key {field}" + (meant or f"; known here: {', '.join(choices)}")
        case "invalid_key":
            return f"unknown key {field}; keys are texts"
        case "missing":
            return f"{field} is missing"
        case "value_error":
            # Raised by our own validators, which name field, value and remedy.
            text = str(problem["ctx"]["error"])
            if text.startswith("must be "):
                return f"{field} = {as_written(problem['input'])}: {text}"
            return text if not location or text.startswith(f"{location[0]}.") else f"{field}: {text}"
        case _:
            return f"{field} = {as_written(problem['input'])}: {requirement(problem)}"


def _table_at(location: Sequence[str]) -> type[BaseModel]:
    table: type[BaseModel] = Recipe
    for name in location:
        (table,) = _tables_of(table.model_fields[name])
    return table


def _tables_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Returns the table that a field is, in a list; an empty list for a value. `Table | None` is a table too."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _elsewhere(key: str) -> str:
    """Returns the end of a message: the dotted names of the fields with this key, or nearly this key, in any table."""
    names = list(_names_in(Recipe))
    near = get_close_matches(key, [name.rpartition(".")[2] for name in names], n=1, cutoff=CLOSE)
    meant = [name for name in names if name.rpartition(".")[2] in near]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _names_in(table: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of the fields of a table and the tables within it."""
    for name, field in table.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _tables_of(field):
            yield from _names_in(inner, f"{prefix}{name}.")
