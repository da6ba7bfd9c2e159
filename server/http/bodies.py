"""Bodies of HTTP requests, read from JSON by protobuf's mapping and strictly, and messages written as JSON.

protobuf's own reader takes `true` for 1, `[]` for `{}` and "\u0663" for 3, accepts NaN outside of strings, ends at the
first fault, and describes it for programmers. This one reads messages, lists, strings, truth values, unsigned integers
and floats, which are all that requests of this API consist of, and reports all faults of a body together.
"""

import json
import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Any, Final

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from starlette.requests import Request

from attendant.runtime.errors import Violation, cut, shortened
from attendant.server.call import Rpc, UndecodableRequest, model_of
from attendant.server.errors import AttendantError, InvalidArgument, Undecodable
from attendant.server.grpc.lists import MAX_REQUESTS
from attendant.server.grpc.port import MAX_REQUEST_BYTES
from attendant.server.grpc.requests import WHOLE, WRITERS, must_be, off_the_loop
from attendant_client.v1 import seq2seq_pb2 as messages

log = logging.getLogger(__name__)

JSON: Final = "application/json"
LOOP_ANSWER_BYTES: Final = 4096  # A larger answer becomes text on a thread.
TOO_LONG: Final = f"the body must have at most {MAX_REQUEST_BYTES} bytes, also when it is expanded"
GZIP: Final = "gzip"
GZIP_WINDOW: Final = 31  # zlib's number for gzip's format with the largest window.
CODINGS: Final = frozenset({"", "identity", GZIP})

BODY: Final = "body"  # The field of violations by the whole body.
TEXTS: Final = "texts"

MAX_REASON_CHARACTERS: Final = 300
MAX_FAULTS: Final = 64  # After this many faults the rest of a list is not read.
MAX_FLOAT: Final = 2.0**128  # The first number that single precision does not hold.
SURROGATES: Final = re.compile("[\ud800-\udfff]")
WHOLE_NUMBER: Final = re.compile("-?[0-9]{1,20}")
NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?|-?Infinity|NaN")
NO_VALUE: Final = object()


class HttpError(AttendantError):
    """A request that reaches no method, with a status of HTTP's own."""

    reason = "http"

    def __init__(self, http_status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, without_quotes=HTTPStatus(http_status).phrase)
        self.http_status = http_status
        self.code = code
        self.headers = headers


@dataclass(slots=True)
class Body:
    """A request that is not parsed yet, since credentials and rates are checked first.

    Attributes:
        own_id, own_model: the request's, if it has valid ones; read also from a body that is refused.
    """

    raw: bytes
    own_id: str = ""
    own_model: str = ""

    def ByteSize(self) -> int:  # noqa: N802  # like protobuf's messages
        return len(self.raw)

    async def message(self, rpc: Rpc) -> Message | UndecodableRequest:
        """Parses the body, on a thread if it is large."""
        return await off_the_loop(len(self.raw), partial(self.decoded, rpc))

    def decoded(self, rpc: Rpc) -> Message | UndecodableRequest:
        try:
            return self.read(rpc)
        except Exception as raised:
            log.warning("undecodable message", extra={"method": rpc.name, "bytes": len(self.raw)})
            error = raised if isinstance(raised, AttendantError) else Undecodable(len(self.raw))
            return UndecodableRequest(len(self.raw), error, self.own_id, self.own_model or model_of(self))

    def read(self, rpc: Rpc) -> Message:
        """Returns the request. Raises InvalidArgument, Undecodable."""
        body, request, faults = parse_json(self.raw), rpc.request_class(), list[Violation]()
        if isinstance(request, messages.GenerateManyRequest) and isinstance(body, dict) and TEXTS in body:
            _read_texts(request, body, faults)
        else:
            _read(request, body, "", faults)
        self.own_id, self.own_model = getattr(request, "request_id", ""), model_of(request)
        if faults:
            raise InvalidArgument(*faults)
        return request


async def read_body(request: Request) -> Body:
    """Reads the body of a request whose header names JSON.

    Raises:
        HttpError: as `body_bytes`, or the type is another one. A page of another origin can't send it unasked.
        InvalidArgument, ClientDisconnect: as `body_bytes`.
    """
    if type_of(request) != JSON:
        raise HttpError(415, "INVALID_ARGUMENT", f"the header Content-Type must be {JSON}")
    return Body(await body_bytes(request))


def type_of(request: Request) -> str:
    """Returns the media type of a body without its parameters, or an empty string."""
    return ",".join(request.headers.getlist("content-type")).partition(";")[0].strip().lower()


async def body_bytes(request: Request) -> bytes:
    """Reads a body, and expands it if it is compressed. It may be as long as a gRPC message, before and after.

    The connection bounds the time that this may take.

    Raises:
        HttpError: it is too long, or in a coding that is not read here.
        InvalidArgument: its coding is not the one that the header names.
        ClientDisconnect: starlette's.
    """
    coding = ",".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding not in CODINGS:
        message = f"Content-Encoding must be {GZIP} or absent"
        raise HttpError(415, "INVALID_ARGUMENT", message, {"accept-encoding": GZIP})
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > MAX_REQUEST_BYTES:
            raise HttpError(413, "RESOURCE_EXHAUSTED", TOO_LONG)
    if coding in ("", "identity"):
        return bytes(raw)
    return await off_the_loop(len(raw), partial(_expand, bytes(raw)))


