"""Writes docs/recipes.md from the recipe's own tables: their fields, defaults and docstrings."""

import inspect
import re
import typing
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from attendant.training.recipe import Recipe

PAGE = Path(__file__).parent / "recipes.md"
INTRODUCTION = """# Recipes

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
`python docs/write_recipes.py` writes this page from the tables themselves; `None` stands for a field that is left out.
"""


def page() -> str:
    described = _attributes(Recipe)
    rows = [f"| `{name}` | {_default(Recipe.model_fields[name])} | {text} |" for name, text in described.items()]
    tables = [_table(name, field.annotation) for name, field in Recipe.model_fields.items() if name not in described]
    return "\n".join([INTRODUCTION, "| field | default | what |\n|---|---|---|", *rows, "", *tables])


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
    """Field -> its words in the docstring."""
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


if __name__ == "__main__":
    PAGE.write_text(page())
