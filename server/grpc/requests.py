"""Requests from protobuf: messages are read, checked and submitted, and results become messages, in limited memory."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import ref

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import error_details_pb2, status_pb2

from attendant.runtime import requests as reading
from attendant.runtime.answers import answer_fields, score_fields
from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.decoding.hypothesis import FinishReason, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import max_trace_bytes
from attendant.runtime.errors import Violation, Violations, cut
from attendant.runtime.requests import ReadRequest, Side, read_decoding
from attendant.runtime.stepper import Floats
from attendant.server.call import MAX_ID_CHARACTERS, Call, RequestRecord
from attendant.server.catalogue import ServedModel
from attendant.server.engine.messages import Outcome, Priority, Result, joined_result
from attendant.server.errors import AttendantError, InvalidArgument, Overloaded
from attendant.server.polling import begin
from attendant_client.messages import set_fields
from attendant_client.v1 import seq2seq_pb2 as messages

Request = messages.GenerateRequest | messages.ScoreRequest

ID_LIMIT: Final = f"at most {MAX_ID_CHARACTERS} characters, none of them control characters"

REQUEST_BYTES: Final = 2048
TOKEN_BYTES: Final = 96  # Memory for an id, a log-probability and a symbol, as Python objects.
WEIGHT_BYTES: Final = 4
TRACE_OVERHEAD: Final = 8  # Memory for a trace, as Python objects, by its size as it is sent.
LOOP_BYTES: Final = 2048
"""A larger request is read on a thread: tokenizing may hold the event loop for a millisecond, but not longer."""

READERS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
"""A single thread, so that large requests delay only each other, and leave the processor's cores to the engine."""

MAX_OPTIONS_KEPT: Final = 1024
MAX_OPTION_BYTES_KEPT: Final = 128
"""All options together are shorter, except prefixes, and fields that are unknown to this version."""

WHOLE: Final = {FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1}
"""The types of whole numbers, and the largest number of each."""

SHADOW_SECONDS: Final = 10.0  # The deadline of requests to a shadow.
T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", messages.GenerateRequest, messages.ScoreRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A valid request, ready to be submitted to its model's engines.

    Attributes:
        content: the request that `read_generate` or `read_score` of the runtime returned.
        by_default: it sets no decoding option.
        message: None unless shadows of the model get the same request.
    """

    request_id: str
    model: ServedModel
    content: ReadRequest
    by_default: bool = False
    message: messages.GenerateRequest | None = None

    @property
    def max_answer_bytes(self) -> int:
        """Estimate of the most memory that the request and its answer can take."""
        content, options = self.content, self.content.options
        num_tokens = len(content.source_ids) + options.num_hypotheses * (options.max_length + 1)
        trace = TRACE_OVERHEAD * max_trace_bytes(options, len(content.source_ids))
        return REQUEST_BYTES + TOKEN_BYTES * num_tokens + WEIGHT_BYTES * content.num_attention_cells + trace

    def submit(self, call: Call) -> asyncio.Future[Outcome]:
        """Submits the request for the client of a call, until the call's deadline. See `EngineClient.submit_all`."""
        return joined_outcome(self.content, self.submit_units(call.client, call.time_remaining()))

    def submit_units(
        self, client: str, timeout_seconds: float | None, listeners: Sequence[Callable[[Progress], None]] | None = None
    ) -> list[asyncio.Future[Outcome]]:
        """Submits the parts of the request, or itself if it has none, to be joined. See `EngineClient.submit_all`."""
        contents = [(unit.source_ids, unit.options) for unit in self.content.units]
        return self.model.runner.submit_all(contents, timeout_seconds, Priority.INTERACTIVE, client, listeners)

    def scored(self, outcome: Outcome, record: RequestRecord) -> Result:
        """Returns the result of a request after updating metrics and trace. Raises the outcome if it is an error."""
        if isinstance(outcome, AttendantError):
            raise outcome
        content, exemplar = self.content, None
        if record.trace is not None:
            record.trace.add_phases(outcome.stats)
            exemplar = record.trace.exemplar
        self.model.metrics.answered(content.source_ids, content.num_source_tokens, outcome.stats, exemplar)
        return outcome

    def generated(self, outcome: Outcome, record: RequestRecord) -> Result:
        """Does the same for a request to generate, and sends it to the model's shadows."""
        result = self.scored(outcome, record)
        self.model.metrics.generated(
            self.content.source_ids, self.content.num_source_tokens, result.hypotheses, by_default=self.by_default
        )
        if self.message is not None:
            for shadow, share in self.model.shadows:
                if random.random() < share and shadow.leases.acquire():
                    begin(_compare(self, result, shadow, record.client), _comparisons)
        return result


