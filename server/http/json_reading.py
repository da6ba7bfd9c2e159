"""Requests from JSON, by protobuf's mapping and strictly. All that is wrong with a body is reported together.

protobuf's own reader takes `true` for 1, `[]` for `{}` and "٣" for 3, accepts NaN outside of strings, ends at the first
fault, and words it for programmers. This one reads what the requests of this API consist of: messages, lists, strings,
truth values, unsigned integers and floats.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from attendant.runtime.requests import Violation, cut, shortened
from attendant.server.errors import AttendantError, InvalidArgument, Undecodable
from attendant.server.grpc.many import MAX_REQUESTS
from attendant.server.grpc.undecodable import UndecodableRequest
from attendant.server.inference.parameters import WHOLE, must_be
from attendant_client.v1 import seq2seq_pb2 as messages

BODY: Final = "body"
"""The field that stands for the whole."""
TEXTS: Final = "texts"

MAX_REASON_CHARACTERS: Final = 300
MAX_FAULTS: Final = 64
"""After this many faults the rest of a list is not read."""
MAX_FLOAT: Final = 2.0**128
"""The first number that single precision does not hold."""

SURROGATES: Final = re.compile("[\ud800-\udfff]")
WHOLE_NUMBER: Final = re.compile("-?[0-9]{1,20}")
NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?|-?Infinity|NaN")
NO_VALUE: Final = object()

Read = Callable[[Any], Message]


class Unreadable(Exception):
    """A body that is not a request of the method.

    Attributes:
        error: what the caller gets.
        request_id: the body's, if it has a valid one.
    """

    def __init__(self, error: AttendantError, request_id: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.request_id = request_id


def reader_of(request_class: type[Message]) -> Callable[[bytes], Message]:
    """Returns a function that makes a request of a body, or raises Unreadable."""

    def read(raw: bytes) -> Message:
        body, request, faults = parse_json(raw), request_class(), list[Violation]()
        if isinstance(request, messages.GenerateManyRequest) and isinstance(body, dict) and TEXTS in body:
            _read_texts(request, body, faults)
        else:
            _read(request, body, "", faults)
        if faults:
            raise Unreadable(InvalidArgument(*faults), getattr(request, "request_id", ""))
        return request

    return read


def undecodable(raw: bytes, error: Exception) -> UndecodableRequest:
    """Returns the stand-in for a request whose reading raised `error`."""
    if isinstance(error, Unreadable):
        return UndecodableRequest(len(raw), error.error, error.request_id)
    return UndecodableRequest(len(raw), Undecodable(len(raw)))


def parse_json(raw: bytes) -> Any:
    """Parses a body.

    Raises:
        Unreadable: it is not JSON in UTF-8, or names a member twice.
    """
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = cut(" ".join(str(error).split()), MAX_REASON_CHARACTERS)
        raise Unreadable(Undecodable(len(raw), f"Failed to load JSON: {reason}")) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the member {shortened(twice)} twice")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; as a number of this API it stands in quotation marks")


def _read_texts(request: messages.GenerateManyRequest, body: dict[str, Any], faults: list[Violation]) -> None:
    """Reads a list of texts and, beside them, the fields that all of their requests share."""
    texts, like = body.pop(TEXTS), messages.GenerateRequest()
    _read(like, body, "", faults)
    if source := like.WhichOneof("source"):
        faults.append(Violation("source", f"{TEXTS} and {source}", "one of them"))
    if not _is_list(texts, TEXTS, "a list of strings", faults) or faults:
        return
    for place, text in enumerate(texts):
        if is_text(text):
            request.requests.add().CopyFrom(like)
            request.requests[-1].text = text
        else:
            faults.append(fault(f"{TEXTS}[{place}]", text, string(text)))


def _read(message: Any, body: Any, path: str, faults: list[Violation]) -> None:
    """Sets the fields of a message; unknown names are one fault, however many."""
    if not isinstance(body, dict):
        faults.append(fault(path or BODY, body, "an object"))
        return
    by_name = _fields(message.DESCRIPTOR)
    faults += unknown_members(body, by_name, path or BODY)
    values: dict[str, Any] = {}
    for name, value in body.items():
        if (field := by_name.get(name)) is None:
            continue
        where = f"{path}.{field.name}" if path else field.name
        if field.name in values:
            faults.append(Violation(where, f"{field.name} and {field.json_name}", "one of them"))
        elif value is not None:
            values[field.name] = value
            _set(message, field, value, where, faults)
    for choice in message.DESCRIPTOR.oneofs:
        if len(several := [field.name for field in choice.fields if field.name in values]) > 1:
            faults.append(Violation(choice.name, " and ".join(several), "one of them"))


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Returns the fields by their names in JSON and in the proto."""
    return {name: field for field in descriptor.fields for name in (field.json_name, field.name)}


