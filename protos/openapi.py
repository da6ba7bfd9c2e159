"""Writes the OpenAPI document of the HTTP API: python protos/openapi.py, which `make protos` runs.

The calls of Seq2Seq are made of the proto's descriptors and comments, and of the limits of requests. `openapi.json` has
the rest: errors, events, and the Open Inference Protocol, to which the decoding options and outputs are added.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from attendant.runtime.decoding.options import RANGES
from attendant.server.grpc.lists import MAX_REQUESTS
from attendant.server.grpc.requests import WHOLE as WHOLE_KINDS
from attendant.server.grpc.service import SERVICE
from attendant.server.http.app import ROUTES, STREAM, ApiRoute, path_parameters, query_parameters
from attendant.server.http.bodies import JSON, TEXTS
from attendant.server.http.endpoints import EVENT_STREAM, MEDIA_TYPE
from attendant.server.inference.service import FIELDS, MASKED, OUTPUTS, PREFIX, SAMPLING

sys.path.insert(0, str(Path(__file__).parent))

from check import PROTOS, describe

DOCUMENT: Final = PROTOS.parent / "server" / "http" / "openapi.json"

Schema = dict[str, Any]

TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
NUMBERS: Final[Mapping[int, Schema]] = {
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    # 64 bits are more than JavaScript's numbers hold, so the mapping writes them as strings.
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "pattern": "^[0-9]+$"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.CPPTYPE_BOOL: FLAG,
    FieldDescriptor.CPPTYPE_STRING: TEXT,
}

WHOLE_PATTERN, NUMBER_PATTERN = "^[0-9]+$", r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
"""Numbers in quotation marks, which the mapping reads too."""

BOUNDS: Final[Mapping[str, Schema]] = {
    name: {"exclusiveMinimum" if allowed.is_open else "minimum": allowed.least, "maximum": allowed.most}
    for name, allowed in RANGES.items()
}

OPTIONS: Final = {
    **{name: {"type": NUMBERS[field.cpp_type]["type"]} | BOUNDS.get(name, {}) for name, field in FIELDS.items()},
    "seed": {"type": "integer"} | BOUNDS["seed"],
    PREFIX: TEXT | {"description": "Tokens, separated by spaces."},
    MASKED: TEXT | {"description": "Positions, separated by spaces."},
    SAMPLING: {"type": "boolean", "enum": [True]},
    "binary_data_output": FLAG,
}
"""Parameters of ModelInfer."""

ALWAYS_SET: Final = frozenset({"timings", "limits", "defaults"})  # Fields with presence that every answer has.


def document() -> Schema:
    whole: Schema = json.loads((PROTOS / "openapi.json").read_text(encoding="utf-8"))
    parts = whole["components"]["schemas"]
    infer = parts["InferRequest"]["properties"]
    infer["parameters"]["properties"] = OPTIONS
    infer["outputs"]["items"]["properties"]["name"]["enum"] = list(OUTPUTS)
    infer["outputs"]["maxItems"] = len(OUTPUTS)
    schemas = _Schemas(parts)
    for route in ROUTES:
        schemas.add(SERVICE.methods_by_name[route.method].input_type, is_sent=True)
    paths = {route.path: {route.verb.lower(): _operation(route, schemas)} for route in ROUTES}
    whole["paths"] = paths | whole["paths"]
    return whole


def comments() -> dict[str, str]:
    """Returns the proto's comments by the full names of the declarations. Generated code has no comments."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "api.binpb")
        describe(PROTOS, image, "--include_source_info")
        files = FileDescriptorSet.FromString(image.read_bytes()).file
    (file,) = (file for file in files if file.package == SERVICE.file.package)
    texts: dict[str, str] = {}
    for location in file.source_code_info.location:
        text = " ".join((location.leading_comments or location.trailing_comments).split())
        declares = {file.DESCRIPTOR.fields_by_name[kind].number for kind in ("message_type", "enum_type", "service")}
        if text and location.path and location.path[0] in declares:
            texts[_name_at(file, location.path)] = text
    return texts


