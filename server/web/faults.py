"""What is wrong with a body that is no message: its fields, by their paths in the proto, and what each must be.

protobuf's own reader ends at the first fault, and speaks of it in the words of its classes and of Python's.
"""

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from attendant.runtime.requests.violations import Violation, cut, shortened
from attendant.server.errors import InvalidArgument, Undecodable
from attendant.server.servicers.inference.parameters import must_be
from attendant.server.servicers.undecodable import UndecodableRequest

BODY = "body"
"""The field that stands for the whole."""

MAX_REASON_CHARACTERS = 300
REQUEST_ID = ("requestId", "request_id")


def undecodable(request_class: type[Message], raw: bytes, error: Exception) -> UndecodableRequest:
    """What stands in the request's place; `error`: the reader's, which is told where it is no JSON."""
    try:
        given = json.loads(raw.decode())
    except (ValueError, RecursionError):
        given, found = None, []
    else:
        found = _faults(given, request_class.DESCRIPTOR, "")
    reason = cut(" ".join(str(error).split()), MAX_REASON_CHARACTERS)
    wrong = InvalidArgument(*found) if found else Undecodable(len(raw), reason)
    named = [given.get(name) for name in REQUEST_ID] if isinstance(given, dict) else []
    return UndecodableRequest(len(raw), wrong, next((one for one in named if isinstance(one, str) and one), ""))


def _faults(given: Any, message: Any, path: str) -> list[Violation]:
    """Those of a value that stands for a message, by its descriptor; unknown names are one fault, however many."""
    if not isinstance(given, dict):
        return [_fault(path or BODY, given, "an object")]
    by_name = {field.json_name: field for field in message.fields} | dict(message.fields_by_name)
    faults = []
    if unknown := [name for name in given if name not in by_name]:
        limit = f"one with some of {', '.join(message.fields_by_name)}"
        faults.append(Violation(path or BODY, f"an object with {shortened(', '.join(unknown))}", limit, quoted=True))
    fields = {by_name[name]: value for name, value in given.items() if name in by_name and value is not None}
    for field, value in fields.items():
        where = f"{path}.{field.name}" if path else field.name
        if field.message_type is not None:
            faults += _faults(value, field.message_type, where)
        elif not _fits(message, field, value):
            faults.append(_fault(where, value, _must_be(field, value)))
    for choice in message.oneofs:
        several = [field.name for field in choice.fields if field in fields]
        if len(several) > 1:
            faults.append(Violation(choice.name, " and ".join(several), "one of them"))
    return faults


def _fits(message: Any, field: FieldDescriptor, value: Any) -> bool:
    """Whether protobuf's reader takes it: the mapping has several spellings of a number."""
    try:
        json_format.ParseDict({field.name: value}, GetMessageClass(message)())
    except json_format.ParseError:
        return False
    return True


def _must_be(field: FieldDescriptor, value: Any) -> str:
    if field.is_repeated:
        return "a list of strings"
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return must_be(field)
    return "a string without half a surrogate pair" if isinstance(value, str) else "a string"


def _fault(field: str, value: Any, limit: str) -> Violation:
    """Of a value of the caller's, which is shown as JSON where it is short."""
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return Violation(field, cut(shown), limit, quoted=True)
