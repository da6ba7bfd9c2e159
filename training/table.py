"""The base class of a recipe's tables: frozen, keyword-only, and strict about its keys."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from attendant.runtime.errors import UserError, one_line, shown

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]

# By pydantic's type of an error, whose message names a type of Python.
EXPECTED: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    "string_unicode": "a text that can be written in UTF-8",
    "string_too_long": "a text of at most {max_length} characters",
    "tuple_type": 'a list, e.g. ["a", "b"] or [1, 2]',
    "too_short": "a list that is not empty",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a table, {{key = value, ...}}"),
}


def as_written(value: Any) -> str:
    """Returns a value as a recipe writes it, in a line: `true` and `[1, 2]`, not `True` and `(1, 2)`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return one_line(f"[{', '.join(map(as_written, value))}]")
    return shown(value)


def as_setting(field: str, value: Any) -> str:
    """Returns `field = value`, or `no field` if the value is None."""
    return f"no {field}" if value is None else f"{field} = {as_written(value)}"


class Table(BaseModel):
    """A table of a recipe. Each is defined with the component that it configures; training/recipe.py composes them.

    Validation is strict: "160" is not accepted for 160, nor 1 for true.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def lists_are_tuples(cls, value: Any) -> Any:
        """Turns lists into tuples, which TOML lacks."""
        if not isinstance(value, dict):
            return value
        return {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}

    def refuse_idle(self, name: str, kind: str, owners: Mapping[str, Sequence[str]]) -> None:
        """Refuses values that have no effect.

        Args:
            name: name of this table.
            kind: kind of its component.
            owners: field -> the kinds that it affects.

        Raises:
            ValueError: a field without effect is not at its default.
        """
        for field, kinds in owners.items():
            value = getattr(self, field)
            if kind not in kinds and value != type(self).model_fields[field].default:
                raise ValueError(
                    f'{name}.{field} = {as_written(value)} means nothing to {name}.kind = "{kind}": leave it out, or '
                    f"take {' or '.join(kinds)}"
                )

    def fields(self) -> dict[str, Any]:
        """Returns each field by its dotted name, those of inner tables included; values as in JSON."""
        return dict(_flattened(self.model_dump(mode="json")))


def parsed_toml(text: str, name: str) -> dict[str, Any]:
    """Returns the content of a TOML file. Raises UserError, whose message begins with `name`: it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}: is not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{name}: an integer has thousands of digits, or lists are nested too deep") from None


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def problems_of(error: ValidationError) -> list[ErrorDetails]:
    """Returns one problem for each field, named as in the recipe.

    If a field may be of several kinds, pydantic has a problem for each, with the kind in the name. If the items of a
    list are bad, it also reports that the list is too short.
    """
    problems: dict[tuple[int | str, ...], ErrorDetails] = {}
    for problem in error.errors():
        field = tuple(part for part in problem["loc"] if "[" not in str(part))
        if problem["type"] == "extra_forbidden" and "[" in str(problem["loc"][-1]):
            field = (*field, problem["loc"][-1])  # a key, such as `metrics[0]`
        value = problem["input"]
        shown_value = list(value) if isinstance(value, tuple) else value
        former = problems.setdefault(field, {**problem, "loc": field, "input": shown_value})
        if former["type"] == problem["type"] == "literal_error" and former["ctx"] is not problem["ctx"]:
            former["ctx"] = {"expected": f"{former['ctx']['expected']}, {problem['ctx']['expected']}"}
    items = {field[:-1] for field in problems if field}
    return [each for field, each in problems.items() if not (each["type"] == "too_short" and field in items)]


def requirement(problem: ErrorDetails) -> str:
    """Returns the end of a message: the values that are allowed."""
    if problem["type"] == "literal_error":
        return f"must be one of {problem['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    if problem["type"] in EXPECTED:
        return f"must be {EXPECTED[problem['type']].format(**problem.get('ctx', {}))}"
    return problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
