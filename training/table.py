"""What every table of a recipe is: frozen, keyword-only, and strict about its keys."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of a recipe. It stands beside the component that it configures; training/recipe.py composes them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
