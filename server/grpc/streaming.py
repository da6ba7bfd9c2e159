"""GenerateStream: an answer that is told while it grows, whoever carries it to the caller."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from attendant.runtime.answers import GrowingText, Piece
from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.errors import Stalled
from attendant.server.grpc.conversion import generate_fields, num_cells, written
from attendant.server.grpc.requests import ParsedRequest
from attendant_client.v1 import seq2seq_pb2 as messages

PAUSE_SECONDS = 1 / 30
"""Between two messages before the last: a message costs as much as a decoder step of several rows, and nobody reads
faster."""


async def streamed(
    parsed: ParsedRequest, timeout_seconds: float | None, unread_seconds: float
) -> AsyncGenerator[messages.GenerateStreamResponse, None]:
    """Yields what is certain of the best hypothesis as soon as it is, and then the whole answer.

    Tokens that have come since the last message was begun share the next one, so whoever reads slowly gets fewer and
    larger ones. Closing the generator frees the request's rows within a step.

    Args:
        timeout_seconds: as for `EngineClient.submit`.
        unread_seconds: who takes longer to take a message loses its rows.

    Raises:
        AttendantError: what the request ends with, other than an answer; Stalled among them.
    """
    growing = GrowingText(parsed.model.bundle.target_tokenizer, replaces_unknowns=parsed.asked.source_words is not None)
    certain: list[int] = []
    stirred = asyncio.Event()

    def on_progress(progress: Progress) -> None:
        certain[progress.first :] = progress.token_ids
        stirred.set()

    submitted = parsed.submit(timeout_seconds, on_progress=on_progress)
    submitted.add_done_callback(lambda _: stirred.set())
    loop = asyncio.get_running_loop()
    try:
        while not submitted.done():
            await stirred.wait()
            stirred.clear()
            if not submitted.done() and (piece := growing.grow(certain)) is not None:
                unread = loop.call_later(unread_seconds, submitted.cancel)
                try:
                    yield _delta(piece)
                finally:
                    unread.cancel()
                await asyncio.wait([submitted], timeout=PAUSE_SECONDS)
        if submitted.cancelled():
            raise Stalled(unread_seconds)
        result = parsed.result_of_generate(submitted.result())
        fields = await written(num_cells(result), partial(generate_fields, parsed, result))
        best = fields["hypotheses"][0]
        if (piece := growing.rest(best["tokens"], best["text"])) is not None:
            yield _delta(piece)
        yield messages.GenerateStreamResponse(response=fields)
    finally:
        submitted.cancel()


def _delta(piece: Piece) -> messages.GenerateStreamResponse:
    return messages.GenerateStreamResponse(delta={"tokens": piece.tokens, "text": piece.text})
