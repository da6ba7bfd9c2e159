"""Writes the OpenAPI document of the HTTP API: python protos/openapi.py, which `make protos` runs.

The part of Seq2Seq is made of the proto's descriptors and comments, and of the limits of requests. The part of the Open
Inference Protocol is `inference/openapi.json`, to which the decoding options are added.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from attendant.runtime.bundle.manifest import MAX_BEAM, MAX_TOKENS
from attendant.runtime.decoding.options import MAX_SAMPLED_CANDIDATES
from attendant.runtime.requests import (
    MAX_LENGTH_RATIO,
    MAX_PATIENCE,
    MAX_PENALTY,
    MAX_TEMPERATURE,
    MAX_TRACED_CANDIDATES,
)
from attendant.server.call import REQUEST_ID_HEADER
from attendant.server.grpc.lists import MAX_REQUESTS
from attendant.server.grpc.requests import WHOLE as WHOLE_KINDS
from attendant.server.grpc.service import SERVICE
from attendant.server.http.app import ROUTES, STREAM, ApiRoute, path_parameters, query_parameters
from attendant.server.http.bodies import JSON, TEXTS
from attendant.server.http.endpoints import EVENT_STREAM, MAX_SECONDS, MEDIA_TYPE, TIMEOUT_HEADER
from attendant.server.inference.service import FIELDS, MASKED, PREFIX, SAMPLING

sys.path.insert(0, str(Path(__file__).parent))

from check import PROTOS, describe

DOCUMENT: Final = PROTOS.parent / "server" / "http" / "openapi.json"

Schema = dict[str, Any]

TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
# 64 bits are more than JavaScript's numbers hold, so the mapping writes them as strings.
LARGE: Final = {"type": "string", "pattern": "^[0-9]+$"}
NUMBERS: Final[Mapping[int, Schema]] = {
    FieldDescriptor.CPPTYPE_UINT32: WHOLE,
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT64: LARGE,
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.CPPTYPE_BOOL: FLAG,
    FieldDescriptor.CPPTYPE_STRING: TEXT,
}

WHOLE_PATTERN, NUMBER_PATTERN = "^[0-9]+$", r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
"""Numbers in quotation marks, which the mapping reads too."""


RANGES: Final[Mapping[str, Schema]] = {
    "beam_size": {"minimum": 1, "maximum": MAX_BEAM},
    "num_hypotheses": {"minimum": 1, "maximum": MAX_BEAM},
    "length_penalty": {"minimum": 0, "maximum": MAX_PENALTY},
    "length_penalty_offset": {"minimum": 0, "maximum": MAX_PENALTY},
    "coverage_penalty": {"minimum": 0, "maximum": MAX_PENALTY},
    "repetition_penalty": {"minimum": 1, "maximum": MAX_PENALTY},
    "min_length": {"minimum": 0, "maximum": MAX_TOKENS},
    "max_length": {"minimum": 1, "maximum": MAX_TOKENS},
    "min_length_ratio": {"exclusiveMinimum": 0, "maximum": MAX_LENGTH_RATIO},
    "max_length_ratio": {"exclusiveMinimum": 0, "maximum": MAX_LENGTH_RATIO},
    "patience": {"exclusiveMinimum": 0, "maximum": MAX_PATIENCE},
    "no_repeat_ngram_size": {"minimum": 0, "maximum": MAX_TOKENS},
    "temperature": {"exclusiveMinimum": 0, "maximum": MAX_TEMPERATURE},
    "top_k": {"minimum": 0, "maximum": MAX_SAMPLED_CANDIDATES},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "seed": {"minimum": 0, "maximum": 2**64 - 1},
    "trace": {"minimum": 0, "maximum": MAX_TRACED_CANDIDATES},
}
"""What any model may allow. `Limits` says what a model allows."""

ANY: Final = {
    "type": "object",
    "properties": {"@type": TEXT},
    "required": ["@type"],
    "description": "A message of google.rpc: BadRequest, RetryInfo, RequestInfo.",
}
PROBLEM: Final = {
    "type": "object",
    "description": "RFC 9457, with the gRPC code's name and google.rpc's details.",
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": TEXT,
        "code": {"type": "string", "examples": ["INVALID_ARGUMENT"]},
        "details": {"type": "array", "items": ANY},
    },
    "required": ["type", "title", "status", "detail", "code", "details"],
}


PARTS = {4: "message_type", 5: "enum_type", 6: "service"}
WITHIN = {
    "message_type": {2: "field", 3: "nested_type", 4: "enum_type"},
    "nested_type": {2: "field", 3: "nested_type", 4: "enum_type"},
    "enum_type": {2: "value"},
    "service": {2: "method"},
}


def comments() -> dict[str, str]:
    """Returns the proto's comments by the full names of the declarations. Generated code has no comments."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "api.binpb")
        describe(PROTOS, image, "--include_source_info")
        files = FileDescriptorSet.FromString(image.read_bytes()).file
    return {name: text for file in files if file.package == "attendant.v1" for name, text in _comments_of(file)}


