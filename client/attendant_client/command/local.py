"""A bundle in this process in a server's place: what `--bundle` asks."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import grpc

from attendant_client.answers import Generation, Score, Source
from attendant_client.command.further import remedy
from attendant_client.errors import InvalidArgument


class LocalModel:
    """The part of a client's face that the command needs, over `attendant.load`.

    Whatever is asked while an answer is computed is decoded together afterwards.
    """

    def __init__(self, path: Path, precision: str | None = None) -> None:
        """Opens the bundle. If `precision` is None, the bundle's own choice answers.

        Raises:
            InvalidArgument: the bundle can't be asked.
        """
        try:
            library = import_module("attendant.library")
        except ModuleNotFoundError as missing:
            raise _refusal(remedy(missing, "cpu")) from None
        try:
            self._model = library.load(path, precision=precision)
        except library.UserError as error:
            raise _refusal(str(error)) from None
        self._waiting: list[tuple[Source, asyncio.Future[Generation]]] = []
        self._decoding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._decoding is not None:
            self._decoding.cancel()

    def bulk(self) -> Self:
        """All that is asked is decoded together anyway."""
        return self

    async def generate(self, source: Source, *, model: str, version: str, **options: Any) -> Generation:
        """As a client's; all calls have the same options, and there is one model."""
        answered: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append((source, answered))
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.create_task(self._decode(options))
        return await answered

    async def score(
        self, source: Source, target: Source, *, model: str, version: str, request_id: str, **how: Any
    ) -> Score:
        """As a client's; there is no log that would need the id."""
        (score,) = await asyncio.to_thread(self._model.score, [source], [target], **how)
        found: Score = score
        return found

    async def _decode(self, options: dict[str, Any]) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            sources = [source for source, _ in asked]
            try:
                found = await asyncio.to_thread(self._model.generate, sources, return_errors=True, **options)
            except Exception as error:
                found = [error] * len(asked)
            for (_, answered), one in zip(asked, found, strict=True):
                if isinstance(one, Exception):
                    answered.set_exception(one)
                else:
                    answered.set_result(one)


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, f"--bundle: {why}")
