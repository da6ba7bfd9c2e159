"""Messages as JSON and back, in protobuf's own mapping, without holding up the event loop for large ones."""

import asyncio
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request

from attendant.runtime.requests import Violation
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.incoming import Decoder
from attendant.server.grpc.port import MAX_REQUEST_BYTES
from attendant.server.grpc.requests import off_the_loop
from attendant.server.grpc.undecodable import UndecodableRequest
from attendant.server.http.json_reading import reader_of, undecodable
from attendant.server.http.problems import HttpError
from attendant_client.v1 import seq2seq_pb2 as messages

JSON = "application/json"

WRITERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
"""Where large answers become text, as large requests are read on a thread of their own."""
LOOP_ANSWER_BYTES = 4096

TOO_LONG = f"the body must have at most {MAX_REQUEST_BYTES} bytes, also when it is expanded"
GZIP, GZIP_WINDOW = "gzip", 31
"""The coding, and zlib's number for its format with the largest window."""
CODINGS = frozenset({"", "identity", GZIP, f"x-{GZIP}"})
MAX_MEMBERS = 16
"""Limit of a body's gzip members: each costs a copy of the rest."""


@dataclass(slots=True)
class Body:
    """A request that is not parsed yet: credentials and rates come first.

    Attributes:
        request_id: its caller's; empty until it is parsed.
    """

    raw: bytes
    request_id: str = ""

    def ByteSize(self) -> int:  # noqa: N802  # as protobuf's messages have it
        return len(self.raw)

    async def message(self, decode: Decoder) -> Message | UndecodableRequest:
        """What the body says."""
        found: Message | UndecodableRequest = await off_the_loop(len(self.raw), partial(decode, self.raw))
        self.request_id = getattr(found, "request_id", "")
        return found


def decoder_of(path: str, request_class: type[Message]) -> Decoder:
    """Makes messages of JSON; `path`: of the method, as gRPC writes it."""
    return Decoder(path, reader_of(request_class), undecodable)


async def read_body(request: Request) -> Body:
    """Reads the body of a request that says it is JSON.

    Raises:
        HttpError: as `body_bytes`, or the type is another one. A page of another origin can't send it unasked.
        InvalidArgument, ClientDisconnect: as `body_bytes`.
    """
    if type_of(request) != JSON:
        raise HttpError(415, "INVALID_ARGUMENT", f"the header Content-Type must be {JSON}")
    return Body(await body_bytes(request))


def type_of(request: Request) -> str:
    """Returns the media type of a body without its parameters, or an empty string."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_bytes(request: Request) -> bytes:
    """Reads a body, and expands it if it is compressed. It may be as long as a gRPC message, before and after.

    How long it may take is the connection's affair.

    Raises:
        HttpError: it is too long, or in a coding that is not read here.
        InvalidArgument: it is not what its coding says.
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
    """Expands the members of a gzip file, one after another, within the limit of a body."""
    expanded = bytearray()
    for _ in range(MAX_MEMBERS):
        expander = zlib.decompressobj(wbits=GZIP_WINDOW)
        try:
            expanded += expander.decompress(raw, MAX_REQUEST_BYTES + 1 - len(expanded))
        except zlib.error:
            break
        if len(expanded) > MAX_REQUEST_BYTES:
            raise HttpError(413, "RESOURCE_EXHAUSTED", TOO_LONG)
        if not expander.eof:
            break
        raw = expander.unused_data
        if not raw:
            return bytes(expanded)
    raise InvalidArgument(Violation("body", "cut short, or damaged", f"{GZIP}, of at most {MAX_MEMBERS} members"))


async def written(message: Message) -> str:
    """A message as one line of JSON."""
    if message.ByteSize() <= LOOP_ANSWER_BYTES:
        return to_json(message)
    return await asyncio.get_running_loop().run_in_executor(WRITERS, to_json, message)


def to_json(message: Message) -> str:
    """A message in protobuf's JSON mapping, empty fields included; it is used up.

    The library takes 10 microseconds for each float, so attention's weights are written here.
    """
    attentions = list(_attentions(message))
    weights = [[float(one) for one in np.asarray(each.weights, np.float32).astype(str)] for each in attentions]
    for each in attentions:
        del each.weights[:]
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    for place, numbers in zip(_attention_fields(fields), weights, strict=True):
        place["weights"] = numbers
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _attentions(message: Any) -> Iterator[messages.Attention]:
    results = [one.response for one in getattr(message, "results", ())]
    for response in results or [getattr(message, "response", message)]:
        for one in (response, *getattr(response, "hypotheses", ())):
            if "attention" in one.DESCRIPTOR.fields_by_name and one.HasField("attention"):
                yield one.attention


def _attention_fields(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same, in the same order."""
    results = [one.get("response", {}) for one in fields.get("results", ())]
    for response in results or [fields.get("response", fields)]:
        for one in (response, *response.get("hypotheses", ())):
            if "attention" in one:
                yield one["attention"]
