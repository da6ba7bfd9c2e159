"""Writes the tables of pages, and the schema, that are made from code: `python docs/write_pages.py`."""

import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from attendant.runtime.bundle.manifest import Manifest
from attendant.server.config import OPTIONS
from attendant.training.recipe import Recipe

DOCS = Path(__file__).parent


def introduction(page: str) -> str:
    """Returns the text of a page above its first table, which people write."""
    return (DOCS / page).read_text(encoding="utf-8").partition("\n| ")[0]


def recipes_page() -> str:
    """Returns docs/recipes.md: the fields, defaults and docstrings of a recipe's tables."""
    described = _attributes(Recipe)
    rows = [f"| `{name}` | {_default(Recipe.model_fields[name])} | {text} |" for name, text in described.items()]
    tables = [_table(name, field.annotation) for name, field in Recipe.model_fields.items() if name not in described]
    return "\n".join(
        [introduction("recipes.md"), "| field | default | description |\n|---|---|---|", *rows, "", *tables]
    )


def _table(name: str, table: type[BaseModel] | None) -> str:
    assert table is not None
    described = _attributes(table)
    for base in table.__mro__[1:]:
        if issubclass(base, BaseModel):
            described = _attributes(base) | described
    inner, rows = [], []
    for field, info in table.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and described.get(field) is None:
            inner.append(_table(f"{name}.{field}", kind))
        else:
            rows.append(f"| `{field}` | {_default(info)} | {described[field]}{_choices(info)} |")
    return "\n".join(
        [f"## `[{name}]`\n", _summary(table), "| field | default | description |\n|---|---|---|", *rows, "", *inner]
    )


def _summary(table: type[BaseModel]) -> str:
    text = inspect.cleandoc(table.__doc__ or "").split("\nAttributes:")[0]
    text = re.sub(r"^`\[.*?\]`[.:]?\s*", "", " ".join(text.split()))
    return f"{text[0].upper()}{text[1:]}\n" if text else ""


def _attributes(table: type[BaseModel]) -> dict[str, str]:
    """Returns field -> its text in the docstring."""
    _, _, listed = inspect.cleandoc(table.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}([\w, ]+?): (.*?)(?=^ {4}\w|\Z)", listed, re.DOTALL | re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for names, text in entries for name in names.split(",")}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if isinstance(info.default, str):
        return f'`"{info.default}"`'
    return f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"


def _choices(info: FieldInfo) -> str:
    """Returns the names that a field takes, if they are few and fixed."""
    names = [name for name in _literals(info.annotation) if isinstance(name, str)]
    other = ", or a file's name" if str in typing.get_args(info.annotation) else ""
    return f" One of {', '.join(f'`{name}`' for name in names)}{other}." if names else ""


def _literals(annotation: object) -> list[object]:
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [name for part in typing.get_args(annotation) for name in _literals(part)]


def serving_page() -> str:
    """Returns docs/serving.md: the server's options."""
    lines = [introduction("serving.md"), "| option | default | description |", "|---|---|---|"]
    for option in OPTIONS:
        flag = f"`{option.flag} {option.kind.unit}`" if option.kind.unit else f"`{option.flag}`"
        about = f"{option.about[0].upper()}{option.about[1:]}."
        cells = [cell.replace("|", "\\|") for cell in (flag, option.default_text, about)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def manifest_schema() -> str:
    """Returns docs/manifest.schema.json, without the classes' docstrings: docs/bundle.md describes the fields."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_descriptions(Manifest.model_json_schema(mode="validation")),
        "title": "The manifest of a bundle, format version 1",
    }
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key != "description" or not isinstance(part, str)}
        return {key: _without_descriptions(part) for key, part in kept.items() if key != "title" or "properties" in key}
    return [_without_descriptions(part) for part in value] if isinstance(value, list) else value


PAGES = {"recipes.md": recipes_page, "serving.md": serving_page, "manifest.schema.json": manifest_schema}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
