"""Messages as JSON and back, in protobuf's own mapping, without holding up the event loop for large ones."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request

from attendant.server.process.listening import MAX_REQUEST_BYTES
from attendant.server.servicers.incoming import Decoder
from attendant.server.servicers.requests import off_the_loop
from attendant.server.servicers.undecodable import UndecodableRequest
from attendant.server.web.faults import undecodable
from attendant.server.web.problems import HttpError
from attendant_client.v1 import seq2seq_pb2 as messages

JSON = "application/json"

WRITERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
"""Where large answers become text, as large requests are read on a thread of their own."""
LOOP_ANSWER_BYTES = 4096


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
    return Decoder(path, lambda raw: json_format.Parse(raw, request_class()), partial(undecodable, request_class))


async def read_body(request: Request) -> Body:
    """The body of a request, as long as a gRPC message may be. How long it may take is the connection's affair.

    Raises:
        HttpError: it is too long, or no JSON by its header. A page of another origin can't send that header unasked.
        ClientDisconnect: starlette's.
    """
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != JSON:
        raise HttpError(415, "INVALID_ARGUMENT", f"the header Content-Type must be {JSON}")
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > MAX_REQUEST_BYTES:
            raise HttpError(413, "RESOURCE_EXHAUSTED", f"the body must have at most {MAX_REQUEST_BYTES} bytes")
    return Body(bytes(raw))


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
    if isinstance(message, messages.GenerateStreamResponse):
        message = message.response
    for one in (message, *getattr(message, "hypotheses", ())):
        if "attention" in one.DESCRIPTOR.fields_by_name and one.HasField("attention"):
            yield one.attention


def _attention_fields(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same, in the same order."""
    fields = fields.get("response", fields)
    for one in (fields, *fields.get("hypotheses", ())):
        if "attention" in one:
            yield one["attention"]
