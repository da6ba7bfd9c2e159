"""Writes the proto's comments where the server's OpenAPI document finds them: python protos/comments.py.

Generated code has no comments. `make protos` runs this.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

sys.path.insert(0, str(Path(__file__).parent))

from check import PROTOS, describe

COMMENTS = PROTOS.parent / "server" / "http" / "comments.json"
PARTS = {4: "message_type", 5: "enum_type", 6: "service"}
WITHIN = {
    "message_type": {2: "field", 3: "nested_type", 4: "enum_type"},
    "nested_type": {2: "field", 3: "nested_type", 4: "enum_type"},
    "enum_type": {2: "value"},
    "service": {2: "method"},
}


def comments() -> str:
    """Returns the comments as JSON, by the full names of what they stand at."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "api.binpb")
        describe(PROTOS, image, "--include_source_info")
        files = FileDescriptorSet.FromString(image.read_bytes()).file
    texts = {name: text for file in files if file.package == "attendant.v1" for name, text in _of(file)}
    return json.dumps(texts, indent=0, sort_keys=True, ensure_ascii=False) + "\n"


def _of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for location in file.source_code_info.location:
        text = " ".join((location.leading_comments or location.trailing_comments).split())
        if text and location.path and location.path[0] in PARTS:
            yield _name(file, list(location.path)), text


def _name(file: FileDescriptorProto, path: list[int]) -> str:
    """The full name of the declaration at a path of numbers and places: `4, 2, 2, 0` is message 2's field 0."""
    part: Any = file
    kinds, name = PARTS, file.package
    for number, place in zip(path[::2], path[1::2], strict=True):
        kind = kinds[number]
        part = getattr(part, kind)[place]
        kinds, name = WITHIN.get(kind, {}), f"{name}.{part.name}"
    return name


if __name__ == "__main__":
    COMMENTS.write_text(comments(), encoding="utf-8")
