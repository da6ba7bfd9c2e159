"""Requests as the engine takes them, or everything that is wrong with them, told together."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from attendant.runtime import requests as reading
from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.requests import ReadRequest, Side, Violations
from attendant.server.auth import CLIENT
from attendant.server.catalogue.models import ServedModel
from attendant.server.engine.request import Outcome, Priority, Result
from attendant.server.errors import AttendantError, InvalidArgument
from attendant.server.grpc.decoding import read_options
from attendant.server.grpc.request_context import MAX_ID_CHARACTERS
from attendant.server.tracing import TRACE
from attendant_client.messages import set_fields
from attendant_client.v1 import seq2seq_pb2 as messages

Request = messages.GenerateRequest | messages.ScoreRequest

ID_LIMIT = f"at most {MAX_ID_CHARACTERS} characters, none of them control characters"

REQUEST_BYTES = 2048
TOKEN_BYTES = 96
"""An id, a log-probability and a symbol, as Python holds them."""
WEIGHT_BYTES = 4

LOOP_BYTES = 2048
"""A larger request is read on a thread of its own: a millisecond of tokenizing is enough for the event loop."""

READERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
"""One, so that the engine keeps its cores whatever is sent. Meanwhile only requests as large as those wait."""

AnyRequest = TypeVar("AnyRequest", messages.GenerateRequest, messages.ScoreRequest)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request whose message has been read and checked: what is submitted to its model's engines.

    Attributes:
        asked: what it asks for.
        by_default: it sets no decoding option.
        message: kept only where a shadow is to be asked the same.
    """

    request_id: str
    model: ServedModel
    asked: ReadRequest
    by_default: bool = False
    message: messages.GenerateRequest | None = None

    @property
    def max_answer_bytes(self) -> int:
        """What the request and its answer may come to take in memory, roughly."""
        asked, options = self.asked, self.asked.options
        columns = len(asked.source_ids) if options.attention else 0
        target = (options.max_length + 1) * (TOKEN_BYTES + WEIGHT_BYTES * columns)
        return REQUEST_BYTES + TOKEN_BYTES * len(asked.source_ids) + options.num_hypotheses * target

    def submit(
        self,
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> asyncio.Future[Outcome]:
        """See EngineClient.submit; the client is the one whose call is being handled."""
        asked = self.asked
        return self.model.runner.submit(
            asked.source_ids, asked.options, timeout_seconds, priority, CLIENT.get(), on_progress
        )

    def result_of_score(self, outcome: Outcome) -> Result:
        """The outcome of a request to score, after its metrics and its trace have been told of it.

        Raises:
            AttendantError: the outcome itself, where it is an error.
        """
        if isinstance(outcome, AttendantError):
            raise outcome
        asked, exemplar = self.asked, None
        if (trace := TRACE.get()) is not None:
            trace.add_phases(outcome.stats)
            exemplar = trace.exemplar
        self.model.metrics.answered(asked.source_ids, asked.num_source_tokens, outcome.stats, exemplar)
        return outcome

    def result_of_generate(self, outcome: Outcome) -> Result:
        """The outcome of a request to generate, likewise; a shadow of the model is asked the same.

        Raises:
            AttendantError: the outcome itself, where it is an error.
        """
        result = self.result_of_score(outcome)
        self.model.metrics.generated(
            self.asked.source_ids, self.asked.num_source_tokens, result.hypotheses, by_default=self.by_default
        )
        if self.message is not None:
            for shadow in self.model.shadows:
                shadow(self.message, result)
        return result


class OfSeveral(Protocol):
    """One of several requests; `parsed`: None where something is wrong with it."""

    parsed: ParsedRequest | None


AnyItem = TypeVar("AnyItem", bound=OfSeveral)


def of_each_model(items: Iterable[AnyItem]) -> Iterable[list[tuple[AnyItem, ParsedRequest]]]:
    """The items that have a request to submit, with it, those of each model together."""
    found: dict[ServedModel, list[tuple[AnyItem, ParsedRequest]]] = {}
    for item in items:
        if item.parsed is not None:
            found.setdefault(item.parsed.model, []).append((item, item.parsed))
    return found.values()


def submit_all(
    requests: Sequence[ParsedRequest], timeout_seconds: float | None, priority: Priority = Priority.INTERACTIVE
) -> list[asyncio.Future[Outcome]]:
    """Submits requests of one model, at least one; all of them or none. See EngineClient.submit_all."""
    asked = [(one.asked.source_ids, one.asked.options) for one in requests]
    return requests[0].model.runner.submit_all(asked, timeout_seconds, priority, CLIENT.get())


async def parse(
    read: Callable[[AnyRequest, ServedModel], ParsedRequest], request: AnyRequest, model: ServedModel
) -> ParsedRequest:
    """What `read_generate` or `read_score` reads, without holding up the event loop for a large request."""
    return await off_the_loop(request.ByteSize(), partial(read, request, model))


async def off_the_loop(num_bytes: int, read: Callable[[], Read]) -> Read:
    """What is read of a message, without holding up the event loop where it is large."""
    if num_bytes <= LOOP_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(READERS, read)


def read_generate(request: messages.GenerateRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    check_request_id(request.request_id, violations)
    read = reading.read_generate(
        _side(request, "source", violations),
        set_fields(request.output),
        model,
        partial(read_options, request.decoding, model),
        violations,
    )
    parsed = _parsed(request, read, model, violations, by_default=not request.decoding.ByteSize())
    # Draws differ by themselves: nothing is learned from comparing them.
    compared = model.shadows and parsed.asked.options.sampling is None
    return replace(parsed, message=request) if compared else parsed


def read_score(request: messages.ScoreRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    check_request_id(request.request_id, violations)
    read = reading.read_score(
        _side(request, "source", violations),
        _side(request, "target", violations),
        set_fields(request.output),
        model,
        violations,
        include_eos=request.include_eos if request.HasField("include_eos") else True,
    )
    return _parsed(request, read, model, violations)


def _parsed(
    request: Request, read: ReadRequest | None, model: ServedModel, violations: Violations, *, by_default: bool = False
) -> ParsedRequest:
    if read is None:
        raise InvalidArgument(*violations.found)
    return ParsedRequest(request_id=request.request_id, model=model, asked=read, by_default=by_default)


def _side(request: Request, side: str, violations: Violations) -> Side | None:
    """The field of the oneof that is set; None, and told, where none is."""
    field = request.WhichOneof(side)
    if field is None:
        ways = request.DESCRIPTOR.oneofs_by_name[side].fields
        violations.say(side, "unset", " or ".join(way.name for way in ways))
        return None
    given = getattr(request, field)
    return Side(field, given if isinstance(given, str) else given.tokens)


def check_request_id(request_id: str, violations: Violations) -> None:
    """It is written to the log, and back to the caller: anything short will do, on one line."""
    violations.require(
        len(request_id) <= MAX_ID_CHARACTERS and request_id.isprintable(), "request_id", request_id, ID_LIMIT
    )
