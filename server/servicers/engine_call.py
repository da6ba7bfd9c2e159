"""The one way of a parsed request into its model's engine, and of the outcome back to its caller."""

import asyncio
from dataclasses import dataclass
from typing import Any

from attendant.server.engine.request import Outcome, Priority, Result
from attendant.server.errors import AttendantError
from attendant.server.models import ServedModel
from attendant.server.servicers.conversion import generate_fields
from attendant.server.servicers.requests import ParsedRequest
from attendant_client.v1 import seq2seq_pb2 as messages


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A parsed request, and the model that it is for."""

    model: ServedModel
    parsed: ParsedRequest

    def submit(
        self, timeout_seconds: float | None, priority: Priority = Priority.INTERACTIVE
    ) -> asyncio.Future[Outcome]:
        """See EngineRunner.submit."""
        return self.model.runner.submit(self.parsed.source_ids, self.parsed.options, timeout_seconds, priority)

    def result(self, outcome: Outcome) -> Result:
        """The outcome, counted, where it is a result.

        Raises:
            AttendantError: the outcome itself, where it is an error.
        """
        if isinstance(outcome, AttendantError):
            raise outcome
        self.model.metrics.answered(self.parsed.source_ids, self.parsed.num_source_tokens, outcome.stats)
        return outcome

    def generated(self, request: messages.GenerateRequest, outcome: Outcome) -> dict[str, Any]:
        """The fields of the GenerateResponse that a result is.

        Raises:
            AttendantError: the outcome itself, where it is an error.
        """
        result = self.result(outcome)
        self.model.metrics.generated(self.parsed.num_source_tokens, result.hypotheses)
        return generate_fields(request, self.model, self.parsed, result)