def submit_all(requests: Sequence[ParsedRequest], call: Call, priority: Priority) -> list[asyncio.Future[Outcome]]:
    """Submits requests of one model, at least one: all of them, or none. See `EngineClient.submit_all`."""
    units = [unit for request in requests for unit in request.content.units]
    contents = [(unit.source_ids, unit.options) for unit in units]
    outcomes = iter(requests[0].model.runner.submit_all(contents, call.time_remaining(), priority, call.client))
    return [joined_outcome(request.content, list(islice(outcomes, len(request.content.units)))) for request in requests]


def joined_outcome(content: ReadRequest, outcomes: Sequence[asyncio.Future[Outcome]]) -> asyncio.Future[Outcome]:
    """Returns the outcome of a request whose parts were submitted; cancelling it cancels them.

    The first error of a part is the request's, and cancels the others.
    """
    if not content.parts:
        return outcomes[0]
    whole: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(part: asyncio.Future[Outcome]) -> None:
        if whole.done():
            return
        if not part.cancelled() and isinstance(error := part.result(), AttendantError):
            whole.set_result(error)
        elif all(outcome.done() for outcome in outcomes):
            results = [result for outcome in outcomes if isinstance(result := outcome.result(), Result)]
            whole.set_result(joined_result(content, results))

    def cancel_parts(_: object) -> None:
        for outcome in outcomes:
            outcome.cancel()

    whole.add_done_callback(cancel_parts)
    for outcome in outcomes:
        outcome.add_done_callback(end)
    return whole


MAX_ANSWER_BYTES = 64 << 20
"""Memory for the answers of all bulk streams together. An answer takes some kilobytes, or megabytes with attention."""

STALLED_SECONDS = 1.0  # A stream counts as stalled once an answer has waited this long for its client to read.


