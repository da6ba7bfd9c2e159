"""Writes the pages and the schema that are made from code: `python docs/write_pages.py`."""

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

RECIPES = """# Recipes

A recipe is one TOML file that describes a whole experiment: data, model, training. Those in `recipes/` come with the
package and go by their names: `attendant train g2p-cmudict-small`. Each is the `recipe.toml` of a folder, which also
has the code that builds its data and its measured results. The smallest recipe that works names data, tokenizers and a
limit of training:

```toml
[data]
train = "pairs.tsv"                          # source, tab, target; other formats: data.md
split = {validation = 0.05, test = 0.05}     # or files: validation = "validation.tsv"

[source]
tokenizer = "bpe"

[target]
tokenizer = "bpe"

[training]
max_epochs = 10
```

`train`, `validation` and `test` name a file, a list of files, `{pairs = FILE, columns = [...]}`, or
`{source = FILE, target = FILE}`: see [data.md](data.md#your-own-files). Relative paths start at the working directory;
data files that are not found there are looked up beside the recipe. `attendant train RECIPE --set table.key=value`
changes single fields. If a key is unknown or a value is bad, the error message names the nearest key or the choices.
The run directory keeps the recipe with every field resolved.
`python docs/write_pages.py` writes this page from the tables themselves; a default of `None` means that
the field is left out.
"""

SERVING = """# Serving options

```sh
attendant serve models/g2p-en
```

This page lists the server's options. Positional arguments are bundles and [repositories](models.md) of bundles;
`ATTENDANT_BUNDLES` names them too, separated by colons. Every option is also an environment variable: `--max-rows` is
`ATTENDANT_MAX_ROWS`. The command line takes precedence. A value out of range is refused with the option's name, the
value and the range.

The server ends with status 0 after SIGTERM or SIGINT, with 1 when an engine has failed for good, and with 2 for a bad
option, a port in use or a refused bundle ([what to do then](operations.md)).

In the table, a row is a live hypothesis: a request has `beam_size` rows. An engine decodes one model, in a process of
its own. The requests of bulk streams are bulk work; all others are interactive.

`python docs/write_pages.py` writes this page from the options themselves.

| option | default | what |
|---|---|---|
"""


def recipes_page() -> str:
    """Returns docs/recipes.md: the fields, defaults and docstrings of a recipe's tables."""
    described = _attributes(Recipe)
    rows = [f"| `{name}` | {_default(Recipe.model_fields[name])} | {text} |" for name, text in described.items()]
    tables = [_table(name, field.annotation) for name, field in Recipe.model_fields.items() if name not in described]
    return "\n".join([RECIPES, "| field | default | what |\n|---|---|---|", *rows, "", *tables])


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
        [f"## `[{name}]`\n", _summary(table), "| field | default | what |\n|---|---|---|", *rows, "", *inner]
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
    rows = []
    for option in OPTIONS:
        flag = f"`{option.flag} {option.kind.unit}`" if option.kind.unit else f"`{option.flag}`"
        about = f"{option.about[0].upper()}{option.about[1:]}."
        rows.append(" | ".join(cell.replace("|", "\\|") for cell in (flag, option.default_text, about)))
    return SERVING + "".join(f"| {row} |\n" for row in rows)


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
        (Path(__file__).parent / name).write_text(page())
