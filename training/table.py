"""The base class of a recipe's tables: frozen, keyword-only, and strict about its keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of a recipe, beside the component that it configures; training/recipe/recipe.py composes the tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def fields(self) -> dict[str, Any]:
        """Each field by its dotted name, those of the tables within included; values as JSON has them."""
        return dict(_flattened(self.model_dump(mode="json")))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
