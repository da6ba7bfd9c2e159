"""The base class of a recipe's tables: frozen, keyword-only, and strict about its keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """A table of a recipe, beside the component that it configures; training/recipe/recipe.py composes the tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