def _name_at(part: Any, path: Sequence[int]) -> str:
    """Returns the full name of the declaration at a path of numbers and places: `4, 2, 2, 0` is message 2's field 0."""
    names = [part.package]
    for number, place in zip(path[::2], path[1::2], strict=True):
        part = getattr(part, part.DESCRIPTOR.fields_by_number[number].name)[place]
        names.append(part.name)
    return ".".join(names)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class _Schemas:
    """Collects the schemas of messages: of requests as the server reads them, of responses as it writes them."""

    def __init__(self, schemas: dict[str, Schema]) -> None:
        """Adds to these schemas, by name."""
        self._schemas = schemas
        self._comments = comments()

    def comment(self, full_name: str) -> Schema:
        """Returns the proto's comment at a name as a description, or nothing if there is none."""
        return {"description": self._comments[full_name]} if full_name in self._comments else {}

    def add(self, message: Descriptor, *, is_sent: bool = False) -> Schema:
        """Returns a reference to the schema of a message that a caller sends, or that the server sends."""
        name = message.full_name.removeprefix(f"{SERVICE.file.package}.")
        if name in self._schemas:
            return _ref(name)
        schema: Schema = {"type": "object"} | self.comment(message.full_name)
        self._schemas[name] = schema
        field_schema = self._sent if is_sent else self._received
        schema["properties"] = {
            field.json_name: field_schema(field) | self.comment(field.full_name) for field in message.fields
        }
        if not is_sent:
            # Fields without presence are always there.
            schema["required"] = [
                field.json_name for field in message.fields if not field.has_presence or field.name in ALWAYS_SET
            ]
            return _ref(name)
        schema["additionalProperties"] = False
        both = [
            {"required": list(pair), "properties": {key: {"not": {"type": "null"}} for key in pair}}
            for choice in message.oneofs
            for pair in itertools.combinations([field.json_name for field in choice.fields], 2)
        ]
        if both:
            schema["not"] = {"anyOf": both}
        if name == "GenerateManyRequest":
            schema["properties"]["requests"] |= {"type": "array", "minItems": 1, "maxItems": MAX_REQUESTS}
            schema["required"] = ["requests"]
        return _ref(name)

    def texts(self) -> Schema:
        """Returns a reference to the schema of a list of texts, which has the other fields of a GenerateRequest."""
        properties = dict(self._schemas["GenerateRequest"]["properties"])
        del properties["text"], properties["tokens"]
        self._schemas["GenerateTexts"] = {
            "type": "object",
            "description": "Texts, and the options of all their requests.",
            "properties": {TEXTS: {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_REQUESTS}}
            | properties,
            "required": [TEXTS],
            "additionalProperties": False,
        }
        return _ref("GenerateTexts")

    def _sent(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            schema = self.add(field.message_type, is_sent=True)
            return {"type": "array", "items": schema} if field.is_repeated else {"oneOf": [schema, {"type": "null"}]}
        if field.is_repeated:
            return {"type": ["array", "null"], "items": NUMBERS[field.cpp_type]}
        bounds = BOUNDS.get(field.name, {})
        if field.cpp_type in WHOLE_KINDS:
            return {"type": ["integer", "string", "null"], "pattern": WHOLE_PATTERN} | bounds
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            return {"type": ["number", "string", "null"], "pattern": NUMBER_PATTERN} | bounds
        return {"type": [NUMBERS[field.cpp_type]["type"], "null"]}

    def _received(self, field: FieldDescriptor) -> Schema:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": NUMBERS[message.fields_by_name["value"].cpp_type]}
        if message is not None:
            schema = self.add(message)
        elif field.enum_type is not None:
            schema = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
        else:
            schema = NUMBERS[field.cpp_type]
        return {"type": "array", "items": schema} if field.is_repeated else schema


def _operation(route: ApiRoute, schemas: _Schemas) -> Schema:
    method = SERVICE.methods_by_name[route.method]
    names = path_parameters(route.path)
    parameters: list[Schema] = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    answers = {JSON: {"schema": schemas.add(method.output_type)}}
    if route.streaming is not None:
        schemas.add(SERVICE.methods_by_name[route.streaming].output_type)
        answers[EVENT_STREAM] = {"schema": _ref("StreamEvent")}
        about = "1: server-sent events; 0: one answer."
        choice = {"type": "string", "enum": ["0", "1"], "default": "0"}
        parameters.append({"name": STREAM, "in": "query", "description": about, "schema": choice})
    problem = {"description": "An error", "content": {MEDIA_TYPE: {"schema": _ref("Problem")}}}
    operation: Schema = {
        "operationId": route.method,
        "parameters": parameters,
        "responses": {"200": {"description": method.output_type.name, "content": answers}, "default": problem},
    } | schemas.comment(method.full_name)
    if route.verb == "GET":
        names = query_parameters(route, GetMessageClass(method.input_type))
        parameters += [{"name": name, "in": "query", "schema": TEXT} for name in names]
        return operation
    body = schemas.add(method.input_type, is_sent=True)
    if route.method == "GenerateMany":
        body = {"anyOf": [schemas.texts(), body]}
    return operation | {"requestBody": {"required": True, "content": {JSON: {"schema": body}}}}


if __name__ == "__main__":
    DOCUMENT.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
