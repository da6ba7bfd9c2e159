"""What a checkpoint says of its model: plain values by name, each checked where it is taken."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from attendant.runtime.errors import UserError

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """A table of them.

    Attributes:
        path: the file, for errors.
        prefix: what goes before a name in errors: the tables that this one is in.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def table(self, name: str) -> "Settings":
        """The table in this one; empty where there is none. Raises UserError where it is something else."""
        return Settings(self.path, self.value(name, dict[str, Any]()), f"{self.prefix}{name}.")

    def value(self, name: str, default: Value) -> Value:
        """Returns a value of the default's type; the default if there is none.

        A whole number is a float too, 100.0 is a whole number, and 0 and 1 are no and yes.

        Raises:
            UserError: it is of another type.
        """
        value = self.values.get(name)
        if value is None:
            return default
        kind: Any = type(default)
        converts = (
            (type(value) is int and kind is float)
            or (type(value) is float and kind is int and value.is_integer())
            or (type(value) is int and kind is bool and value in (0, 1))
        )
        if converts:
            return cast(Value, kind(value))
        if type(value) is not kind:
            raise UserError(f"{self.name_of(name)}: must be of type {kind.__name__}")
        return cast(Value, value)

    def one_of(self, name: str, representable: Mapping[Any, Value], default: Any) -> Value:
        """Returns what a value stands for. Raises UserError if it is none of the representable ones."""
        value = self.value(name, default)
        if value not in representable:
            raise UserError(
                f"{self.name_of(name)}: can't be imported, only {' or '.join(map(repr, representable))} can"
            )
        return representable[value]

    def only(self, name: str, value: Any) -> None:
        """Raises UserError if a setting has another value than this one; 0, "" and [] are None and False too."""
        if (self.values.get(name) or None) != (value or None):
            raise UserError(f"{self.name_of(name)}: can't be imported, only {value!r} can")

    def name_of(self, name: str) -> str:
        """Returns how errors name a value: with the file, the tables that it is in, and the value."""
        return f"{self.path}: {self.prefix}{name} = {self.values.get(name)!r}"
