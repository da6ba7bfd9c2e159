"""Requests as the engine takes them, or everything that is wrong with them, told together."""

import asyncio
from dataclasses import dataclass

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.server.engine.request import Outcome, Priority, Result
from attendant.server.errors import AttendantError
from attendant.server.models import ServedModel
from attendant.server.servicers.decoding import read_decoding
from attendant.server.servicers.symbols import read_side
from attendant.server.servicers.violations import Violations, check_request_id
from attendant_client.v1 import seq2seq_pb2 as messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a request asks of its model, and the one way into the model's engine and back.

    Attributes:
        source_ids: as the encoder takes them, the end symbol included where the model wants it.
        num_source_tokens: of the source itself.
        by_default: it sets no decoding option.
    """

    model: ServedModel
    source_ids: tuple[int, ...]
    num_source_tokens: int
    options: DecodingOptions
    by_default: bool = False

    def submit(
        self, timeout_seconds: float | None, priority: Priority = Priority.INTERACTIVE
    ) -> asyncio.Future[Outcome]:
        """See EngineRunner.submit."""
        return self.model.runner.submit(self.source_ids, self.options, timeout_seconds, priority)

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
        return result


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
    return _parsed(source_ids, options, model, by_default=not request.decoding.ByteSize())


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
    return _parsed(source_ids, options, model)


def _read_source(
    request: messages.GenerateRequest | messages.ScoreRequest, model: ServedModel, violations: Violations
) -> list[int]:
    check_request_id(request.request_id, violations)
    return read_side(request, "source", model.bundle.source_tokenizer, 1, model.limits.max_source_tokens, violations)


def _parsed(
    source_ids: list[int], options: DecodingOptions, model: ServedModel, *, by_default: bool = False
) -> ParsedRequest:
    encoded = tuple(model.bundle.source_ids(source_ids))
    return ParsedRequest(
        model=model,
        source_ids=encoded,
        num_source_tokens=len(source_ids),
        options=options,
        by_default=by_default,
    )


def _check_output(output: messages.OutputOptions, model: ServedModel, violations: Violations) -> None:
    for name in ("attention", "replace_unknowns"):
        if getattr(output, name) and not model.has_attention:
            violations.add(f"output.{name}", True, "false: this model has no attention")