def _expand(raw: bytes) -> bytes:
    """Expands a gzip file within the limit of a body."""
    expander = zlib.decompressobj(wbits=GZIP_WINDOW)
    try:
        expanded = expander.decompress(raw, MAX_REQUEST_BYTES + 1)
    except zlib.error:
        expanded = b""
    if len(expanded) > MAX_REQUEST_BYTES:
        raise HttpError(413, "RESOURCE_EXHAUSTED", TOO_LONG)
    if not expander.eof or expander.unused_data:
        raise InvalidArgument(Violation("body", "cut short, or damaged", f"one file of {GZIP}"))
    return expanded


def parse_json(raw: bytes) -> Any:
    """Parses a body. Raises Undecodable: it is not JSON in UTF-8, or names a member twice."""
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Undecodable(len(raw), f"its byte {error.start} is not UTF-8, in which JSON is sent") from None
    except (ValueError, RecursionError) as error:
        # Python's remedy for a number of thousands of digits is none for the caller.
        message = str(error).partition("; use sys.")[0]
        reason = cut(" ".join(message.split()), MAX_REASON_CHARACTERS)
        raise Undecodable(len(raw), f"Failed to load JSON: {reason}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the member {shortened(twice)} twice")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_texts(request: messages.GenerateManyRequest, body: dict[str, Any], faults: list[Violation]) -> None:
    """Reads a list of texts, and the fields that all of their requests share."""
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
    """Yields one violation for all members of an object that are not known.

    It names the places of those that belong deeper, and begins with the names that start as the first one does,
    since messages are cut.
    """
    if unknown := [name for name in body if name not in known]:
        names = dict.fromkeys(getattr(field, "name", name) for name, field in known.items())
        ordered = ", ".join(sorted(names, key=lambda name: name[:3] != unknown[0][:3]))
        deeper = "".join(f"{name} in {place}, and " for name in unknown[:3] for place in _places_of(name, known))
        limit = f"one with {deeper}some of {ordered}"
        yield Violation(path, f"an object with {shortened(', '.join(unknown))}", limit, quoted=True)


def _places_of(name: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the paths of the messages in these fields that have a field of this name."""
    for field in dict.fromkeys(fields.values()):
        if field is not None and field.message_type is not None:
            below = _fields(field.message_type)
            if name in below:
                yield field.name
            yield from (f"{field.name}.{place}" for place in _places_of(name, below))


def _set(message: Any, field: FieldDescriptor, value: Any, where: str, faults: list[Violation]) -> None:
    if field.is_repeated:
        kind = "objects" if field.message_type is not None else "numbers" if field.cpp_type in WHOLE else "strings"
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
    """Checks that a value is a list and, if it is one of requests, not longer than a call may be."""
    if not isinstance(value, list):
        faults.append(fault(where, value, limit))
    elif where in (TEXTS, "requests") and not 1 <= len(value) <= MAX_REQUESTS:
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
        if isinstance(value, str):
            number = int(value) if WHOLE_NUMBER.fullmatch(value) else None
        else:
            number = whole_number(value)
        return number if number is not None and 0 <= number <= WHOLE[kind] else NO_VALUE
    if isinstance(value, str):
        value = float(value) if NUMBER.fullmatch(value) else None
    if isinstance(value, float) and not math.isfinite(value):
        return value  # refused by the limits of the option
    if isinstance(value, int | float) and abs(value) < MAX_FLOAT:
        return float(value)
    return NO_VALUE


def whole_number(value: Any) -> int | None:
    """Returns a value of JSON as a whole number, or None if it is not one. JSON does not distinguish 2.0 from 2."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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


async def written(message: Message) -> str:
    """Returns a message as one line of JSON, without holding the event loop if it is large."""
    return await off_the_loop(message.ByteSize(), partial(to_json, message), LOOP_ANSWER_BYTES, WRITERS)


def to_json(message: Message) -> str:
    """Returns a message in protobuf's JSON mapping with empty fields; the message is used up.

    The library takes 10 microseconds for each float, so attention's weights are written here.
    """
    weights = []
    for attention in _attentions(message):
        weights.append(list(map(float, np.asarray(attention.weights, np.float32).astype(str))))
        del attention.weights[:]
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    for place, numbers in zip(_attention_fields(fields), weights, strict=True):
        place["weights"] = numbers
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _attentions(message: Message) -> Iterator[messages.Attention]:
    """Yields every Attention within a message, in the order of the fields."""
    for field, value in message.ListFields():
        if field.message_type is messages.Attention.DESCRIPTOR:
            yield value
        elif field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                if isinstance(part, Message):  # the keys of a map are texts
                    yield from _attentions(part)


def _attention_fields(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the fields of the same attentions: the library writes them in the same order."""
    for name, value in fields.items():
        if name == "attention":
            yield value
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, dict):
                yield from _attention_fields(part)
