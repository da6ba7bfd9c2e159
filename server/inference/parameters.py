"""Parameters of a request: options by their names in attendant.v1, where they are checked."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from attendant.runtime.requests import Violations
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant_client.v1 import seq2seq_pb2 as messages

WHOLE: Final = {FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1}
"""The types of whole numbers, and the largest of each."""

OUTPUT_OPTION, PREFIX, SAMPLING = "replace_unknowns", "target_prefix", "sampling"
SAMPLING_FIELDS: Final = messages.SamplingOptions.DESCRIPTOR.fields_by_name
FIELDS: Final[Mapping[str, Any]] = {
    **{
        name: field
        for name, field in messages.DecodingOptions.DESCRIPTOR.fields_by_name.items()
        if field.message_type is None
    },
    **SAMPLING_FIELDS,
    OUTPUT_OPTION: messages.OutputOptions.DESCRIPTOR.fields_by_name[OUTPUT_OPTION],
}


def set_options(
    request: messages.GenerateRequest, given: Mapping[str, wire.InferParameter], violations: Violations
) -> None:
    """Sets what parameters say; unknown names, and values of other types, go to `violations`."""
    for name, parameter in given.items():
        value = getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
        if name == PREFIX:
            if violations.require(
                isinstance(value, str), f"parameters.{name}", value, "tokens, with blanks between them"
            ):
                request.decoding.target_prefix.tokens.extend(value.split())
        elif name == SAMPLING:
            if violations.require(value is True, f"parameters.{name}", value, "true or unset"):
                request.decoding.sampling.SetInParent()
        elif (field := FIELDS.get(name)) is None:
            choices = ", ".join(sorted([*FIELDS, PREFIX, SAMPLING]))
            violations.add("parameters", name, f"some of {choices}")
        elif violations.require(_fits(field, value), f"parameters.{name}", value, must_be(field)):
            setattr(_part(request, name), name, value)


def _part(request: messages.GenerateRequest, name: str) -> Any:
    """The message that has the field."""
    if name == OUTPUT_OPTION:
        return request.output
    return request.decoding.sampling if name in SAMPLING_FIELDS else request.decoding


def _fits(field: Any, value: Any) -> bool:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL or isinstance(value, bool):
        return field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and isinstance(value, bool)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING or isinstance(value, str):
        return field.cpp_type == FieldDescriptor.CPPTYPE_STRING and isinstance(value, str)
    if field.cpp_type in WHOLE:
        return isinstance(value, int) and 0 <= value <= WHOLE[field.cpp_type]
    return isinstance(value, int | float)


def must_be(field: Any) -> str:
    """Returns what a number, a truth value or a text of a field must be, in words."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "a text"
    return f"a whole number from 0 to {WHOLE[field.cpp_type]}" if field.cpp_type in WHOLE else "a number"