def unknown_members(body: Mapping[str, Any], known: Mapping[str, Any], path: str) -> Iterator[Violation]:
    """Yields one violation for all members of an object that are not known."""
    if unknown := [name for name in body if name not in known]:
        names = ", ".join(dict.fromkeys(getattr(field, "name", name) for name, field in known.items()))
        limit = f"one with some of {names}"
        yield Violation(path, f"an object with {shortened(', '.join(unknown))}", limit, quoted=True)


def _set(message: Any, field: FieldDescriptor, value: Any, where: str, faults: list[Violation]) -> None:
    if field.is_repeated:
        kind = "strings" if field.message_type is None else "objects"
        if not _is_list(value, where, f"a list of {kind}", faults):
            return
        for place, item in enumerate(value):
            if len(faults) >= MAX_FAULTS:
                break
            if field.message_type is not None:
                _read(getattr(message, field.name).add(), item, f"{where}[{place}]", faults)
            elif (scalar := _scalar(field, item)) is NO_VALUE:
                faults.append(fault(f"{where}[{place}]", item, _must_be(field, item)))
            else:
                getattr(message, field.name).append(scalar)
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _read(part, value, where, faults)
    elif (scalar := _scalar(field, value)) is NO_VALUE:
        faults.append(fault(where, value, _must_be(field, value)))
    else:
        setattr(message, field.name, scalar)


def _is_list(value: Any, where: str, limit: str, faults: list[Violation]) -> bool:
    """Checks that a value is a list and, if it stands for requests, not longer than a call may be."""
    if not isinstance(value, list):
        faults.append(fault(where, value, limit))
    elif len(value) > MAX_REQUESTS and where in (TEXTS, "requests"):
        faults.append(Violation(where, f"{len(value)} items long", f"1 to {MAX_REQUESTS} items long"))
    else:
        return True
    return False


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    """Returns the value as the field takes it, or NO_VALUE if its type is not the field's."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return value if is_text(value) else NO_VALUE
    if isinstance(value, bool) or kind == FieldDescriptor.CPPTYPE_BOOL:
        return value if isinstance(value, bool) and kind == FieldDescriptor.CPPTYPE_BOOL else NO_VALUE
    if kind in WHOLE:
        number = _whole(value)
        return number if number is not None and 0 <= number <= WHOLE[kind] else NO_VALUE
    if isinstance(value, str):
        value = float(value) if NUMBER.fullmatch(value) else None
    # Not finite numbers are refused by the limits of the option.
    if isinstance(value, int | float) and (abs(value) < MAX_FLOAT or not math.isfinite(value)):
        return float(value)
    return NO_VALUE


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if WHOLE_NUMBER.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def is_text(value: Any) -> bool:
    """Checks that a value is a string that UTF-8 can hold."""
    return isinstance(value, str) and (value.isascii() or SURROGATES.search(value) is None)


def _must_be(field: FieldDescriptor, value: Any) -> str:
    return string(value) if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else must_be(field)


def string(value: Any) -> str:
    """Returns the limit for a value that is not a valid string."""
    return "a string without half a surrogate pair" if isinstance(value, str) else "a string"


def fault(field: str, value: Any, limit: str) -> Violation:
    """Returns a violation that shows the caller's value as JSON, shortened if it is long."""
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return Violation(field, cut(shown), limit, quoted=True)
