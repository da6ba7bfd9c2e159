"""Requests as the engine takes them, or everything that is wrong with them, told together."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import Message

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.server.access.clients import CLIENT
from attendant.server.engine.request import Outcome, Priority, Result
from attendant.server.errors import AttendantError
from attendant.server.models import ServedModel
from attendant.server.servicers.decoding import read_decoding
from attendant.server.servicers.symbols import read_side
from attendant.server.servicers.violations import Violations, check_request_id
from attendant_client.v1 import seq2seq_pb2 as messages

Request = messages.GenerateRequest | messages.ScoreRequest

REQUEST_BYTES = 2048
TOKEN_BYTES = 96
"""An id, a log-probability and a symbol, as Python holds them."""
WEIGHT_BYTES = 4

LOOP_BYTES = 2048
"""A larger request is read on a thread of its own: a millisecond of tokenizing is enough for the event loop."""

READERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
"""One, so that the engine keeps its cores whatever is sent. Meanwhile only requests as large as those wait."""

Asked = TypeVar("Asked", bound=Message)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a request asks of its model, and the one way into the model's engine and back.

    Attributes:
        source_ids: as the encoder takes them, the end symbol included where the model wants it.
        num_source_tokens: of the source itself.
        attention, token_log_probs: whether they are to be in the answer.
        source_words: what stands at each position of the source; None: unknown symbols are not to be replaced.
        by_default: it sets no decoding option.
        message: kept only where a shadow is to be asked the same.
    """

    request_id: str
    model: ServedModel
    source_ids: tuple[int, ...]
    num_source_tokens: int
    options: DecodingOptions
    attention: bool = False
    token_log_probs: bool = False
    source_words: list[str] | None = None
    by_default: bool = False
    message: messages.GenerateRequest | None = None

    @property
    def max_answer_bytes(self) -> int:
        """What the request and its answer may come to take in memory, roughly."""
        options = self.options
        columns = len(self.source_ids) if options.attention else 0
        target = (options.max_length + 1) * (TOKEN_BYTES + WEIGHT_BYTES * columns)
        return REQUEST_BYTES + TOKEN_BYTES * len(self.source_ids) + options.num_hypotheses * target

    def submit(
        self, timeout_seconds: float | None, priority: Priority = Priority.INTERACTIVE
    ) -> asyncio.Future[Outcome]:
        """See EngineRunner.submit; the client is the one whose call is being handled."""
        return self.model.runner.submit(self.source_ids, self.options, timeout_seconds, priority, CLIENT.get())

    def scored(self, outcome: Outcome) -> Result:
        """The outcome, counted, where it is a result.

        Raises:
            AttendantError: the outcome itself, where it is an error.
        """
        if isinstance(outcome, AttendantError):
            raise outcome
        self.model.metrics.answered(self.source_ids, self.num_source_tokens, outcome.stats)
        return outcome

    def generated(self, outcome: Outcome) -> Result:
        """The same, with what the hypotheses say of the model."""
        result = self.scored(outcome)
        self.model.metrics.generated(
            self.source_ids, self.num_source_tokens, result.hypotheses, by_default=self.by_default
        )
        if self.message is not None and self.model.shadow is not None:
            self.model.shadow(self.message, result)
        return result


async def parsed(read: Callable[[Asked, ServedModel], Read], request: Asked, model: ServedModel) -> Read:
    """What is read of a request, by `read_generate` for example, without holding up the event loop for a large one."""
    if request.ByteSize() <= LOOP_BYTES:
        return read(request, model)
    return await asyncio.get_running_loop().run_in_executor(READERS, read, request, model)


def read_generate(request: messages.GenerateRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    source_ids = _read_source(request, model, violations)
    options = read_decoding(request.decoding, request.output, model, len(source_ids), violations)
    _check_output(request.output, model, violations)
    violations.raise_if_any()
    assert options is not None, "options without a violation are there"
    source_words = _source_words(request, source_ids, model) if request.output.replace_unknowns else None
    by_default = not request.decoding.ByteSize()
    asked = _parsed(request, source_ids, options, model, source_words, by_default=by_default)
    # Draws differ by themselves: nothing is learned from comparing them.
    compared = model.shadow is not None and options.sampling is None
    return replace(asked, message=request) if compared else asked


def read_score(request: messages.ScoreRequest, model: ServedModel) -> ParsedRequest:
    """Checks a request against its model's limits.

    Raises:
        InvalidArgument: with every violation.
    """
    violations = Violations()
    source_ids = _read_source(request, model, violations)
    include_eos = request.include_eos if request.HasField("include_eos") else True
    # The end alone has a probability too.
    least, most = int(not include_eos), model.limits.max_target_tokens
    target_ids = read_side(request, "target", model.bundle.target_tokenizer, least, most, violations)
    _check_output(request.output, model, violations)
    if request.output.replace_unknowns:
        violations.add("output.replace_unknowns", True, "false: a target that is scored stands as it is")
    violations.raise_if_any()
    options = scoring_options(
        target_ids, model.manifest.special_ids.eos, include_eos=include_eos, attention=request.output.attention
    )
    return _parsed(request, source_ids, options, model)


def _read_source(request: Request, model: ServedModel, violations: Violations) -> list[int]:
    check_request_id(request.request_id, violations)
    return read_side(request, "source", model.bundle.source_tokenizer, 1, model.limits.max_source_tokens, violations)


def _parsed(
    request: Request,
    source_ids: list[int],
    options: DecodingOptions,
    model: ServedModel,
    source_words: list[str] | None = None,
    *,
    by_default: bool = False,
) -> ParsedRequest:
    return ParsedRequest(
        request_id=request.request_id,
        model=model,
        source_ids=tuple(model.bundle.source_ids(source_ids)),
        num_source_tokens=len(source_ids),
        options=options,
        attention=request.output.attention,
        token_log_probs=request.output.token_log_probs,
        source_words=source_words,
        by_default=by_default,
    )


def _source_words(request: messages.GenerateRequest, source_ids: list[int], model: ServedModel) -> list[str]:
    """What stands at each position of the source, its end not among them."""
    tokenizer = model.bundle.source_tokenizer
    return (
        tokenizer.words_of(request.text) if request.WhichOneof("source") == "text" else tokenizer.tokens_of(source_ids)
    )


def _check_output(output: messages.OutputOptions, model: ServedModel, violations: Violations) -> None:
    for name in ("attention", "replace_unknowns"):
        if getattr(output, name) and not model.has_attention:
            violations.add(f"output.{name}", True, "false: this model has no attention")
