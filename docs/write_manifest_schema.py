"""Writes docs/manifest.schema.json, the JSON Schema of a bundle's manifest, from the classes that read it."""

import json
from pathlib import Path
from typing import Any

from attendant.runtime.bundle.manifest import Manifest

PAGE = Path(__file__).parent / "manifest.schema.json"


def page() -> str:
    """Returns the schema. docs/bundle.md describes the fields, so the classes' docstrings are left out."""
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


if __name__ == "__main__":
    PAGE.write_text(page())