def _comments_of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for location in file.source_code_info.location:
        text = " ".join((location.leading_comments or location.trailing_comments).split())
        if text and location.path and location.path[0] in PARTS:
            yield _declaration_at(file, list(location.path)), text


def _declaration_at(file: FileDescriptorProto, path: list[int]) -> str:
    """Returns the full name of the declaration at a path of numbers and places: `4, 2, 2, 0` is message 2's field 0."""
    part: Any = file
    kinds, name = PARTS, file.package
    for number, place in zip(path[::2], path[1::2], strict=True):
        kind = kinds[number]
        part = getattr(part, kind)[place]
        kinds, name = WITHIN.get(kind, {}), f"{name}.{part.name}"
    return name


OPTIONS: Final = {
    **{name: {"type": NUMBERS[field.cpp_type]["type"]} | RANGES.get(name, {}) for name, field in FIELDS.items()},
    "seed": {"type": "integer"} | RANGES["seed"],
    PREFIX: TEXT | {"description": "Tokens, separated by spaces."},
    MASKED: TEXT | {"description": "Positions, separated by spaces."},
    SAMPLING: {"type": "boolean", "enum": [True]},
    "binary_data_output": FLAG,
}
"""Parameters of ModelInfer."""


def document() -> Schema:
    """Returns the whole document."""
    schemas = _Schemas(comments())
    for route in ROUTES:
        schemas.request(SERVICE.methods_by_name[route.method].input_type)
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas)
    inference = json.loads((PROTOS / "inference" / "openapi.json").read_text(encoding="utf-8"))
    inference["schemas"]["InferRequest"]["properties"]["parameters"]["properties"] = OPTIONS
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Attendant",
            "version": SERVICE.file.package.rpartition(".")[2],
            "description": f"The service {SERVICE.full_name} in protobuf's JSON mapping (fields may have the proto's "
            "names too: beam_size), and the Open Inference Protocol. Every call may have two headers: "
            f"{TIMEOUT_HEADER}, the seconds within which its answer is wanted (above 0, at most {MAX_SECONDS:g}), and "
            f"{REQUEST_ID_HEADER}, the id of a request whose body has none.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths | inference["paths"],
        "components": {
            "schemas": schemas.schemas | inference["schemas"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [],
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class _Schemas:
    """Collects the schemas of messages: of requests as the server reads them, of responses as it writes them."""

    def __init__(self, comments: Mapping[str, str]) -> None:
        self._comments = comments
        self.schemas: dict[str, Schema] = {"Problem": PROBLEM, "google.protobuf.Any": ANY}

    def comment(self, full_name: str) -> Schema:
        """Returns the proto's comment at a name as a description, or nothing if there is none."""
        text = self._comments.get(full_name)
        return {} if text is None else {"description": text}

    def request(self, message: Descriptor) -> Schema:
        """Returns a reference to the schema of a message that a caller sends."""
        name = _name_of(message)
        if name not in self.schemas:
            schema = self._begin(name, message)
            schema["properties"] = {field.json_name: self._sent(field) for field in message.fields}
            schema["additionalProperties"] = False
            both = [pair for choice in message.oneofs for pair in _pairs(choice.fields)]
            if both:
                schema["not"] = {"anyOf": both}
            if message.full_name == "attendant.v1.GenerateManyRequest":
                schema["properties"]["requests"] |= {"type": "array", "minItems": 1, "maxItems": MAX_REQUESTS}
                schema["required"] = ["requests"]
        return _ref(name)

    def response(self, message: Descriptor) -> Schema:
        """Returns a reference to the schema of a message that the server sends.

        Fields without presence are always there.
        """
        name = _name_of(message)
        if name not in self.schemas:
            schema = self._begin(name, message)
            schema["properties"] = {field.json_name: self._received(field) for field in message.fields}
            schema["required"] = [field.json_name for field in message.fields if not field.has_presence]
        return _ref(name)

    def texts(self) -> Schema:
        """Returns a reference to the schema of a list of texts, which has the other fields of a GenerateRequest."""
        like = self.schemas["GenerateRequest"]
        shared = {key: value for key, value in like["properties"].items() if key not in ("text", "tokens")}
        texts = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_REQUESTS}
        self.schemas["GenerateTexts"] = {
            "type": "object",
            "description": "Texts, and the options of all their requests.",
            "properties": {TEXTS: texts} | shared,
            "required": [TEXTS],
            "additionalProperties": False,
        }
        return _ref("GenerateTexts")

    def events(self, message: Descriptor) -> Schema:
        """Returns a reference to the schema of a server-sent event: its name and its data."""
        self.response(message)
        kinds = {field.name: self._received(field) for field in message.fields}
        for name, schema in kinds.items():
            self.schemas[f"{name.capitalize()}Data"] = _object({name: schema}, description=f"The data of `{name}`.")
        data = {name: _ref(f"{name.capitalize()}Data") for name in kinds} | {"error": _ref("Problem")}
        self.schemas["StreamEvent"] = {
            "description": "A server-sent event; its data are JSON. `response`, or `error`, is the last one.",
            "oneOf": [
                _object(
                    {
                        "event": {"type": "string", "enum": [name]},
                        "data": {"type": "string", "contentMediaType": JSON, "contentSchema": schema},
                    }
                )
                for name, schema in data.items()
            ],
        }
        return _ref("StreamEvent")

    def _begin(self, name: str, message: Descriptor) -> Schema:
        schema: Schema = {"type": "object"} | self.comment(message.full_name)
        self.schemas[name] = schema
        return schema

    def _sent(self, field: FieldDescriptor) -> Schema:
        comment = self.comment(field.full_name)
        if field.message_type is not None:
            schema = self.request(field.message_type)
            if field.is_repeated:
                return {"type": "array", "items": schema} | comment
            return {"oneOf": [schema, {"type": "null"}]} | comment
        if field.is_repeated:
            return {"type": ["array", "null"], "items": NUMBERS[field.cpp_type]} | comment
        bounds = RANGES.get(field.name, {})
        if field.cpp_type in WHOLE_KINDS:
            return {"type": ["integer", "string", "null"], "pattern": WHOLE_PATTERN} | bounds | comment
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            return {"type": ["number", "string", "null"], "pattern": NUMBER_PATTERN} | bounds | comment
        return {"type": [NUMBERS[field.cpp_type]["type"], "null"]} | comment

    def _received(self, field: FieldDescriptor) -> Schema:
        message, comment = field.message_type, self.comment(field.full_name)
        if message is not None and message.GetOptions().map_entry:
            values = message.fields_by_name["value"]
            return {"type": "object", "additionalProperties": NUMBERS[values.cpp_type]} | comment
        if message is not None:
            schema = self.response(message)
        elif field.enum_type is not None:
            schema = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
        else:
            schema = NUMBERS[field.cpp_type]
        return ({"type": "array", "items": schema} if field.is_repeated else schema) | comment


def _name_of(message: Descriptor) -> str:
    return message.full_name.removeprefix(f"{SERVICE.file.package}.")


def _pairs(fields: Iterable[FieldDescriptor]) -> list[Schema]:
    """Returns a schema for each pair of a oneof's fields that holds if both are set."""
    names = [field.json_name for field in fields]
    held = {"not": {"type": "null"}}
    pairs = itertools.combinations(names, 2)
    return [{"required": list(pair), "properties": dict.fromkeys(pair, held)} for pair in pairs]


def _operation(route: ApiRoute, schemas: _Schemas) -> Schema:
    method = SERVICE.methods_by_name[route.method]
    answers: Schema = {JSON: {"schema": schemas.response(method.output_type)}}
    parameters: list[Schema] = []
    if (streaming := route.streaming) is not None:
        events = schemas.events(SERVICE.methods_by_name[streaming].output_type)
        answers[EVENT_STREAM] = {"schema": events}
        parameters.append(
            {
                "name": STREAM,
                "in": "query",
                "description": "1: server-sent events; 0: one answer.",
                "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
            }
        )
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": TEXT} for name in path_parameters(route.path)
    ]
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
    body = schemas.request(method.input_type)
    if route.method == "GenerateMany":
        body = {"anyOf": [schemas.texts(), body]}
    return operation | {"requestBody": {"required": True, "content": {JSON: {"schema": body}}}}


def _object(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


if __name__ == "__main__":
    DOCUMENT.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
