"""A plan: a recipe, and variants of it that differ in one thing each, trained from several seeds."""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from attendant.runtime.errors import UserError
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.recipe import Recipe, load_recipe
from attendant.training.run.directory import Run
from attendant.training.table import Count, Table, problems_of, requirement

PLANS = Path(__file__).parent / "plans"
RUNS = Path("runs/experiments")

Results = TypeVar("Results", dict[str, Any], list[Any])


class Variant(Table):
    """`[[variants]]`.

    Attributes:
        name: of its run directories.
        what: it is, in a table and a picture.
        group: of what differs from the first variant, which is the base of all groups.
        recipe: what it begins with; None: the plan's.
        changes: as for `--set`, e.g. "model.cell=gru".
    """

    name: str
    what: str
    group: str
    recipe: Path | None = None
    changes: tuple[str, ...] = ()


class Plan(Table):
    """`plans/NAME.toml`.

    Attributes:
        question: what it is to answer.
        page: of docs/experiments, whose table and picture of the plan's name show its runs.
        metric: that is drawn.
        recipe: what variants begin with.
        changes: in all of them.
        seeds: each variant is trained from each of them.
        variants: the first is what the others differ from.
    """

    question: str
    page: str
    metric: TextMetricName
    recipe: Path
    changes: tuple[str, ...] = ()
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 2, 3)
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def names_differ(self) -> Self:
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ValueError(f"variants: two have one name, of {', '.join(names)}")
        return self

    def recipe_of(self, variant: Variant) -> Path:
        return variant.recipe or self.recipe

    def overrides(self, variant: Variant, seed: int) -> list[str]:
        """What a training changes in the recipe."""
        return [*self.changes, *variant.changes, f"seed={seed}"]

    def resolved(self, variant: Variant, seed: int) -> Recipe:
        """The recipe of a training. Raises UserError: a change that no recipe takes."""
        return load_recipe(self.recipe_of(variant), self.overrides(variant, seed))


def plan_names() -> list[str]:
    return sorted(path.stem for path in PLANS.glob("*.toml"))


def load_plan(name: str) -> Plan:
    """Raises UserError: there is no such plan, or it says what no plan says."""
    path = PLANS / f"{name}.toml"
    if not path.is_file():
        raise UserError(f"{name}: there is no such plan; there are {', '.join(plan_names())}")
    try:
        return Plan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problem = problems_of(error)[0]
        raise UserError(f"{path}: {'.'.join(map(str, problem['loc']))}: {requirement(problem)}") from None


def read_results(path: Path, nothing: Results) -> Results:
    """What has been measured so far, a JSON file of RUNS; `nothing` where it is not there yet."""
    found: Results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else nothing
    return found


def ended_runs(name: str, plan: Plan, variant: Variant) -> list[Run]:
    """Of a plan's variant, by seed."""
    return [run for seed in plan.seeds if (run := run_of(name, variant, seed)).evaluations()]


def run_of(name: str, variant: Variant, seed: int) -> Run:
    """Where the training of a plan's variant from a seed lies."""
    return Run(RUNS / name / f"{variant.name}-{seed}")
