"""The base class of a recipe's tables: frozen, keyword-only, and strict about its keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

Count = Annotated[int, Field(ge=1)]

KINDS: Final = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "finite": "a finite number",
    "int": "a whole number",
    "model": "a table",
    "string": "a text in quotes",
    "tuple": "a list",
}
"""By the first word of the type of a pydantic error."""

NUMBERS: Final = ("bool", "float", "int")

LIMITS: Final = {
    "greater_than": ("be above {:g}", "gt"),
    "greater_than_equal": ("be at least {:g}", "ge"),
    "less_than": ("be below {:g}", "lt"),
    "less_than_equal": ("be at most {:g}", "le"),
    "too_short": ("have {} or more", "min_length"),
}
"""By the type of a pydantic error: what a value must, and which fact of the error it is told with."""


class Table(BaseModel):
    """A table of a recipe, beside the component that it configures; training/recipe.py composes the tables.

    A recipe is validated strictly: "160" is not taken for 160, nor 1 for true.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def lists_are_tuples(cls, value: Any) -> Any:
        """Takes TOML's lists for the tuples that the fields have, which are the one type that TOML lacks."""
        if not isinstance(value, dict):
            return value
        return {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}

    def refuse_idle(self, name: str, kind: str, owners: Mapping[str, Sequence[str]]) -> None:
        """Refuses a value that has no effect.

        Args:
            name: of this table.
            kind: what it configures.
            owners: field -> the kinds that it means something to.

        Raises:
            ValueError: a field that means nothing to this kind is not at its default.
        """
        for field, kinds in owners.items():
            value = getattr(self, field)
            if kind not in kinds and value != type(self).model_fields[field].default:
                raise ValueError(
                    f'{name}.{field} = {value} means nothing to {name}.kind = "{kind}": leave it out, or take '
                    f"{' or '.join(kinds)}"
                )

    def fields(self) -> dict[str, Any]:
        """Each field by its dotted name, those of the tables within included; values as JSON has them."""
        return dict(_flattened(self.model_dump(mode="json")))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def problems_of(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong, by fields as the user knows them.

    Of a field that may be of several kinds pydantic tells one problem for each, under a name that has the kind in it;
    of a list also that it is too short, once its bad items are gone.
    """
    found: dict[tuple[int | str, ...], ErrorDetails] = {}
    for problem in error.errors():
        field = tuple(part for part in problem["loc"] if "[" not in str(part))
        value = problem["input"]
        shown = list(value) if isinstance(value, tuple) else value
        former = found.setdefault(field, {**problem, "loc": field, "input": shown})
        if former["type"] == problem["type"] == "literal_error" and former["ctx"] is not problem["ctx"]:
            former["ctx"] = {"expected": f"{former['ctx']['expected']}, {problem['ctx']['expected']}"}
    items = {field[:-1] for field in found if field}
    return [one for field, one in found.items() if not (one["type"] == "too_short" and field in items)]


def requirement(problem: ErrorDetails) -> str:
    """What a value must be, in the words of our own checks."""
    kind, told = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        return f"must be one of {told['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    if kind in LIMITS:
        words, limit = LIMITS[kind]
        return f"must {words.format(told[limit])}"
    if (name := kind.split("_")[0]) in KINDS:
        is_text = isinstance(problem["input"], str) and name in NUMBERS
        return f"must be {KINDS[name]}" + (", and this is a text: leave the quotes out" if is_text else "")
    return problem["msg"][0].lower() + problem["msg"][1:]