class AnswerBudget:
    """Memory for answers: of bulk streams from the reading of a request until its answer has been written.

    An answer to a unary call counts from when it has been made, with all others of its client. A stream may hold as
    much as is still free (dynamic thresholds, Choudhury and Hahne 1998): one such stream takes half of the memory at
    most, two take a third each, and as much as any of them holds is always left for the others.

    Attributes:
        held_bytes: memory in use.
        unread_seconds: time after which an unread answer ends its stream.
    """

    def __init__(
        self, *, unread_seconds: float, max_bytes: int = MAX_ANSWER_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self.unread_seconds = unread_seconds
        self.held_bytes = 0
        self.clock = clock
        self._shares: set[AnswerShare] = set()
        # Bytes of the answers to calls, by client.
        self._of_clients: Counter[str] = Counter()

    def open(self) -> "AnswerShare":
        """Returns a stream's share, to be closed when the stream ends."""
        share = AnswerShare(self)
        self._shares.add(share)
        return share

    def has_room(self, held_bytes: int, num_bytes: int) -> bool:
        """Returns whether a holder of `held_bytes` may hold more. One that holds nothing always may."""
        return not held_bytes or held_bytes + num_bytes <= self.max_bytes - self.held_bytes - num_bytes

    def hold(self, client: str, num_bytes: int, until: "asyncio.Task[Any]") -> bool:
        """Counts the answer to a call until its task ends; returns False if the client leaves too much unread."""
        held = self._of_clients
        if not self.has_room(held[client], num_bytes):
            return False
        self.held_bytes += num_bytes
        held[client] += num_bytes

        def free(_: object) -> None:
            self.held_bytes -= num_bytes
            held[client] -= num_bytes
            if not held[client]:
                del held[client]

        until.add_done_callback(free)
        return True

    def close(self, share: "AnswerShare") -> None:
        """Removes the share of a stream that has ended and returned its memory."""
        self._shares.discard(share)

    def gauges(self) -> dict[str, Callable[[], float]]:
        """Returns the metrics of streams and their answers by name, each with a function that returns its value."""
        return {
            "bulk_streams": lambda: len(self._shares),
            "bulk_streams_stalled": lambda: sum(share.is_stalled for share in self._shares),
            "bulk_answers_bytes": lambda: self.held_bytes,
            "bulk_answers_limit_bytes": lambda: self.max_bytes,
        }


class AnswerShare:
    """The memory that one stream holds."""

    def __init__(self, budget: AnswerBudget) -> None:
        self.held_bytes = 0
        self._writing_since: float | None = None
        self._budget = budget
        self._freed = asyncio.Event()

    @property
    def is_stalled(self) -> bool:
        return self._writing_since is not None and self._writing_since < self._budget.clock() - STALLED_SECONDS

    def begin_write(self) -> None:
        """Notes that an answer is being written, which waits for the client to read."""
        self._writing_since = self._budget.clock()

    def end_write(self) -> None:
        self._writing_since = None

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether `take` would not wait.

        A stream that holds nothing always has room. A stalled one has none, so that nothing is decoded in vain.
        """
        is_stalled = self.held_bytes > 0 and self.is_stalled
        return not is_stalled and self._budget.has_room(self.held_bytes, num_bytes)

    async def take(self, num_bytes: int) -> None:
        """Waits until there is room, and holds the memory."""
        # Memory that others free does not wake a waiting stream, which would gain little: the stream itself holds
        # memory, and either frees it soon or its client does not read.
        while not self.has_room(num_bytes):
            self._freed.clear()
            await self._freed.wait()
        self.held_bytes += num_bytes
        self._budget.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        self._budget.held_bytes -= num_bytes
        self._freed.set()


def check_answer_bytes(num_bytes: int, num_requests: int, field: str) -> None:
    """Raises InvalidArgument if the answers to one call may take too much memory."""
    if num_bytes > MAX_ANSWER_BYTES:
        state = f"{num_requests} items long, whose answers may take {num_bytes >> 20} MiB"
        raise InvalidArgument(Violation(field, state, f"one whose answers take {MAX_ANSWER_BYTES >> 20} MiB at most"))


async def off_the_loop(num_bytes: int, read: Callable[[], T], limit: int = LOOP_BYTES, thread: Executor = READERS) -> T:
    """Calls `read`, on a thread if the number of bytes is above the limit, so that it does not hold the event loop."""
    if num_bytes <= limit:
        return read()
    return await asyncio.get_running_loop().run_in_executor(thread, read)


async def parse(
    read: Callable[[AnyRequest, ServedModel], ParsedRequest], request: AnyRequest, model: ServedModel
) -> ParsedRequest:
    """Calls `read_generate` or `read_score`, on a thread if the request is large."""
    return await off_the_loop(request.ByteSize(), partial(read, request, model))


def read_generate(request: messages.GenerateRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits. Raises InvalidArgument with all violations."""
    violations = Violations()
    check_request_id(request.request_id, violations)
    source, output = _side(request, "source", violations), set_fields(request.output)
    changes = model.manifest.decoding.changes_texts or any(map(request.decoding.HasField, TEXT_OPTIONS))
    decoding = set_fields(request.decoding) if changes else {}
    options = partial(read_options, request.decoding, model)
    read = reading.read_generate(source, decoding, options, output, model, violations)
    parsed = _parsed(request, read, model, violations, by_default=not request.decoding.ByteSize())
    # Draws differ by themselves: nothing is learned from comparing them.
    compared = model.shadows and parsed.content.options.sampling is None
    return replace(parsed, message=request) if compared else parsed


def read_score(request: messages.ScoreRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits. Raises InvalidArgument with all violations."""
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
        raise InvalidArgument(*violations)
    return ParsedRequest(request_id=request.request_id, model=model, content=read, by_default=by_default)


def _side(request: Request, side: str, violations: Violations) -> Side | None:
    """Returns the field of the oneof that is set, or None, which is a violation."""
    field = request.WhichOneof(side)
    if field is None:
        choices = request.DESCRIPTOR.oneofs_by_name[side].fields
        violations.add_state(side, "unset", " or ".join(choice.name for choice in choices))
        return None
    value = getattr(request, field)
    return Side(field, value if isinstance(value, str) else value.tokens)


def check_request_id(request_id: str, violations: Violations) -> None:
    """Checks an id, which is written to the log and back to the caller: it must be short and printable."""
    violations.require(
        len(request_id) <= MAX_ID_CHARACTERS and request_id.isprintable(), "request_id", request_id, ID_LIMIT
    )


def must_be(field: FieldDescriptor) -> str:
    """Returns the limit for the values of a field that is a number, a truth value or a text."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "a text"
    return f"a whole number from 0 to {WHOLE[field.cpp_type]}" if field.cpp_type in WHOLE else "a number"


def read_options(
    message: messages.DecodingOptions, model: ServedModel, num_source_tokens: int, *, attention: bool, trace: int
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """Reads decoding options as `read_decoding`.

    Most requests have the same few options, which are read once: reading takes 28 us, looking them up 3 us.
    """
    by_length = message.HasField("min_length_ratio") or message.HasField("max_length_ratio")
    by_length |= model.manifest.decoding.max_length_ratio is not None and not message.HasField("max_length")
    by_length |= len(message.masked_source_positions) > 0
    length = num_source_tokens if by_length else 0
    # The completion of a text may have thousands of tokens.
    if message.ByteSize() <= MAX_OPTION_BYTES_KEPT and not message.HasField("target_prefix_text"):
        return _read_once(ref(model), message.SerializeToString(), attention, trace, length)
    return read_decoding(set_fields(message), model, length, attention=attention, trace=trace)


@lru_cache(maxsize=MAX_OPTIONS_KEPT)
def _read_once(
    model: "ref[ServedModel]", serialized: bytes, attention: bool, trace: int, num_source_tokens: int
) -> tuple[DecodingOptions | None, tuple[Violation, ...]]:
    """Reads serialized options. The cache does not hold the model, so that an ended version leaves the memory."""
    served = model()
    assert served is not None, "the caller holds it"
    fields = set_fields(messages.DecodingOptions.FromString(serialized))
    return read_decoding(fields, served, num_source_tokens, attention=attention, trace=trace)


_comparisons: set[asyncio.Task[None]] = set()


async def _compare(request: ParsedRequest, result: Result, shadow: ServedModel, client: str) -> None:
    """Sends an answered request to a shadow, of which there is a lease, and counts whether the answers are equal.

    The answer has been sent by then. The shadow's answer is only compared.
    """
    assert request.message is not None
    outcome: Outcome
    try:
        parsed = await parse(read_generate, request.message, shadow)
        # Its trace is not read.
        content = replace(parsed.content, options=replace(parsed.content.options, trace=0))
        parts = replace(parsed, content=content).submit_units(client, SHADOW_SECONDS)
        outcome = await joined_outcome(parsed.content, parts)
    except AttendantError as error:
        outcome = error
    finally:
        shadow.leases.release()
    compared = "failed"
    if isinstance(outcome, Result):
        text = request.model.bundle.target_tokenizer.decode(result.hypotheses[0].token_ids)
        shadow_text = shadow.bundle.target_tokenizer.decode(outcome.hypotheses[0].token_ids)
        compared = "same" if shadow_text == text else "different"
    request.model.metrics.shadowed(compared)


FINISH_REASONS = {FinishReason.EOS: messages.FINISH_REASON_EOS, FinishReason.LENGTH: messages.FINISH_REASON_LENGTH}
TIMINGS = tuple(messages.Timings.DESCRIPTOR.fields_by_name)  # The names of the fields, which RequestStats has too.
timings_of = attrgetter(*TIMINGS)


LOOP_CELLS = 20_000  # A larger answer is made on a thread: this many tokens and weights take a few milliseconds.
CANDIDATE_CELLS = 8  # Cost of a trace's candidate, in cells.

MAX_DETAILS_BYTES, MAX_DETAIL_CHARACTERS = 3072, 160
"""Limits of a status's violations. It travels in trailing metadata, of which gRPC's clients accept some 8 KiB."""

WRITERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")


def num_cells(result: Result) -> int:
    """Returns the number of an answer's tokens and attention weights; a trace's candidates count several times."""
    of_trace = sum(
        CANDIDATE_CELLS * len(search.fates) + (0 if search.attention is None else search.attention.size)
        for search in result.trace or ()
    )
    return of_trace + sum(
        len(hypothesis.token_ids) + (0 if hypothesis.attention is None else hypothesis.attention.size)
        for hypothesis in result.hypotheses
    )


async def written(num_cells: int, make: Callable[[], T]) -> T:
    """Calls `make`, on a thread if the answer is large, so that it does not hold the event loop."""
    return await off_the_loop(num_cells, make, LOOP_CELLS, WRITERS)


def generate_fields(parsed: ParsedRequest, result: Result) -> dict[str, Any]:
    """Returns a GenerateResponse's fields.

    Not the message: protobuf would serialize and parse it once more to put it into the message that contains it.
    """
    model = parsed.model
    fields = answer_fields(result.hypotheses, result.trace, parsed.content, model)
    for hypothesis in fields["hypotheses"]:
        hypothesis["attention"] = _attention(hypothesis["attention"])
        hypothesis["finish_reason"] = FINISH_REASONS[hypothesis["finish_reason"]]
    return {
        "request_id": parsed.request_id,
        "model": model.name,
        "version": model.manifest.version,
        "timings": dict(zip(TIMINGS, timings_of(result.stats), strict=True)),
        **fields,
    }


def score_response(parsed: ParsedRequest, result: Result) -> messages.ScoreResponse:
    model = parsed.model
    fields = score_fields(result.hypotheses[0], parsed.content, model)
    fields["attention"] = _attention(fields["attention"])
    return messages.ScoreResponse(
        request_id=parsed.request_id, model=model.name, version=model.manifest.version, **fields
    )


def _attention(attention: Floats | None) -> messages.Attention | None:
    """Makes a message of weights [summands, source tokens]; None leaves the field unset."""
    if attention is None:
        return None
    rows, columns = attention.shape
    return messages.Attention(rows=rows, columns=columns, weights=attention.ravel().tolist())


def status_of(error: AttendantError, request_id: str) -> status_pb2.Status:
    """Returns the status of an error with its details: BadRequest, RetryInfo for an overload, and RequestInfo."""
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=str(error))
    if isinstance(error, InvalidArgument):
        request = error_details_pb2.BadRequest()
        for violation in error.violations:
            shown = cut(violation.field, MAX_DETAIL_CHARACTERS), cut(violation.description, MAX_DETAIL_CHARACTERS)
            if request.ByteSize() + sum(len(text.encode()) for text in shown) > MAX_DETAILS_BYTES:
                break
            request.field_violations.add(field=shown[0], description=shown[1])
        status.details.add().Pack(request)
    elif isinstance(error, Overloaded):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_seconds * 1e9))
        status.details.add().Pack(retry)
    status.details.add().Pack(error_details_pb2.RequestInfo(request_id=request_id))
    return status
