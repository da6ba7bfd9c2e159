"""Shadows: a version that is asked what the stable one has answered, and whose answers are compared and thrown away."""

import asyncio
import random

from attendant.server.catalogue.models import ServedModel, Shadow
from attendant.server.engine.request import Result
from attendant.server.errors import AttendantError
from attendant.server.grpc.requests import parse, read_generate
from attendant_client.v1 import seq2seq_pb2 as messages

SHADOW_SECONDS = 10.0
"""The deadline of what a shadow is asked: its engine refuses or drops what it can't do meanwhile, as any other."""

_under_way: set[asyncio.Task[None]] = set()


def shadow_of(stable: ServedModel, shadow: ServedModel, share: float) -> Shadow:
    """What asks the shadow a share of what the stable version has answered, afterwards, and counts what came of it."""
    stable_tokenizer, metrics = stable.bundle.target_tokenizer, stable.metrics

    async def compare(request: messages.GenerateRequest, text: str) -> None:
        try:
            parsed = await parse(read_generate, request, shadow)
            outcome = await parsed.submit(SHADOW_SECONDS)
        except AttendantError as error:
            outcome = error
        if isinstance(outcome, Result):
            own = shadow.bundle.target_tokenizer.decode(outcome.hypotheses[0].token_ids)
            metrics.shadowed("same" if own == text else "different")
        else:
            metrics.shadowed("failed")

    def ask(request: messages.GenerateRequest, result: Result) -> None:
        if random.random() >= share:
            return
        task = asyncio.create_task(compare(request, stable_tokenizer.decode(result.hypotheses[0].token_ids)))
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)

    return ask
