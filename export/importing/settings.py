"""What a checkpoint says of its model: plain values by name, each checked where it is taken."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
        """A value of the default's type; the default where there is none. Raises UserError where it is another type."""
        found = self.values.get(name)
        if found is None:
            return default
        if type(found) is int and isinstance(default, float):
            found = float(found)
        if type(found) is not type(default):
            raise UserError(f"{self._of(name)}: must be of type {type(default).__name__}")
        return found

    def one_of(self, name: str, representable: Mapping[Any, Value], default: Any) -> Value:
        """What a value stands for. Raises UserError where it is none of the representable ones."""
        found = self.value(name, default)
        if found not in representable:
            raise UserError(f"{self._of(name)}: can't be imported, only {' or '.join(map(repr, representable))} can")
        return representable[found]

    def only(self, name: str, value: Any) -> None:
        """Raises UserError where it is there and is not this one value; 0, "" and [] are None and False too."""
        found = self.values.get(name)
        if (found or None) != (value or None):
            raise UserError(f"{self._of(name)}: can't be imported, only {value!r} can")

    def _of(self, name: str) -> str:
        return f"{self.path}: {self.prefix}{name} = {self.values.get(name)!r}"
