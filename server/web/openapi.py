"""The OpenAPI document of the HTTP API, made of the proto's descriptors."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from attendant.server.servicers.request_context import GIVEN_ID_KEY
from attendant.server.servicers.seq2seq import SERVICE
from attendant.server.web.bodies import JSON
from attendant.server.web.call import MAX_SECONDS, TIMEOUT_HEADER
from attendant.server.web.endpoints import EVENT_STREAM
from attendant.server.web.problems import MEDIA_TYPE
from attendant.server.web.routes import ROUTES, STREAM, ApiRoute

Schema = dict[str, Any]

WHOLE = {"type": "integer", "format": "int32"}
# 64 bits are more than JavaScript's numbers hold, so the mapping writes them as strings, and reads both.
LARGE = {"type": ["string", "integer"]}
NUMBERS: dict[int, Schema] = {
    FieldDescriptor.CPPTYPE_INT32: WHOLE,
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.CPPTYPE_INT64: LARGE,
    FieldDescriptor.CPPTYPE_UINT64: LARGE,
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
}

PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457, with the gRPC code's name and google.rpc's details.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": WHOLE,
        "detail": {"type": "string"},
        "code": {"type": "string", "examples": ["INVALID_ARGUMENT"]},
        "details": {"type": "array", "items": {"type": "object", "properties": {"@type": {"type": "string"}}}},
    },
    "required": ["type", "title", "status", "detail", "code", "details"],
}


def document() -> Schema:
    """The whole document."""
    schemas: dict[str, Schema] = {"Problem": PROBLEM}
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Attendant",
            "version": SERVICE.file.package.rpartition(".")[2],
            "description": f"The service {SERVICE.full_name} in protobuf's JSON mapping.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # Some servers ask for a token.
        "security": [{}, {"token": []}],
    }


def _operation(route: ApiRoute, schemas: dict[str, Schema]) -> Schema:
    method = SERVICE.methods_by_name[route.method]
    answers = {JSON: {"schema": _message(method.output_type, schemas)}}
    parameters: list[Schema] = [
        {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "description": "Seconds within which the answer is wanted.",
            "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS, "default": MAX_SECONDS},
        },
        {
            "name": GIVEN_ID_KEY,
            "in": "header",
            "description": "The request's id, where its body has none.",
            "schema": {"type": "string"},
        },
    ]
    if (streaming := route.streaming) is not None:
        events = SERVICE.methods_by_name[streaming].output_type
        answers[EVENT_STREAM] = {"schema": _message(events, schemas)}
        parameters.append(
            {
                "name": STREAM,
                "in": "query",
                "description": f"1: server-sent events, each a {events.name}; 0: one answer.",
                "schema": {"enum": ["0", "1"], "default": "0"},
            }
        )
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.path_parameters
    ]
    operation: Schema = {
        "operationId": route.method,
        "parameters": parameters,
        "responses": {
            "200": {"description": method.output_type.name, "content": answers},
            "default": {
                "description": "An error",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if route.verb == "GET":
        parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query_parameters]
    else:
        content = {JSON: {"schema": _message(method.input_type, schemas)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _message(message: Descriptor, schemas: dict[str, Schema]) -> Schema:
    """A reference to the message's schema, which is among the others afterwards."""
    name = message.full_name.removeprefix(f"{SERVICE.file.package}.")
    if name not in schemas:
        schema: Schema = {"type": "object"}
        schemas[name] = schema
        schema["properties"] = {field.json_name: _field(field, schemas) for field in message.fields}
        choices = [one.fields for one in message.oneofs if len(one.fields) > 1]
        if choices:
            schema["allOf"] = [{"not": {"required": pair}} for fields in choices for pair in _pairs(fields)]
    return {"$ref": f"#/components/schemas/{name}"}


def _pairs(fields: Iterable[FieldDescriptor]) -> list[list[str]]:
    names = [field.json_name for field in fields]
    return [[one, other] for index, one in enumerate(names) for other in names[index + 1 :]]


def _field(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _single(message.fields_by_name["value"], schemas)}
    single = _single(field, schemas)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        return _message(field.message_type, schemas)
    enum: EnumDescriptor | None = field.enum_type
    return {"enum": [value.name for value in enum.values]} if enum is not None else NUMBERS[field.cpp_type]
